"""Patience: how long a request waits, and no longer than the limits hold that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from limits_app.core.errors import LimitTimeout, StaleConfiguration
from limits_app.core.limit_set import LimitSet
from limits_app.core.turns import seconds_of
from limits_app.resolver import resolver
from limits_app.services.watching import waiting

__all__ = ["countdown", "while_it_holds"]


def countdown(timeout: float | None) -> Callable[[], float | None]:
    """What is left of a timeout, whenever it is asked."""
    seconds = seconds_of(timeout)
    deadline = None if seconds is None else monotonic() + seconds
    return lambda: None if deadline is None else max(deadline - monotonic(), 0)


@contextmanager
def while_it_holds(found: LimitSet, seconds: float | None) -> Iterator[float | None]:
    """How long to wait, at most until a date changes what holds: StaleConfiguration then, to wait on for the rest."""
    changes_at = getattr(found, "changes_at", None)
    lasts = None if changes_at is None else max(changes_at - resolver.clock(), 0)
    if lasts is None or (seconds is not None and seconds <= lasts):
        with waiting():
            yield seconds
        return
    try:
        with waiting():
            yield lasts
    except LimitTimeout as error:
        raise StaleConfiguration("a date has come that changes the limits") from error
