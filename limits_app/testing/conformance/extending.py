"""Extending: amounts that an acquisition takes later are charged, renewed and settled with its first ones."""

from __future__ import annotations

import pytest

from limits_app.core.errors import LimitExceeded, StaleConfiguration
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import ALGORITHMS, KEY, REFUNDING, Contract, holders, limits_of, used

DB = ResourceLimit("db", 3)


class Extending(Contract):
    """What `extend` charges, and what the end of the acquisition does with it."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_an_extension_is_charged_at_once_and_its_use_is_compared_with_the_sum(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        for entity, reported, left in (("less", 35, 35), ("more", 70, 70), ("same", 60, 60)):
            limits = limits_of(store, RateLimit(KEY, 100, 3600, algorithm), CallLimit(5, 3600), entity=entity)
            with limits.try_acquire({KEY: 20}) as acquired:
                acquired.extend({KEY: 30})
                acquired.extend({KEY: 10})
                assert (used(limits), used(limits, "call_count")) == (60, 1)
                acquired.update({KEY: reported})
            assert used(limits) == (left if algorithm in REFUNDING else max(left, 60))

    def test_a_rejected_extension_charges_nothing_and_the_acquisition_goes_on(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 100, 3600), DB)
        with limits.try_acquire({KEY: 20}) as acquired:
            with pytest.raises(LimitExceeded) as caught:
                acquired.extend({KEY: 5, "db": 3})
            assert [one.key for one in caught.value.outcome.violations] == ["db"]
            assert (used(limits), holders(limits)) == (20, 1)
            acquired.extend({KEY: 5, "db": 2})
            acquired.update({KEY: 21})
        assert (used(limits), holders(limits)) == (21, 0)

    def test_permits_of_an_extension_are_renewed_and_returned_with_the_first(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, DB)
        acquired = limits.try_acquire()
        first = acquired.fences["db"]
        acquired.extend({"db": 2})
        assert acquired.fences["db"] > first
        for _ in range(6):
            clock.move(store.lease_us // 2)
            assert not limits.try_acquire()
        acquired.release()
        assert (used(limits, "db"), acquired.lost_lease) == (0, False)

    def test_a_block_that_raises_refunds_the_extension_too(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 100, 3600), DB)
        acquired = limits.try_acquire({KEY: 20})
        acquired.extend({KEY: 30, "db": 1})
        with pytest.raises(ZeroDivisionError), acquired:
            raise ZeroDivisionError
        assert (used(limits), used(limits, "db")) == (0, 0)

    def test_an_extension_by_limits_that_have_changed_charges_nothing(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 100, 3600), version=store.version())
        acquired = limits.try_acquire({KEY: 20})
        store.advance_version()
        with pytest.raises(StaleConfiguration):
            acquired.extend({KEY: 30})
        acquired.update({KEY: 7})
        acquired.release()
        assert used(limits_of(store, RateLimit(KEY, 100, 3600))) == 7
