"""Candidates: which sets of a pool could serve a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from limits_app.core.amounts import Amount, shown
from limits_app.core.balancing import Candidates
from limits_app.core.errors import InvalidRequest
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit

__all__ = ["Serviceable"]

_MOST_SHAPES: Final = 256


class Serviceable:
    """Says of each shape of request which sets have all that it names, and remembers it."""

    def __init__(self, limit_sets: Sequence[LimitSet]) -> None:
        self._sets = limit_sets
        self._rates = [frozenset(one.rates) for one in limit_sets]
        # Naming nothing leaves rates alone: of a set that has nothing else it requests nothing.
        self._only_rates = [bool(one.rates) and len(one.rates) == len(one) for one in limit_sets]
        known = {key for one in limit_sets for key in one.keys}
        self._optional = {CallLimit.key, *known}.difference(*self._rates)
        self._able: dict[tuple[str, ...] | None, Candidates] = {}

    def of(self, requested: Mapping[str, Amount] | None) -> Candidates:
        """The indexes of the sets that have all rates that are requested; InvalidRequest where there is none."""
        try:
            return self._able[None if requested is None else tuple(requested)]
        except (KeyError, TypeError):
            return self._found(requested)

    def _found(self, requested: Mapping[str, Amount] | None) -> Candidates:
        able: list[int] = []
        if requested is None:
            able = [index for index, rates in enumerate(self._rates) if not rates]
        elif isinstance(requested, Mapping):
            needed = [key for key in requested if key not in self._optional]
            able = [index for index, rates in enumerate(self._rates) if rates.issuperset(needed)]
            if not able:
                raise self._nobody_has(needed)
            if not requested:
                able = [index for index in able if not self._only_rates[index]]
        if not able:
            self._sets[0].prepare(requested)  # which says why it cannot
        if len(self._able) >= _MOST_SHAPES:
            self._able.clear()
        shape = None if requested is None else tuple(requested)
        self._able[shape] = found = tuple(able)
        return found

    def _nobody_has(self, needed: Sequence[object]) -> InvalidRequest:
        """The error for what no set has all of."""
        names = ", ".join(map(shown, needed))
        there = " | ".join(dict.fromkeys([", ".join(one.keys) or "nothing" for one in self._sets]))
        return InvalidRequest(f"no limit set of the pool has all that is requested: {names}; sets have: {there}")
