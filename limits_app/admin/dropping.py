"""The warning that policies drop limits of broader ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from django.db import router
from django.utils.translation import ngettext

from limits_app.models import Policy
from limits_app.services.dropped import dropped_by_each

__all__ = ["warning_of_dropped"]

_MOST_NAMED: Final = 10
"""How many dropped keys a warning names."""

_BATCH: Final = 500


def warning_of_dropped(keys: Sequence[int]) -> str:
    """Name the limits that saved policies, by their primary keys, drop; nothing where they drop none."""
    dropped = list(islice(_dropped(keys), _MOST_NAMED + 1))
    if not dropped:
        return ""
    warning = ngettext(
        "This policy replaces broader ones as a whole, and these limits of theirs hold no longer where it holds: "
        "%(dropped)s. Add them to it if they should.",
        "These policies replace broader ones as a whole, and these limits of theirs hold no longer where they hold: "
        "%(dropped)s. Add them to these if they should.",
        len(keys),
    )
    return warning % {"dropped": ", ".join(dropped[:_MOST_NAMED]) + (", …" if len(dropped) > _MOST_NAMED else "")}


def _dropped(keys: Sequence[int]) -> Iterator[str]:
    using = router.db_for_write(Policy)
    for first in range(0, len(keys), _BATCH):
        # Read again, because those of forms remember the limits that they had before.
        saved = Policy.objects.using(using).filter(pk__in=keys[first : first + _BATCH])
        for policy, found in dropped_by_each(saved.select_related("resource", "entity").prefetch_related("limits")):
            whose = f"{policy}: " if len(keys) > 1 else ""
            yield from (f"{whose}{key} ({level})" for key, level in found)
