"""Leases: permits are lent for a while, renewed while their holder lives, and never revived."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator

import pytest

from limits_app.core.acquisition import Acquisition
from limits_app.core.limits import RateLimit, ResourceLimit
from limits_app.core.modes import HOOKS
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    Contract,
    available,
    give_back,
    limits_in,
    limits_of,
    scoped,
    taken,
)

__all__ = ["Leases"]

RELEASES: dict[str, Callable[[Acquisition], None]] = {
    "release": Acquisition.release,
    "cancel": Acquisition.cancel,
    "block": lambda held: held.__exit__(None, None, None),
    "task": lambda held: asyncio.run(held.arelease()),
}


class Leases(Contract):
    """How long a permit is held without anybody giving it back."""

    def test_a_permit_that_is_not_renewed_comes_back_when_its_lease_ends(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        assert taken(limits).admitted
        clock.move(store.lease_us - 1)
        assert not taken(limits).admitted
        assert limits.get_stats()["db"]["holders"] == 1
        clock.move(1)
        assert limits.get_stats()["db"]["holders"] == 0
        assert taken(limits).admitted
        assert not taken(limits).admitted

    def test_each_permit_has_a_lease_of_its_own(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 3))
        for _ in range(3):
            assert taken(limits).admitted
            clock.move(store.lease_us // 4)
        clock.move(store.lease_us // 4)
        assert [taken(limits).admitted for _ in range(2)] == [True, False]
        clock.move(store.lease_us // 4)
        assert limits.get_stats()["db"]["available"] == 1

    def test_one_lease_may_hold_several_permits(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 5))
        claim = taken(limits, {"db": 3})
        assert claim.admitted
        assert not taken(limits, {"db": 3}).admitted
        assert taken(limits, {"db": 2}).admitted
        give_back(limits, claim)
        stats = limits.get_stats()["db"]
        assert (stats["used"], stats["holders"]) == (2, 1)
        clock.move(store.lease_us)
        assert limits.get_stats()["db"]["available"] == 5

    def test_a_renewed_lease_goes_on_for_a_whole_lease_from_then_on(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        claim = taken(limits)
        for _ in range(10):
            clock.move(store.lease_us - 1)
            assert store.renew([claim]) == []
            assert not taken(limits).admitted
        clock.move(store.lease_us)
        assert taken(limits).admitted

    def test_renewal_never_revives_a_lease_that_has_ended(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        late = taken(limits)
        clock.move(store.lease_us)
        assert store.renew([late]) == [late]
        other = taken(limits)
        assert other.admitted
        assert store.renew([late, other]) == [late]
        assert limits.get_stats()["db"]["holders"] == 1

    def test_one_call_renews_many_and_returns_those_that_are_lost(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 10))
        early = [taken(limits) for _ in range(3)]
        clock.move(store.lease_us // 2)
        later = [taken(limits) for _ in range(3)]
        clock.move(store.lease_us // 2)
        assert store.renew([*early, *later]) == early
        assert store.renew([]) == []
        clock.move(store.lease_us - 1)
        assert limits.get_stats()["db"]["holders"] == 3

    def test_a_claim_with_one_lost_lease_is_lost(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 2), ResourceLimit("gpu", 2, max_hold_seconds=0.001))
        claim = taken(limits)
        clock.move(1000)
        assert store.renew([claim]) == [claim]

    def test_a_permit_is_taken_away_when_it_was_held_for_as_long_as_it_may_be(
        self, store: Store, clock: FakeClock
    ) -> None:
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

    def test_a_hold_shorter_than_a_lease_shortens_the_lease(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1, max_hold_seconds=0.5))
        assert taken(limits).admitted
        clock.move(499_999)
        assert not taken(limits).admitted
        clock.move(1)
        assert taken(limits).admitted

    def test_a_late_release_changes_nothing(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        late = taken(limits)
        clock.move(store.lease_us)
        other = taken(limits)
        give_back(limits, late)
        assert limits.get_stats()["db"]["holders"] == 1
        assert not taken(limits).admitted
        give_back(limits, other)
        assert limits.get_stats()["db"]["available"] == 1

    def test_a_late_release_gives_nothing_back_twice_when_nobody_came_between(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, ResourceLimit("db", 2))
        late = taken(limits)
        clock.move(store.lease_us)
        give_back(limits, late)
        assert [taken(limits).admitted for _ in range(3)] == [True, True, False]

    def test_leases_of_several_scopes_are_renewed_and_given_back_together(self, store: Store, clock: FakeClock) -> None:
        parts = [scoped(store, ResourceLimit("db", 1), entity=who) for who in ("one", "two")]
        family, singles = limits_in(store, *parts), [limits_in(store, part) for part in parts]
        claim = taken(family)
        clock.move(store.lease_us - 1)
        assert store.renew([claim]) == []
        clock.move(store.lease_us - 1)
        assert [taken(single).admitted for single in singles] == [False, False]
        give_back(family, claim)
        assert [taken(single).admitted for single in singles] == [True, True]

    def test_what_is_held_is_renewed_while_its_holder_refers_to_it(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        held = limits.try_acquire()
        clock.move(20 * store.lease_us)
        assert not limits_of(store, ResourceLimit("db", 1)).try_acquire()
        held.release()
        assert limits.get_stats()["db"]["available"] == 1

    def test_what_nobody_refers_to_any_more_runs_out(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        assert limits.try_acquire()
        gc.collect()
        clock.move(2 * store.lease_us)
        assert limits_of(store, ResourceLimit("db", 1)).try_acquire()

    @pytest.fixture
    def lost(self) -> Iterator[list[Acquisition]]:
        """The holders that are notified of a lost lease."""
        lost = list[Acquisition]()
        HOOKS.lease_lost.append(lost.append)
        yield lost
        HOOKS.lease_lost.remove(lost.append)

    def test_a_holder_that_outlives_its_lease_is_told(
        self, store: Store, clock: FakeClock, lost: list[Acquisition], caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = limits_of(store, ResourceLimit("db", 1, max_hold_seconds=30))
        held = limits.try_acquire()
        with caplog.at_level(logging.WARNING, "limits_app"):
            clock.advance(60)
        assert lost == [held]
        assert "db" in caplog.text
        other = taken(limits)
        held.release()
        assert not taken(limits).admitted
        assert other.admitted
        assert lost == [held], "once"

    @pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
    def test_a_holder_that_finds_out_when_it_releases_is_told_then(  # noqa: PLR0917 - fixtures, by name
        self,
        store: Store,
        clock: FakeClock,
        lost: list[Acquisition],
        caplog: pytest.LogCaptureFixture,
        release: Callable[[Acquisition], None],
    ) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        held = limits.try_acquire()
        _freeze(store, clock)
        assert taken(limits).admitted
        with caplog.at_level(logging.WARNING, "limits_app"):
            release(held)
        assert lost == [held]
        assert caplog.text.count("the lease of db ran out") == 1
        release(held)
        clock.advance(60)
        assert lost == [held], "once"

    def test_whoever_is_told_may_ask_the_store(self, store: Store, clock: FakeClock) -> None:
        limits, seen = limits_of(store, ResourceLimit("db", 1)), list[object]()

        def look(_: Acquisition) -> None:
            seen.append(limits.get_stats()["db"]["holders"])
            seen.append(bool(limits.try_acquire({"db": 1})))

        held = limits.try_acquire()
        _freeze(store, clock)
        assert taken(limits).admitted
        HOOKS.lease_lost.append(look)
        try:
            held.release()
        finally:
            HOOKS.lease_lost.remove(look)
        assert seen == [1, False]

    def test_a_holder_is_told_once_however_much_of_it_is_lost(
        self, store: Store, clock: FakeClock, lost: list[Acquisition]
    ) -> None:
        names = [f"{number}" for number in range(4)]
        parts = [scoped(store, ResourceLimit("db", 1), RateLimit("tokens", 9, 60), entity=who) for who in names]
        family, first = limits_in(store, *parts), limits_in(store, parts[0])
        some, all_of_it = limits_in(store, parts[0], parts[1]), limits_in(store, parts[2], parts[3])
        held = [some.try_acquire({"tokens": 5}), all_of_it.try_acquire({"tokens": 5})]
        for one in held:
            one.update({"tokens": 1})
        _freeze(store, clock)
        assert taken(first).admitted
        held[0].release()
        assert lost == held[:1]
        assert taken(all_of_it).admitted
        held[1].release()
        assert lost == held
        assert [available(limits_in(store, part), "tokens") for part in family.scoped] == [9] * 4

    def test_a_holder_is_told_where_its_limits_have_changed_since(
        self, store: Store, clock: FakeClock, lost: list[Acquisition]
    ) -> None:
        before, after = [limits_of(store, ResourceLimit("db", capacity)) for capacity in (1, 2)]
        held = before.try_acquire()
        _freeze(store, clock)
        assert taken(after, {"db": 2}).admitted
        held.release()
        assert lost == [held]
        assert after.get_stats()["db"]["available"] == 0

    @pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
    def test_a_holder_that_has_lost_nothing_is_told_nothing(
        self, store: Store, clock: FakeClock, lost: list[Acquisition], release: Callable[[Acquisition], None]
    ) -> None:
        parts = [scoped(store, ResourceLimit("db", 1), entity=who) for who in ("one", "two")]
        for limits in (limits_in(store, *parts), limits_in(store, parts[0])):
            held = limits.try_acquire()
            clock.move(3 * store.lease_us)
            release(held)
            release(held)
            clock.move(3 * store.lease_us)
        assert lost == []


def _freeze(store: Store, clock: FakeClock) -> None:
    """Let a lease expire, as in a process that is stopped: it is not renewed."""
    clock.now_us += store.lease_us
