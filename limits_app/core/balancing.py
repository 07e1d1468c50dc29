"""Balancing: in which order the sets of a pool are asked.

A new balancer is one class here and one entry in the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import log
from random import random
from sys import float_info
from typing import Final, Protocol

from limits_app.core.amounts import shown
from limits_app.core.errors import InvalidRequest

__all__ = ["Balancer", "balancer_named", "checked_weights"]

Candidates = Sequence[int]
"""Indexes of sets that could serve a request, in rising order; never empty."""


class Balancer(Protocol):
    """Puts candidates in order; the first is the chosen one, the others follow when it refuses.

    Asked by several threads at once. `emptiest_first` leaves the order to the store, which knows what is free:
    then the balancer only says who is first among equals.
    """

    emptiest_first: bool

    def __init__(self, weights: Sequence[float], worker_index: int) -> None:
        """Balance sets of these weights, one for each, for one of several workers that start in different places."""

    def order(self, candidates: Candidates) -> Candidates:
        """The candidates in the order in which they are to be asked."""

    def preview(self, candidates: Candidates) -> Candidates:
        """The order that the next request would get, as far as it is known before; takes no turn."""


class RoundRobin:
    """One after the other, beginning with that of the worker's index."""

    emptiest_first = False

    def __init__(self, weights: Sequence[float], worker_index: int) -> None:  # noqa: ARG002 - as all have it
        self._turn = count(worker_index).__next__  # one step of the interpreter, so that it needs no lock
        self._next = worker_index

    def order(self, candidates: Candidates) -> Candidates:
        """Whoever is next, then those behind it."""
        turn = self._turn()
        self._next = turn + 1
        start = turn % len(candidates)  # as `_from` does, which is a call more
        return (*candidates[start:], *candidates[:start]) if start else candidates

    def preview(self, candidates: Candidates) -> Candidates:
        """Whoever is next."""
        return _from(self._next, candidates)


class Random:
    """Any order."""

    emptiest_first = False

    def __init__(self, weights: Sequence[float], worker_index: int) -> None:
        """Neither matters."""

    def order(self, candidates: Candidates) -> Candidates:
        """A new order each time."""
        return sorted(candidates, key=lambda _: random())

    def preview(self, candidates: Candidates) -> Candidates:
        """Nobody knows."""
        return candidates


class Weighted:
    """Any order, in which each set is as often first as its weight says."""

    emptiest_first = False

    def __init__(self, weights: Sequence[float], worker_index: int) -> None:  # noqa: ARG002 - as all have it
        self._weights = weights

    def order(self, candidates: Candidates) -> Candidates:
        """A race of exponential times: each is the next with the share that it has of the weights left."""
        weights = self._weights
        return sorted(candidates, key=lambda index: -log(1 - random()) / weights[index])

    def preview(self, candidates: Candidates) -> Candidates:
        """The likeliest."""
        return sorted(candidates, key=lambda index: -self._weights[index])


class LeastLoaded(RoundRobin):
    """That of which the largest share is free; among equals they take turns."""

    emptiest_first = True


class Failover:
    """The first that admits, in the order of the pool."""

    emptiest_first = False

    def __init__(self, weights: Sequence[float], worker_index: int) -> None:
        """Neither matters."""

    def order(self, candidates: Candidates) -> Candidates:
        """As they are."""
        return candidates

    preview = order


def _from(turn: int, candidates: Candidates) -> Candidates:
    start = turn % len(candidates)
    return (*candidates[start:], *candidates[:start]) if start else candidates


_BALANCERS: Final[Mapping[str, type[Balancer]]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "weighted": Weighted,
    "least_loaded": LeastLoaded,
    "failover": Failover,
}


def balancer_named(name: str) -> type[Balancer]:
    """The balancer of a name; ValueError lists what there is."""
    balancer = _BALANCERS.get(name)
    if balancer is None:
        raise ValueError(f"load_balancing {name!r} must be one of {', '.join(_BALANCERS)}")
    return balancer


def checked_weights(weights: Sequence[float] | None, count_of_sets: int) -> tuple[float, ...]:
    """One weight for each set, 1 unless they are given; InvalidRequest for what is none."""
    given = (1,) * count_of_sets if weights is None else tuple(weights)
    if len(given) != count_of_sets:
        raise InvalidRequest(f"weights must be one for each of the {count_of_sets} limit sets, not {shown(given)}")
    for weight in given:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= float_info.max:
            raise InvalidRequest(f"a weight must be a number above 0, not {shown(weight)}")
    return given
