"""Patience: how long a request waits, and no longer than the limits hold that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from limits_app.core.blocking import checked_timeout
from limits_app.core.errors import LimitExceeded, LimitTimeout, StaleConfiguration
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked
from limits_app.resolver import resolver
from limits_app.services.watching import waiting

__all__ = ["countdown", "while_it_holds"]


def countdown(timeout: float | None) -> Callable[[], float | None]:
    """What is left of a timeout, whenever it is asked."""
    seconds = checked_timeout(timeout)
    deadline = None if seconds is None else monotonic() + seconds
    return lambda: None if deadline is None else max(deadline - monotonic(), 0)


@contextmanager
def while_it_holds(found: LimitSet, seconds: float | None, *, turn: float | None = None) -> Iterator[float | None]:
    """How long to wait, at most until a date changes what holds: StaleConfiguration then, to wait on for the rest.

    `turn` is the longest stretch. Whoever is blocked until later than that is refused at once: LimitExceeded.
    """
    lasts = None if found.changes_at is None else max(found.changes_at - resolver.clock(), 0)
    changes = lasts is not None and (seconds is None or lasts < seconds)
    stretch = min([some for some in (seconds, turn, lasts) if some is not None], default=None)
    hopeless = not changes and any(isinstance(limit, Blocked) for limit in found)
    try:
        with waiting():
            yield 0 if hopeless else stretch
    except LimitTimeout as error:
        if hopeless and seconds != 0:
            raise _at_once(error) from error
        if changes and stretch == lasts:
            raise StaleConfiguration("a date has come that changes the limits") from error
        raise


def _at_once(error: LimitTimeout) -> LimitExceeded:
    """The same refusal, of which nobody says that time was up."""
    refused = LimitExceeded(error.outcome)
    refused.refused = error.refused
    return refused
