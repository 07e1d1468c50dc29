"""Time zones by their IANA names."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import Final

__all__ = ["DEFAULT_ZONE", "LONGEST_NAME", "zone_of"]

DEFAULT_ZONE: Final = "UTC"
LONGEST_NAME: Final = 64


def zone_of(name: object) -> tzinfo | None:
    """Give the zone of a name, or None where there is no such zone; UTC needs no database of zones."""
    if name == DEFAULT_ZONE:
        return UTC
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return None
    # Imported when it is wanted, as few limits have a zone of their own.
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a directory of zones, for instance, is an OSError
        return None
