"""Permits: never more than there are, whatever is forgotten, and fencing numbers that only grow."""

from __future__ import annotations

from limits_app.core.limits import CallLimit, QuotaLimit, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import Contract, give_back, limits_in, limits_of, scoped, taken

__all__ = ["Permits"]


def newcomers_come(store: Store, name: str, count: int = 300) -> None:
    """Use many scopes once, so that the store looks for idle ones."""
    for number in range(count):
        assert limits_of(store, CallLimit(1, 0.001), entity=f"{name} {number}").try_acquire()


class Permits(Contract):
    """Counting holders."""

    def test_no_more_are_held_than_there_are(self, store: Store) -> None:
        limits = limits_of(store, ResourceLimit("db", 3))
        claims = [taken(limits) for _ in range(5)]
        assert [claim.admitted for claim in claims] == [True, True, True, False, False]
        give_back(limits, claims[1])
        assert [taken(limits).admitted for _ in range(2)] == [True, False]

    def test_holders_and_permits_are_counted(self, store: Store) -> None:
        limits = limits_of(store, ResourceLimit("db", 10))
        first, second = taken(limits, {"db": 4}), taken(limits, {"db": 1})
        stats = limits.get_stats()["db"]
        assert (stats["used"], stats["available"], stats["holders"]) == (5, 5, 2)
        for claim in (first, second):
            give_back(limits, claim)
        stats = limits.get_stats()["db"]
        assert (stats["used"], stats["available"], stats["holders"]) == (0, 10, 0)

    def test_an_amount_of_0_takes_no_permit_also_where_its_key_is_a_quota_in_another_scope(self, store: Store) -> None:
        quota, slots = scoped(store, QuotaLimit.per_day("x", 5)), scoped(store, ResourceLimit("x", 3), entity="parent")
        for parts in ((quota, slots), (slots, quota)):
            limits = limits_in(store, *parts)
            for amount, held in ((2, 2), (0, 0), (1, 1), (0, 0)):
                with limits.try_acquire({"x": amount}) as acquisition:
                    acquisition.update({"x": 0})
                    stats = limits_in(store, slots).get_stats()["x"]
                    assert (stats["used"], stats["holders"]) == (held, bool(held))
                    assert bool(acquisition.fences) is bool(held)
            assert limits_in(store, slots).get_stats()["x"]["holders"] == 0

    def test_a_permit_that_is_held_stays_held_while_idle_scopes_are_forgotten(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        claim = taken(limits)
        for round_number in range(10):
            for _ in range(12):
                clock.move(store.lease_us - 1)
                assert store.renew([claim]) == []
            newcomers_come(store, f"round {round_number}", 40)
            assert limits.get_stats()["db"]["holders"] == 1
            assert not taken(limits).admitted
        give_back(limits, claim)
        assert [taken(limits).admitted for _ in range(2)] == [True, False]

    def test_a_permit_is_counted_that_is_lent_while_the_store_looks_for_what_is_idle(
        self, store: Store, clock: FakeClock
    ) -> None:
        parts = [scoped(store, ResourceLimit("db", 2), entity=who) for who in ("one", "two", "three")]
        one = limits_in(store, parts[0])
        assert taken(one).admitted
        for part in parts[1:]:
            clock.move(store.lease_us)
            assert taken(limits_in(store, parts[0], part)).admitted
            assert one.get_stats()["db"]["holders"] == 1
        assert [taken(one).admitted for _ in range(2)] == [True, False]

    def test_of_two_permits_of_a_claim_only_the_one_that_ran_out_is_lost(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 1), ResourceLimit("gpu", 1, max_hold_seconds=1))
        both = taken(limits)
        clock.move(1_000_000)
        gpu, db = taken(limits, left_out={"db"}), taken(limits, left_out={"gpu"})
        assert (gpu.admitted, db.admitted) == (True, False)
        assert store.renew([both, gpu]) == [both]
        give_back(limits, both)
        assert [limits.get_stats()[key]["holders"] for key in ("db", "gpu")] == [0, 1]
        give_back(limits, gpu)
        assert taken(limits).admitted

    def test_a_late_release_changes_nothing_after_the_store_has_looked_for_what_is_idle(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, ResourceLimit("db", 1), CallLimit(10, 3600))
        late = taken(limits)
        clock.move(store.lease_us)
        newcomers_come(store, "newcomer", 20)
        other = taken(limits)
        give_back(limits, late)
        assert limits.get_stats()["db"]["holders"] == 1
        assert not taken(limits).admitted
        give_back(limits, other)
        assert limits.get_stats()["db"]["available"] == 1

    def test_a_permit_is_given_back_once_even_when_its_scope_looked_idle(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit("db", 2))
        claim = taken(limits)
        for _ in range(40):
            clock.move(store.lease_us // 2)
            assert store.renew([claim]) == []
        newcomers_come(store, "newcomer")
        give_back(limits, claim)
        assert [taken(limits).admitted for _ in range(3)] == [True, True, False]

    def test_fencing_numbers_only_grow(self, store: Store, clock: FakeClock) -> None:
        limits, last = limits_of(store, ResourceLimit("db", 2)), 0
        for step in range(30):
            held = limits.try_acquire()
            assert held.fences["db"] > last
            last = held.fences["db"]
            clock.move((0, 1, -1, 5_000_000)[step % 4])
            held.release()
        assert limits.try_acquire().fences["db"] > last

    def test_fencing_numbers_grow_on_after_idle_state_was_forgotten(self, store: Store, clock: FakeClock) -> None:
        limits, last = limits_of(store, ResourceLimit("db", 1)), 0
        for round_number in range(3):
            for _ in range(50):
                claim = taken(limits)
                give_back(limits, claim)
            with limits.try_acquire() as held:
                assert held.fences["db"] > last
                last = held.fences["db"]
            clock.advance(100_000)
            newcomers_come(store, f"round {round_number}", 30)

    def test_a_refusal_has_no_fencing_number(self, store: Store) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        assert taken(limits).admitted
        assert limits.try_acquire().fences == {}

    def test_a_refusal_for_want_of_a_permit_names_no_time(self, store: Store) -> None:
        limits = limits_of(store, ResourceLimit("db", 1))
        assert taken(limits).admitted
        outcome = limits.try_acquire().outcome
        assert (outcome.allowed, outcome.retry_after, outcome.never) == (False, None, False)

    def test_an_explicit_nothing_leaves_a_permit_out(self, store: Store) -> None:
        limits = limits_of(store, ResourceLimit("db", 1), CallLimit(10, 60))
        assert taken(limits).admitted
        assert not limits.try_acquire()
        assert limits.try_acquire({"db": 0})
