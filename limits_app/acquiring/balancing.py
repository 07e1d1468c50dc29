"""Load balancing: in which order the sets of a pool are tried.

A new balancer is one class here and one entry in `_BALANCERS`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from math import log
from random import random
from sys import float_info
from typing import Final, NamedTuple

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine import MOST_SHAPES, SECOND_US, Requested, keys_of_nothing, shown
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limits import CallLimit, CountedUnit

Candidates = Sequence[int]
"""Indexes of sets that can serve a request, in rising order; never empty."""


class Cooling(NamedTuple):
    """A cool-down: until when, and how long it is, in microseconds of the clock of the set's store."""

    until: int
    length: int

    def left_us(self, now: int) -> int:
        """Return how long it still lasts; 0 also where it would begin later than now plus its length.

        Then the clock was set back since.
        """
        left = self.until - now
        return left if 0 < left <= 2 * self.length else 0

    def to_whole_second(self) -> Cooling:
        """Return the one that ends at the next whole second, so that reports of many rejected requests are alike."""
        end = -(-self.until // SECOND_US) * SECOND_US
        return Cooling(end, self.length + end - self.until) if self.length else self

    def or_later(self, other: Cooling | None) -> Cooling:
        """Return the one that ends later, as this one begins."""
        began_at = self.until - self.length
        return self if other is None or other.left_us(began_at) <= self.length else other


class Balancer:
    """Orders candidates, the first one is tried first; and knows which sets cool down. Thread safe.

    `weights` has one entry for each set; workers with different indexes start at different sets.
    With `emptiest_first` the store orders them by load, and the balancer only decides between equal loads.
    Pools with the same sets, each known by a name, may share a balancer.
    This one, `failover`, keeps the order of the pool.
    """

    load_balancing = "failover"
    emptiest_first = False

    def __init__(self, weights: Sequence[float], worker_index: int = 0) -> None:
        self.weights = tuple(weights)
        self.worker_index = worker_index
        self.cooling: dict[Hashable, Cooling] = {}
        """The cool-downs by name."""

    def order(self, candidates: Candidates) -> Candidates:
        """The candidates in the order in which they are tried."""
        return candidates

    def preview(self, candidates: Candidates) -> Candidates:
        """The order of the next request, as far as it can be known; changes nothing."""
        return candidates

    def cool(self, name: Hashable, cooling: Cooling) -> None:
        """Do not use a set for a time; of several ends the latest counts, and a length of 0 ends the cool-down."""
        if cooling.length:
            self.cooling[name] = cooling.or_later(self.cooling.get(name))
        else:
            self.cooling.pop(name, None)

    def cooling_us(self, name: Hashable, store: Store) -> int:
        """Microseconds until a set has cooled down; 0 where it is in use."""
        cooling = self.cooling.get(name)
        if cooling is None:
            return 0
        left_us = cooling.left_us(store.clock())
        if not left_us:
            self.cooling.pop(name, None)
        return left_us


class RoundRobin(Balancer):
    """Each set in turn, starting at the worker's index."""

    load_balancing = "round_robin"

    def __init__(self, weights: Sequence[float], worker_index: int = 0) -> None:
        super().__init__(weights, worker_index)
        self._turns = count(worker_index)  # `next` of it is atomic
        self._next = worker_index

    def order(self, candidates: Candidates) -> Candidates:
        turn = next(self._turns)
        self._next = turn + 1
        return _rotated(candidates, turn)

    def preview(self, candidates: Candidates) -> Candidates:
        return _rotated(candidates, self._next)


class LeastLoaded(RoundRobin):
    """The set with the lowest `Claim.load`, its largest share in use; equal ones in turn.

    The sets are sorted where their state is read: by `stores.steps.first_admitted` in the step of the store that they
    share (Redis: acquire.lua), and by `choice.sorted_by_load` where they have several stores.
    """

    load_balancing = "least_loaded"
    emptiest_first = True


class Random(Balancer):
    """A random order, which cannot be predicted."""

    load_balancing = "random"

    def order(self, candidates: Candidates) -> Candidates:
        return sorted(candidates, key=lambda _: random())


class Weighted(Balancer):
    """A random order in which each set is first in proportion to its weight."""

    load_balancing = "weighted"

    def order(self, candidates: Candidates) -> Candidates:
        """Sorts by exponential times with the weights as rates."""
        return sorted(candidates, key=lambda index: -log(1 - random()) / self.weights[index])

    def preview(self, candidates: Candidates) -> Candidates:
        """The most likely first."""
        return sorted(candidates, key=lambda index: -self.weights[index])


def _rotated(candidates: Candidates, turn: int) -> Candidates:
    start = turn % len(candidates)
    return (*candidates[start:], *candidates[:start]) if start else candidates


_BALANCERS: Final = {
    balancer.load_balancing: balancer for balancer in (RoundRobin, Random, Weighted, LeastLoaded, Balancer)
}


def balancer_named(name: str) -> type[Balancer]:
    """The balancer of that name; ValueError lists the valid names."""
    balancer = _BALANCERS.get(name)
    if balancer is None:
        raise ValueError(f"load_balancing {name!r} must be one of {', '.join(_BALANCERS)}")
    return balancer


def checked_weights(weights: Sequence[float] | None, count_of_sets: int) -> tuple[float, ...]:
    """One weight for each set, by default 1; InvalidRequest unless all are finite numbers above 0."""
    checked = (1,) * count_of_sets if weights is None else tuple(weights)
    if len(checked) != count_of_sets:
        raise InvalidRequest(f"weights must be one for each of the {count_of_sets} limit sets, not {shown(checked)}")
    for weight in checked:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= float_info.max:
            raise InvalidRequest(f"a weight must be a number above 0, not {shown(weight)}")
    return checked


class EligibleSets:
    """Finds the sets of a pool that have all rates that a request names, and caches them by the request's keys.

    A unit that has a price, and no limit in a set, is a key of that set too.
    """

    def __init__(self, limit_sets: Sequence[LimitSet]) -> None:
        self._sets = limit_sets
        self._rates = [frozenset(limit_set.rates) for limit_set in limit_sets]
        self._named = [
            rates.union([key for key in limit_set.keys if isinstance(limit_set[key], CountedUnit)])
            for rates, limit_set in zip(self._rates, limit_sets, strict=True)
        ]
        # A request that names nothing leaves rates alone, so it takes nothing from a set that has nothing else.
        self._only_rates = [
            bool(limit_set.rates) and len(limit_set.rates) == len(limit_set) for limit_set in limit_sets
        ]
        keys = {key for limit_set in limit_sets for key in limit_set.keys}
        self._optional = {CallLimit.key, *keys}.difference(*self._rates)
        self._found: dict[tuple[str, ...] | None, Candidates] = {}

    def find(self, requested: Requested) -> Candidates:
        """The indexes of the eligible sets; InvalidRequest where there are none."""
        try:
            return self._found[None if requested is None else tuple(requested) or keys_of_nothing(requested)]
        except (KeyError, TypeError):
            return self._search(requested)

    def _search(self, requested: Requested) -> Candidates:
        eligible: list[int] = []
        if requested is None or (isinstance(requested, Mapping) and keys_of_nothing(requested) is None):
            eligible = [index for index, rates in enumerate(self._rates) if not rates]
        elif isinstance(requested, Mapping):
            needed = [key for key in requested if key not in self._optional]
            eligible = [
                index
                for index, named in enumerate(self._named)
                if self._sets[index].accepts_all or named.issuperset(needed)
            ]
            if not eligible:
                raise self._not_eligible(needed)
            if not requested:
                eligible = [index for index in eligible if not self._only_rates[index]]
        if not eligible:
            self._sets[0].prepare(requested)  # raises the error that says why
        if len(self._found) >= MOST_SHAPES:
            self._found.clear()
        keys = None if requested is None else tuple(requested) or keys_of_nothing(requested)
        result = self._found[keys] = tuple(eligible)
        return result

    def _not_eligible(self, needed: Sequence[object]) -> InvalidRequest:
        names = ", ".join(map(shown, needed))
        existing = " | ".join(dict.fromkeys([", ".join(limit_set.keys) or "nothing" for limit_set in self._sets]))
        return InvalidRequest(f"no limit set of the pool has all requested limits: {names}; sets have: {existing}")
