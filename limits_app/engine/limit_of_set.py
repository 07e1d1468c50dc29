"""A limit that was taken from a set, as in `limit_set["tpm"]`, knows its live state."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Self

from limits_app.engine.errors import NotOfSet

if TYPE_CHECKING:
    from limits_app.engine.outcome import Stats


class LimitOfSet:
    """The base of limits: one that a set returns equals the definition, and has the state of the set."""

    __slots__ = ("_read_stats",)
    _read_stats: Callable[[], Stats]

    def get_stats(self) -> Stats:
        """Return the live state of the limit in its set, as `LimitSet.get_stats` lists it.

        Raises RuntimeError for a limit that was not taken from a set.
        """
        read: Callable[[], Stats] | None = getattr(self, "_read_stats", None)
        if read is None:
            raise NotOfSet("only a limit of a set has a state: write limit_set['key'].get_stats()")
        return read()

    def of_set(self, read_stats: Callable[[], Stats]) -> Self:
        """Return the same limit with the function that reads its state."""
        limit = copy(self)
        object.__setattr__(limit, "_read_stats", read_stats)
        return limit
