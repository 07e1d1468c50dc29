"""Permits: never more than the limit has, leased for a while, renewed while their holder lives, and never revived."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from limits_app.acquiring import Acquisition, Store
from limits_app.engine import HOUR, SECOND_US, LeaseHolder, installed, present
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    Contract,
    admissions,
    available,
    give_back,
    holders,
    limits_in,
    limits_of,
    newcomers_come,
    scoped,
    taken,
)

RELEASES: dict[str, Callable[[Acquisition], None]] = {
    "release": Acquisition.release,
    "cancel": Acquisition.cancel,
    "block": lambda acquisition: acquisition.__exit__(None, None, None),
    "task": lambda acquisition: asyncio.run(acquisition.arelease()),
}


class PermitTests(Contract):
    """Counting permits and their holders, while scopes are forgotten and leases end."""

    def test_holders_and_permits_are_counted(self, store: Store) -> None:
        limits = limits_of(store, ResourceLimit("db", 10), CallLimit(100, 60))
        first, second = taken(limits, {"db": 4}), taken(limits)
        assert not taken(limits, {"db": 6}).admitted
        stats = limits.get_stats()["db"]
        assert (stats["used"], stats["available"], stats["holders"]) == (5, 5, 2)
        for claim in (first, second):
            give_back(limits, claim)
        assert holders(limits) == 0
        assert taken(limits, {"db": 10}).admitted
        outcome = limits.try_acquire().outcome
        assert (outcome.allowed, outcome.retry_after, outcome.never) == (False, None, False)
        assert limits.try_acquire().fences == {}
        assert limits.try_acquire({"db": 0}), "an amount of 0 takes no permit"

    def test_an_amount_of_0_takes_no_permit_where_its_key_is_a_quota_in_another_scope(self, store: Store) -> None:
        quota, slots = scoped(store, QuotaLimit.per_day("x", 5)), scoped(store, ResourceLimit("x", 3), entity="parent")
        for parts in ((quota, slots), (slots, quota)):
            limits = limits_in(store, *parts)
            for amount, expected in ((2, 2), (0, 0), (1, 1), (0, 0)):
                with limits.try_acquire({"x": amount}) as acquisition:
                    acquisition.update({"x": 0})
                    stats = limits_in(store, slots).get_stats()["x"]
                    assert (stats["used"], stats["holders"]) == (expected, bool(expected))
                    assert bool(acquisition.fences) is bool(expected)
            assert holders(limits_in(store, slots), "x") == 0

    def test_a_renewed_permit_stays_held_while_idle_scopes_are_forgotten(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 2))
        claim = taken(limits)
        for round_number in range(10):
            for _ in range(12):
                clock.move(store.lease_us - 1)
                assert store.renew([claim]) == []
            newcomers_come(store, f"round {round_number}")
            assert holders(limits) == 1
        give_back(limits, claim)
        give_back(limits, claim)
        assert admissions(limits, 3) == [True, True, False]

    def test_a_permit_is_counted_that_is_leased_while_older_leases_end(self, store: Store, clock: FakeClock) -> None:
        parts = [scoped(store, ResourceLimit("db", 2), entity=name) for name in ("one", "two", "three")]
        limits = limits_in(store, parts[0])
        assert taken(limits).admitted
        for part in parts[1:]:
            clock.move(store.lease_us)
            assert taken(limits_in(store, parts[0], part)).admitted
            assert holders(limits) == 1
        assert admissions(limits, 2) == [True, False]

    def test_of_two_permits_of_a_claim_only_the_expired_one_is_lost(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1), ResourceLimit("gpu", 1, max_hold_seconds=1))
        both = taken(limits)
        clock.move(SECOND_US)
        gpu, db = taken(limits, left_out={"db"}), taken(limits, left_out={"gpu"})
        assert (gpu.admitted, db.admitted) == (True, False)
        assert store.renew([both, gpu]) == [both]
        give_back(limits, both)
        assert [holders(limits, key) for key in ("db", "gpu")] == [0, 1]
        give_back(limits, gpu)
        assert taken(limits).admitted

    def test_fencing_numbers_only_grow(self, store: Store, clock: FakeClock) -> None:
        limits, last = limits_of(store, ResourceLimit("db", 2)), 0
        for step in range(30):
            with limits.try_acquire() as acquisition:
                assert acquisition.fences["db"] > last
                last = acquisition.fences["db"]
                clock.move((0, 1, -1, 5_000_000)[step % 4])
            if step % 10 == 0:
                clock.advance(100_000)
                newcomers_come(store, f"step {step}", 30)


class Leases(Contract):
    """How long a permit is held that is not released."""

    def test_a_permit_that_is_not_renewed_is_available_when_its_lease_ends(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        assert taken(limits).admitted
        clock.move(store.lease_us - 1)
        assert not taken(limits).admitted
        assert holders(limits) == 1
        clock.move(1)
        assert holders(limits) == 0
        assert admissions(limits, 2) == [True, False]

    def test_a_renewed_lease_lasts_a_whole_lease_from_then_on(self, store: Store, clock: FakeClock) -> None:
        parts = [scoped(store, ResourceLimit("db", 1), entity=name) for name in ("one", "two")]
        family, singles = limits_in(store, *parts), [limits_in(store, part) for part in parts]
        claim = taken(family)
        for _ in range(10):
            clock.move(store.lease_us - 1)
            assert store.renew([claim]) == []
            assert [taken(single).admitted for single in singles] == [False, False]
        clock.move(store.lease_us)
        assert [taken(single).admitted for single in singles] == [True, True]

    def test_renewal_never_revives_a_lease_that_has_ended(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        late = taken(limits)
        clock.move(store.lease_us)
        assert store.renew([late]) == [late]
        other = taken(limits)
        assert other.admitted
        assert store.renew([late, other]) == [late]
        assert holders(limits) == 1

    def test_one_call_renews_many_and_returns_those_that_are_lost(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 10))
        early = [taken(limits) for _ in range(3)]
        clock.move(store.lease_us // 2)
        later = [taken(limits) for _ in range(3)]
        clock.move(store.lease_us // 2)
        assert store.renew([*early, *later]) == early
        assert store.renew([]) == []
        clock.move(store.lease_us - 1)
        assert holders(limits) == 3

    def test_a_permit_is_lost_after_the_longest_hold(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1, max_hold_seconds=25))
        claim, start = taken(limits), clock.now_us
        while clock.now_us < start + 24_000_000:
            clock.advance(2)
            assert store.renew([claim]) == []
        clock.move(start + 24_999_999 - clock.now_us)
        assert not taken(limits).admitted
        assert store.renew([claim]) == []
        clock.move(1)
        assert store.renew([claim]) == [claim]
        assert taken(limits).admitted
        short = limits_of(store, ResourceLimit("db", 1, max_hold_seconds=0.5), entity="shorter than a lease")
        assert taken(short).admitted
        clock.move(499_999)
        assert not taken(short).admitted
        clock.move(1)
        assert taken(short).admitted

    @pytest.mark.parametrize("newcomers", [0, 20])
    def test_a_late_release_changes_nothing(self, store: Store, clock: FakeClock, newcomers: int) -> None:
        limits = limits_of(store, ResourceLimit("db", 1), CallLimit(10, HOUR))
        late = taken(limits)
        clock.move(store.lease_us)
        newcomers_come(store, "newcomer", newcomers)
        other = taken(limits)
        give_back(limits, late)
        assert holders(limits) == 1
        assert not taken(limits).admitted
        give_back(limits, other)
        assert available(limits, "db") == 1
        later = taken(limits)
        clock.move(store.lease_us)
        give_back(limits, later)
        assert admissions(limits, 2) == [True, False]

    def test_a_permit_is_renewed_while_its_acquisition_exists(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        acquisition = limits.try_acquire()
        clock.move(20 * store.lease_us)
        assert not limits_of(store, ResourceLimit("db", 1)).try_acquire()
        acquisition.release()
        assert available(limits, "db") == 1
        assert limits.try_acquire()  # without a reference
        gc.collect()
        clock.move(2 * store.lease_us)
        assert limits_of(store, ResourceLimit("db", 1)).try_acquire()

    @pytest.fixture
    def lost(self) -> Iterator[list[LeaseHolder]]:
        """The acquisitions whose holders are notified of a lost lease."""
        lost = list[LeaseHolder]()
        with installed(replace(present(), lease_lost=lost.append)):
            yield lost

    def test_a_lost_lease_is_reported_once(
        self, store: Store, clock: FakeClock, lost: list[LeaseHolder], caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = limits_of(store, ResourceLimit("db", 1, max_hold_seconds=30))
        acquisition = limits.try_acquire()
        with caplog.at_level(logging.WARNING, "limits_app"):
            clock.advance(60)
        assert lost == [acquisition]
        assert "db" in caplog.text
        other = taken(limits)
        acquisition.release()
        assert not taken(limits).admitted
        assert other.admitted
        assert lost == [acquisition]

    @pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
    def test_a_lost_lease_is_reported_by_its_release(  # noqa: PLR0917 - fixtures, by name
        self,
        store: Store,
        clock: FakeClock,
        lost: list[LeaseHolder],
        caplog: pytest.LogCaptureFixture,
        release: Callable[[Acquisition], None],
    ) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        kept = limits.try_acquire()
        clock.move(3 * store.lease_us)
        for _ in range(2):
            release(kept)
        assert lost == [], "it was renewed"
        acquisition = limits.try_acquire()
        _freeze(store, clock)
        assert taken(limits).admitted
        with caplog.at_level(logging.WARNING, "limits_app"):
            release(acquisition)
        assert lost == [acquisition]
        assert caplog.text.count("the lease of db ran out") == 1
        release(acquisition)
        clock.advance(60)
        assert lost == [acquisition], "once"

    def test_the_callback_of_a_lost_lease_may_use_the_store(self, store: Store, clock: FakeClock) -> None:
        limits, seen = limits_of(store, ResourceLimit("db", 1)), list[object]()

        def look(_: LeaseHolder) -> None:
            seen.extend([holders(limits), bool(limits.try_acquire({"db": 1}))])

        acquisition = limits.try_acquire()
        _freeze(store, clock)
        assert taken(limits).admitted
        with installed(replace(present(), lease_lost=look)):
            acquisition.release()
        assert seen == [1, False]

    def test_several_lost_leases_of_an_acquisition_are_reported_once(
        self, store: Store, clock: FakeClock, lost: list[LeaseHolder]
    ) -> None:
        names = [f"{number}" for number in range(4)]
        parts = [scoped(store, ResourceLimit("db", 1), RateLimit("tokens", 9, 60), entity=name) for name in names]
        some, all_of_it = limits_in(store, parts[0], parts[1]), limits_in(store, parts[2], parts[3])
        acquisitions = [some.try_acquire({"tokens": 5}), all_of_it.try_acquire({"tokens": 5})]
        for acquisition in acquisitions:
            acquisition.update({"tokens": 1})
        _freeze(store, clock)
        assert taken(limits_in(store, parts[0])).admitted
        acquisitions[0].release()
        assert lost == acquisitions[:1]
        assert taken(all_of_it).admitted
        acquisitions[1].release()
        assert lost == acquisitions
        assert [available(limits_in(store, part), "tokens") for part in parts] == [9] * 4

    def test_a_lost_lease_is_reported_under_changed_limits(
        self, store: Store, clock: FakeClock, lost: list[LeaseHolder]
    ) -> None:
        before, after = [limits_of(store, ResourceLimit("db", capacity)) for capacity in (1, 2)]
        acquisition = before.try_acquire()
        _freeze(store, clock)
        assert taken(after, {"db": 2}).admitted
        acquisition.release()
        assert lost == [acquisition]
        assert available(after, "db") == 0


def _freeze(store: Store, clock: FakeClock) -> None:
    """Let a lease expire without renewal, as in a process that is stopped."""
    clock.now_us += store.lease_us
