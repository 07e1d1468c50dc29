"""The desk of a pool: whose turn it is, and who is put aside."""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping, Sequence

from limits_app.core.balancing import balancer_named
from limits_app.core.store import Store

__all__ = ["Desk"]


class Desk:
    """What a pool remembers; several pools of the same members, each known by a name, can have one in common."""

    def __init__(self, load_balancing: str, weights: Sequence[float], worker_index: int = 0) -> None:
        self.load_balancing = load_balancing
        self.weights = tuple(weights)
        self.worker_index = worker_index
        balancer = balancer_named(load_balancing)(self.weights, worker_index)
        self.order = balancer.order
        self.preview = balancer.preview
        self.emptiest_first = balancer.emptiest_first
        self.resting: MutableMapping[Hashable, int] = {}

    def put_aside(self, name: Hashable, rest_us: int, store: Store) -> None:
        """Put a member aside for so many microseconds of its store."""
        self.resting[name] = store.clock() + rest_us

    def rest_us(self, name: Hashable, store: Store) -> int:
        """For how many microseconds more a member is put aside."""
        until = self.resting.get(name)
        if until is None:
            return 0
        left = until - store.clock()
        if left <= 0:
            self.resting.pop(name, None)
            return 0
        return left
