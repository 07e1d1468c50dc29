"""Calendars, which scripts do not have: they are told the boundaries of periods around the moment of the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from limits_app.core.parts import Ask

__all__ = ["ALWAYS", "Calendars", "Told"]

_COUNT: Final = 2
"""How many boundaries up to a moment are told, and how many after it."""

ALWAYS: Final = (-(2**53), 2**53)
"""From when until when scripts know enough that need no calendar."""


class Told(NamedTuple):
    """The boundaries of all limits that have some, between which two of them time stands, and for what time they do."""

    boundaries: tuple[int, ...]
    period: tuple[int, int]
    known: tuple[int, int]


class Calendars:
    """The calendars of some limits; what was told last is told again until one of their periods ends."""

    __slots__ = ("_asks", "_told", "size")

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._asks = [ask for ask in asks if ask.rule.boundaries is not None]
        self.size = 2 * _COUNT * len(self._asks)
        """How many boundaries are told."""
        self._told = Told((), (0, 0) if self._asks else ALWAYS, ALWAYS)

    def offset(self, ask: Ask) -> int:
        """Where the boundaries of a limit stand among all, in bytes; 0 where it has none."""
        return self._asks.index(ask) * 2 * _COUNT * 8 if ask in self._asks else 0

    def around(self, now: int) -> Told:
        """What is told at a moment."""
        told = self._told  # read once, since other threads may find another one meanwhile
        if not told.period[0] <= now < told.period[1]:
            told = self._told = self._reckoned(now)
        return told

    def numbers(self, now: int) -> tuple[int, ...]:
        """The same as numbers for a script that is about these limits alone."""
        told = self.around(now)
        return *told.boundaries, *told.known

    def _reckoned(self, now: int) -> Told:
        found = [ask.rule.boundaries(now, _COUNT) for ask in self._asks if ask.rule.boundaries is not None]
        return Told(
            boundaries=tuple([boundary for some in found for boundary in some]),
            period=(max([some[_COUNT - 1] for some in found]), min([some[_COUNT] for some in found])),
            known=(max([some[0] for some in found]), min([some[-1] for some in found])),
        )
