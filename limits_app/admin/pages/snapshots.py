"""Snapshots of usage that are up to date, for the pages that show them."""

from __future__ import annotations

from threading import Lock
from time import monotonic
from typing import Final

from django.db import transaction

from limits_app.services.usage import roll_up

__all__ = ["bring_up_to_date"]

_EVERY_SECONDS: Final = 1.0


class _Gate:
    """Lets one through every second, whoever else asks in this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._opens_at = 0.0

    def passes(self) -> bool:
        """Whether it is time."""
        with self._lock:
            if monotonic() < self._opens_at:
                return False
            self._opens_at = monotonic() + _EVERY_SECONDS
            return True


_GATE: Final = _Gate()


def bring_up_to_date() -> bool:
    """Roll up what the stores have counted, at most once a second; says whether a store could not be asked."""
    if transaction.get_connection().in_atomic_block or not _GATE.passes():
        return False  # nothing for the inside of somebody's transaction
    return bool(roll_up().failed)
