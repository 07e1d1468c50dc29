"""Waking: releases and changes wake the requests that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import LimitTimeout, StaleConfiguration
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    Contract,
    credit,
    give_back,
    limits_of,
    settle,
    taken,
)

__all__ = ["Waking"]

PATIENCE = 20
"""Seconds after which a waiter that was not woken fails its test."""


class Lookout(FakeClock):
    """A clock that notices when it is read while a request waits."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Store | None = None
        self.has_waiter = Event()

    def __call__(self) -> int:
        """The time; a waiter reads it between joining the line and going to sleep."""
        if self.store is not None and self.store.line.busy:
            self.has_waiter.set()
        return super().__call__()


class Waking(Contract):
    """Waiters on a clock that stands still are let in by others, or not at all."""

    @pytest.fixture
    def lookout(self) -> Lookout:
        """A clock that notices waiters."""
        return Lookout()

    @pytest.fixture
    def watched(self, lookout: Lookout) -> Iterator[Store]:
        """The store under test, on that clock."""
        lookout.store = self.make_store(lookout)
        yield lookout.store
        self.close_store(lookout.store)

    @contextmanager
    def waiting(self, clock: Lookout, acquire: Callable[[], Acquisition]) -> Iterator[Future[Acquisition]]:
        """Wait in another thread; the block runs when that thread waits in the line."""
        clock.has_waiter.clear()
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(acquire)
            try:
                assert clock.has_waiter.wait(PATIENCE)
                assert not future.done()
                yield future
            finally:
                if not future.done():
                    # So that a failing test ends.
                    clock.advance(10**6)

    def test_a_release_wakes_a_waiter(self, watched: Store, lookout: Lookout) -> None:
        limits = limits_of(watched, ResourceLimit("db", 1))
        claim = taken(limits)
        with self.waiting(lookout, lambda: limits.acquire(timeout=10**5)) as waiter:
            give_back(limits, claim)
            assert waiter.result(PATIENCE)

    def test_a_refund_wakes_a_waiter(self, watched: Store, lookout: Lookout) -> None:
        limits = limits_of(watched, RateLimit(KEY, 10, 3600))
        claim = taken(limits, {KEY: 10})
        with self.waiting(lookout, lambda: limits.acquire({KEY: 5}, timeout=10**5)) as waiter:
            settle(limits, claim, {KEY: -5})
            assert waiter.result(PATIENCE)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_credit_wakes_a_waiter(self, watched: Store, lookout: Lookout, algorithm: RateLimitAlgorithm) -> None:
        limits = limits_of(watched, RateLimit(KEY, 10, 3600, algorithm))
        taken(limits, {KEY: 10})
        with self.waiting(lookout, lambda: limits.acquire({KEY: 5}, timeout=10**5)) as waiter:
            credit(limits, KEY, 5)
            assert waiter.result(PATIENCE)

    def test_a_reset_wakes_a_waiter(self, watched: Store, lookout: Lookout) -> None:
        limits = limits_of(watched, CallLimit(1, 3600))
        assert limits.try_acquire()
        with self.waiting(lookout, lambda: limits.acquire(timeout=10**5)) as waiter:
            watched.reset([limits.scoped[0].scope.key])
            assert waiter.result(PATIENCE)

    def test_a_changed_configuration_wakes_a_waiter_whose_limits_are_stale(
        self, watched: Store, lookout: Lookout
    ) -> None:
        limits = limits_of(watched, CallLimit(1, 3600), version=watched.version())
        assert limits.try_acquire()
        with self.waiting(lookout, lambda: limits.acquire(timeout=10**5)) as waiter:
            watched.advance_version()
            with pytest.raises(StaleConfiguration):
                waiter.result(PATIENCE)

    def test_time_wakes_a_waiter(self, watched: Store, lookout: Lookout) -> None:
        limits = limits_of(watched, CallLimit(1, 3600))
        assert limits.try_acquire()
        with self.waiting(lookout, lambda: limits.acquire(timeout=10**5)) as waiter:
            lookout.advance(3600)
            assert waiter.result(PATIENCE)

    def test_a_waiter_whose_time_is_up_leaves_nothing_behind(self, watched: Store, lookout: Lookout) -> None:
        limits = limits_of(watched, ResourceLimit("db", 1))
        claim = taken(limits)
        with self.waiting(lookout, lambda: limits.acquire(timeout=1)) as waiter:
            lookout.advance(1)
            with pytest.raises(LimitTimeout):
                waiter.result(PATIENCE)
        assert not watched.line.busy
        give_back(limits, claim)
        assert [taken(limits).admitted for _ in range(2)] == [True, False]

    def test_waiters_are_served_in_the_order_in_which_they_came(self, watched: Store, lookout: Lookout) -> None:
        limits = limits_of(watched, ResourceLimit("db", 1))
        claim, served = taken(limits), list[int]()

        def serve(number: int, limits: LimitSet) -> Acquisition:
            with limits.acquire() as held:
                served.append(number)
            return held

        sets = [limits_of(watched, ResourceLimit("db", 1)) for _ in range(3)]
        with (
            self.waiting(lookout, lambda: serve(0, sets[0])) as first,
            self.waiting(lookout, lambda: serve(1, sets[1])) as second,
            self.waiting(lookout, lambda: serve(2, sets[2])) as third,
        ):
            give_back(limits, claim)
            for waiter in (first, second, third):
                assert waiter.result(PATIENCE)
        assert served == [0, 1, 2]
