"""The engine over records without a store: what no store shows. The conformance suite tests it in the memory store."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction

import pytest

from limits_app import engine
from limits_app.engine.algorithms.rule import NEVER_US
from limits_app.engine.amounts import Amount
from limits_app.engine.claims import Claim
from limits_app.engine.counting import hour_ends, hour_of
from limits_app.engine.holders import token_holder
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    CountedUnit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.plan import PlanShape, RequestPlan
from limits_app.engine.planning import plan_for
from limits_app.engine.record import LEASE_US, FinishedUsage, Lease, LeaseId, Record, new_record, schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from tests.engine.algorithms.driven import NOW, SECOND

TPM = RateLimit("tpm", 10, 10)
FINER = RateLimit("tpm", 7, 60)
WINDOW = RateLimit("window", 10, 60, RateLimitAlgorithm.FIXED_WINDOW)
CALLS = CallLimit(5, 60)
DB = ResourceLimit("db", 2)
METERED: dict[str, AnyLimit] = {
    **{str(algorithm): RateLimit("key", 10, 60, algorithm) for algorithm in RateLimitAlgorithm},
    "month": QuotaLimit.per_month("key", 10),
    "session": QuotaLimit.per_session("key", 10, 60),
}


class OneScope:
    """The record of one scope, and the steps of a store over it; times are microseconds after NOW."""

    def __init__(self, *limits: AnyLimit, counts_usage: bool = False) -> None:
        self.scoped = ScopedLimits(scope_of("engine", "one"), schema_of(limits, counts_usage=counts_usage))
        self.record = new_record(self.scoped.schema)

    def change(self, *limits: AnyLimit, at: int = 0) -> None:
        """Give the scope other limits, and migrate its record."""
        self.scoped = ScopedLimits(self.scoped.scope, schema_of(limits))
        self.record = engine.carry_over(self.record, self.scoped.schema, NOW + at)

    def claim(self, **requested: Amount) -> Claim:
        """A claim that no store has decided on."""
        plan: RequestPlan = plan_for([self.scoped], requested, left_out=())
        return Claim(plan, plan.shape.amounts(requested)[0])

    def charge(self, at: int = 0, **requested: Amount) -> Claim:
        """Decide on a claim."""
        claim = self.claim(**requested)
        assert engine.charge(claim, [self.record], NOW + at) is claim.admitted
        return claim

    def settle(self, claim: Claim, at: int = 0, **changes: Amount) -> bool:
        """Settle changes in units; permits are always returned."""
        parts = [
            -claim.amounts[limit.position]
            if limit.rule.is_permit
            else int(Fraction(str(changes.get(limit.key, 0))) * limit.rule.parts_per_unit)
            for limit in claim.shape.limits
        ]
        return engine.settle(claim, [self.record], NOW + at, parts)

    def used(self, at: int = 0) -> dict[str, Fraction]:
        """The use of every limit in units."""
        uses = zip(self.record.schema.rules, self.record.states, strict=True)
        return {rule.key: Fraction(rule.used(state, NOW + at), rule.parts_per_unit) for rule, state in uses}


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_record_of_other_limits_is_saved_unless_they_block(is_blocked: bool) -> None:
    scope = OneScope(TPM)
    scope.charge(tpm=4)
    scope.change(Blocked() if is_blocked else CALLS)
    assert scope.record.changed is not is_blocked


@pytest.mark.parametrize("change", [0, -1, 1])
def test_a_settled_record_is_saved_where_it_has_changed(change: int) -> None:
    scope = OneScope(TPM)
    claim = scope.charge(tpm=4)
    scope.record.changed = False
    assert scope.settle(claim, tpm=change)
    assert scope.record.changed is (change != 0)


def test_a_rejection_saves_the_leases_that_it_has_reclaimed() -> None:
    scope = OneScope(DB, CallLimit(1, 3600))
    scope.charge(db=2)
    scope.record.changed = False
    assert not scope.charge(at=LEASE_US).admitted
    assert scope.record.changed
    assert scope.record.leases == {}
    assert scope.used() == {"db": 0, "call_count": 1}


def test_the_lease_of_an_ended_process_is_reclaimed() -> None:
    scope = OneScope(DB)
    gone, kept = scope.charge(), scope.charge()
    claim = scope.claim()
    assert not engine.charge(claim, [scope.record], NOW, lambda holder: False)
    assert engine.charge(claim, [scope.record], NOW, lambda holder: holder == gone.holder)
    assert {holder for _, holder in scope.record.leases} == {kept.holder, claim.holder}


@pytest.mark.parametrize("lease_us", [LEASE_US, 5 * LEASE_US])
@pytest.mark.parametrize(("back", "leases_left"), [(0, 1), (1, 2), (1.5, 1), (3, 1)])
def test_lease_from_before_the_clock_was_set_back_lasts_at_most_twice_as_long(
    lease_us: int, back: float, leases_left: int
) -> None:
    scope, holder = OneScope(DB), token_holder(lease_us)
    scope.charge()
    scope.record.leases = {("db", holder): (1, NOW + lease_us, NOW + 100 * lease_us)}
    now = NOW - round(back * lease_us)
    engine.reclaim(scope.record, now, lambda _holder: False)
    assert [expires_at - now for _, expires_at, _ in scope.record.leases.values()] == [leases_left * lease_us]


def test_renewed_leases_are_saved() -> None:
    scope = OneScope(DB)
    claim = scope.charge()
    scope.record.changed = False
    assert engine.renew(claim, [scope.record], NOW + SECOND)
    assert scope.record.changed


def test_peek_leaves_out_the_leases_of_ended_processes() -> None:
    scope = OneScope(DB)
    gone, _kept = scope.charge(), scope.charge()
    claim = scope.claim()
    engine.peek(claim, [scope.record], NOW, lambda holder: holder == gone.holder)
    assert claim.states[0][:2] == (1, 1)
    assert scope.used() == {"db": 2}


def test_state_from_before_the_clock_was_set_back_is_saved_also_by_a_rejection() -> None:
    scope = OneScope(WINDOW)
    scope.charge(window=10)
    scope.record.changed = False
    assert not scope.charge(at=-1000 * SECOND, window=1).admitted
    assert scope.record.changed


def test_reclaiming_returns_whether_a_state_has_changed() -> None:
    scope = OneScope(DB, TPM)
    assert not engine.reclaim(scope.record, NOW)
    scope.charge(tpm=1)
    assert not engine.reclaim(scope.record, NOW + LEASE_US - 1)
    assert not engine.reclaim(scope.record, NOW, lambda holder: False)
    assert engine.reclaim(scope.record, NOW + LEASE_US)
    assert scope.record.leases == {}


def restored_at(record: Record) -> int:
    """The first time from which a record equals an unused one."""
    return bisect_left(range(NOW + 40 * 86_400 * SECOND), True, key=lambda at: engine.is_restored(record, at, NOW))


def test_a_record_is_restored_when_all_its_limits_are() -> None:
    scope = OneScope(TPM, WINDOW)
    assert engine.is_restored(scope.record, NOW, NOW)
    scope.charge(tpm=5)
    assert restored_at(scope.record) == NOW + 5 * SECOND
    scope.charge(window=1)
    assert restored_at(scope.record) == NOW + 60 * SECOND
    assert engine.is_restored(new_record(schema_of(())), 0, NOW)


def test_a_record_is_never_restored_while_permits_are_held() -> None:
    scope = OneScope(DB)
    claim = scope.charge()
    assert not engine.is_restored(scope.record, NEVER_US - 1, NOW)
    scope.settle(claim)
    assert engine.is_restored(scope.record, NOW, NOW)


@pytest.mark.parametrize("part", [16, 64])
@pytest.mark.parametrize("algorithm", list(RateLimitAlgorithm))
def test_a_record_is_nearly_restored_when_one_part_of_its_time_is_left(
    algorithm: RateLimitAlgorithm, part: int
) -> None:
    scope = OneScope(RateLimit("key", 6, 60, algorithm))
    scope.charge(key=6)
    last_part = 60 * SECOND - 60 * SECOND // part
    assert not engine.is_nearly_restored(scope.record, NOW + last_part - 1, part)
    assert engine.is_nearly_restored(scope.record, NOW + last_part, part)


@pytest.mark.parametrize("limit", [DB, QuotaLimit.per_month("db", 10), QuotaLimit.per_session("db", 10, 60)], ids=repr)
def test_permits_and_quotas_are_never_nearly_restored(limit: AnyLimit) -> None:
    scope = OneScope(limit)
    scope.charge(db=1)
    restored_at = NOW + LEASE_US if limit is DB else scope.record.schema.rules[0].restored_at(scope.record.states[0])
    assert not engine.is_nearly_restored(scope.record, restored_at - 1, 16)
    if limit is DB:  # the permits count as held until their leases are reclaimed
        assert not engine.is_nearly_restored(scope.record, restored_at, 16)


def test_use_of_an_absent_limit_and_its_leases_are_not_nearly_restored() -> None:
    scope = OneScope(WINDOW, DB)
    scope.charge(window=10, db=1)
    scope.change(CALLS)
    assert not engine.is_nearly_restored(scope.record, NOW + 56 * SECOND, 16)
    assert not engine.is_nearly_restored(scope.record, NOW + LEASE_US - 1, 1)
    assert engine.is_nearly_restored(scope.record, NOW + LEASE_US, 1)
    scope.record.leases.clear()
    assert engine.is_nearly_restored(scope.record, NOW + 57 * SECOND, 16)


@pytest.mark.parametrize("algorithm", list(RateLimitAlgorithm))
def test_what_is_forgotten_when_nearly_restored_adds_a_fifteenth_at_most(algorithm: RateLimitAlgorithm) -> None:
    scope, admitted = OneScope(RateLimit("key", 32, 32, algorithm)), 0
    for now in range(0, 960 * SECOND, SECOND // 8):
        admitted += bool(scope.charge(at=now, key=1).admitted)
        if engine.is_nearly_restored(scope.record, NOW + now, 16):
            scope = OneScope(RateLimit("key", 32, 32, algorithm))
    assert admitted <= 32 + 960 * 16 / 15


def test_a_record_is_restored_when_the_use_of_an_absent_limit_is() -> None:
    scope = OneScope(TPM)
    scope.charge(tpm=5)
    scope.change(CALLS)
    assert restored_at(scope.record) == NOW + 5 * SECOND


def test_a_record_is_not_restored_while_leases_of_a_removed_limit_last() -> None:
    scope = OneScope(DB, TPM)
    scope.charge(tpm=1)
    scope.change(TPM)
    assert restored_at(scope.record) == NOW + LEASE_US


@pytest.mark.parametrize("kind", METERED)
def test_use_of_an_absent_limit_is_settled_reset_and_forgotten_in_time(kind: str) -> None:
    scope = OneScope(METERED[kind])
    first, second = scope.charge(key=4), scope.charge(key=1)
    scope.change(TPM)
    assert scope.settle(first, key=2)
    scope.change(METERED[kind])
    assert scope.used() == {"key": 7}
    scope.change(TPM)
    ends = restored_at(scope.record)
    assert ends > NOW
    engine.reset(scope.record, ["tpm"], now=0, slices=None)
    assert scope.record.kept
    engine.reset(scope.record, ["key"], now=0, slices=None)
    assert not scope.record.kept
    assert scope.settle(second, key=2)
    assert not scope.record.kept
    scope.change(METERED[kind])
    scope.charge(key=4)
    scope.change(TPM)
    assert scope.record.kept
    scope.change(DB, at=ends - NOW + 60 * SECOND)
    assert not scope.record.kept


def test_what_the_reset_of_an_absent_limit_has_forgotten_is_not_refunded() -> None:
    scope = OneScope(TPM)
    first, second = scope.charge(tpm=6), scope.charge(tpm=3)
    scope.change(DB)
    engine.reset(scope.record, ["db", "unknown"], NOW, None)
    assert scope.record.reset_at == 0
    assert scope.settle(first, tpm=-2)
    engine.reset(scope.record, ["tpm"], NOW, None)
    scope.change(TPM)
    scope.charge(tpm=4)
    assert scope.settle(second, tpm=-3)
    assert scope.used() == {"tpm": 4}


def test_use_of_a_removed_limit_is_settled_although_its_unit_is_counted() -> None:
    scope = OneScope(TPM)
    claim = scope.charge(tpm=6)
    scope.change(CountedUnit("tpm", "tpm"))
    assert scope.settle(claim, tpm=-2)
    scope.change(TPM)
    assert scope.used() == {"tpm": 4}


def undone(claim: Claim, *, has_run: bool = False) -> Claim:
    """The claim, settled as if it had not been charged."""
    claim.undoes, claim.has_run = True, has_run
    return claim


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize(
    ("limits", "is_same"),
    [
        pytest.param((TPM,), True, id="same limits"),
        pytest.param((CALLS, TPM), True, id="one more limit"),
        pytest.param((RateLimit("tpm", 20, 20),), False, id="another limit with the same rate"),
    ],
)
def test_undone_charge_drains_after_the_earlier_use(limits: tuple[AnyLimit, ...], is_same: bool, has_run: bool) -> None:
    is_known = is_same and not has_run
    for seconds, left in ((2, 1 if is_known else 3), (5, 0 if is_known else 2)):
        scope = OneScope(TPM)
        scope.charge(tpm=3)
        claim = undone(scope.charge(tpm=4), has_run=has_run)
        scope.change(*limits)
        assert scope.settle(claim, at=seconds * SECOND, tpm=-4)
        # Of what has drained, 3 units were in use before; by another rule, all of it was part of the charge.
        assert scope.used(at=seconds * SECOND)["tpm"] == left


@pytest.mark.parametrize("others", [(), (CALLS,)], ids=["same limits", "one more limit"])
def test_refund_of_an_earlier_period_leaves_the_present_one_as_it_is(others: tuple[AnyLimit, ...]) -> None:
    session = METERED["session"]
    scope = OneScope(session)
    claim = scope.charge(key=6)
    scope.change(*others, session)
    scope.charge(at=61 * SECOND, key=5)
    assert scope.settle(claim, at=61 * SECOND, key=-4)
    assert scope.used(at=61 * SECOND)["key"] == 5


@pytest.mark.parametrize("limits", [(WINDOW,), (CALLS, WINDOW), (replace(WINDOW, capacity=20),)], ids=len)
def test_undone_charge_is_of_its_window(limits: tuple[AnyLimit, ...]) -> None:
    scope = OneScope(WINDOW)
    scope.charge(window=3)
    early, late = undone(scope.charge(window=4)), undone(scope.charge(at=-SECOND, window=2))
    scope.change(*limits)
    assert scope.settle(late, window=-2), "the clock was set back when it was charged"
    assert scope.used()["window"] == 7
    scope.charge(at=61 * SECOND, window=5)
    assert scope.settle(early, at=61 * SECOND, window=-4)
    assert scope.used(at=61 * SECOND)["window"] == 5


@pytest.mark.parametrize("limit", [TPM, WINDOW, replace(TPM, algorithm=RateLimitAlgorithm.LEAKY_BUCKET)], ids=repr)
def test_undone_charge_of_an_absent_limit_is_returned_with_every_algorithm(limit: RateLimit) -> None:
    scope, key = OneScope(limit, DB), limit.key
    scope.charge(**{key: 1, "db": 0})
    claim = undone(scope.charge(**{key: 4, "db": 1}))
    scope.change(CALLS)
    assert scope.settle(claim, **{key: -4})
    scope.change(limit, DB)
    assert scope.used() == {key: 1, "db": 0}


@pytest.mark.parametrize("limit", [TPM, WINDOW, replace(TPM, algorithm=RateLimitAlgorithm.LEAKY_BUCKET)], ids=repr)
@pytest.mark.parametrize("keeps", [True, False])
def test_credit_reduces_use_with_every_algorithm(limit: RateLimit, keeps: bool) -> None:
    scope, key = OneScope(limit), limit.key
    scope.charge(**{key: 6})
    credit = Claim(
        plan_for([scope.scoped], {key}, left_out=scope.scoped.schema.index, is_credit=True),
        [2 * scope.scoped.schema.rules[0].parts_per_unit],
    )
    credit.admitted = True
    if not keeps:
        scope.change(CALLS)
    assert scope.settle(credit, **{key: -2})
    scope.change(limit)
    assert scope.used() == {key: 4}


@pytest.mark.parametrize(("first", "then"), [(RateLimit("db", 10, 10), DB), (DB, RateLimit("db", 10, 10))], ids=repr)
@pytest.mark.parametrize("undoes", [False, True])
def test_nothing_is_settled_for_a_limit_that_has_become_another_kind(
    first: AnyLimit, then: AnyLimit, undoes: bool
) -> None:
    scope = OneScope(first)
    claim = scope.charge(db=2)
    scope.change(then)
    scope.charge(db=1)
    claim.undoes = undoes
    assert scope.settle(claim, db=-2)
    assert scope.used() == {"db": 1}


@pytest.mark.parametrize(("reset_us", "left"), [(1, 0), (20 * SECOND, 0), (20 * SECOND + 1, 4)])
def test_slice_is_refunded_after_a_reset_that_leaves_it_charged(reset_us: int, left: int) -> None:
    scope = OneScope(TPM)
    plan = scope.claim(tpm=4).plan
    shape = PlanShape(plan.shape.limits, plan.shape.scopes, [0], ["tpm"], recorded_us=20 * SECOND)
    claim = Claim(RequestPlan(shape, plan.scopes, plan.namespace), shape.amounts({"tpm": 4})[0])
    engine.charge(claim, [scope.record], NOW)
    scope.record.reset_at = NOW + reset_us
    scope.settle(claim, tpm=-4)
    assert scope.used() == {"tpm": left}


@pytest.mark.parametrize("parts", [1, 2])
def test_debt_of_a_claim_that_is_unanswered_is_charged_to_the_smallest_part(parts: int) -> None:
    scope = OneScope(TPM)
    claim = scope.charge(tpm=2)
    before, claim.unanswered = scope.used()["tpm"], True
    engine.settle(claim, [scope.record], NOW, [parts])
    assert scope.used()["tpm"] - before == Fraction(parts, claim.shape.limits[0].rule.parts_per_unit)


@pytest.mark.parametrize("limit", METERED.values(), ids=METERED)
def test_held_permits_are_no_use_of_a_limit_that_replaces_them(limit: AnyLimit) -> None:
    scope = OneScope(ResourceLimit("key", 10))
    scope.charge(key=3)
    scope.change(limit)
    assert scope.used() == {"key": 0}


def test_units_that_are_only_counted_delay_no_retry() -> None:
    scope = OneScope(TPM, CountedUnit("key", "key"), counts_usage=True)
    scope.charge(tpm=10, key=5)
    rejected = scope.charge(tpm=3, key=5)
    assert not rejected.admitted
    assert rejected.retry_us() == 3 * SECOND


def test_merged_records_have_the_use_and_the_holders_of_both() -> None:
    scope, other = OneScope(TPM, DB, WINDOW), OneScope(DB, FINER)
    scope.charge(tpm=2, window=3)
    other.charge(tpm=5)
    engine.merge(scope.record, other.record, NOW)
    assert scope.used() == {"tpm": 7, "db": 2, "window": 3}
    assert not scope.charge(tpm=0).admitted, "each of them holds a permit"
    assert not scope.charge(tpm=4, db=0).admitted
    assert scope.charge(tpm=3, db=0).admitted


def test_reset_is_known_for_a_day_and_to_records_that_are_merged() -> None:
    scope, other = OneScope(TPM), OneScope(TPM)
    engine.reset(scope.record, None, NOW, None)
    engine.merge(other.record, scope.record, NOW)
    for record in (scope.record, other.record):
        ends = restored_at(record)
        assert ends == NOW + 1 + 86_400 * SECOND
        assert not engine.is_nearly_restored(record, ends - 1, 16)
        assert engine.is_nearly_restored(record, ends, 16)


class RaisesOnce(Record):
    """The record of slices, whose leases a signal handler interrupts when they are read the second time."""

    reads = 0

    @property
    def leases(self) -> dict[LeaseId, Lease]:  # type: ignore[override]  # where others have a slot
        self.reads += 1
        if self.reads == 2:
            raise KeyboardInterrupt
        return {}

    @leases.setter
    def leases(self, _: object) -> None:
        pass


def test_an_interrupted_reset_refunds_nothing_that_others_have_used() -> None:
    scope = OneScope(TPM, WINDOW)
    first = scope.charge(tpm=6, window=6)
    slices = RaisesOnce(scope.record.schema, [], {}, None)
    with pytest.raises(KeyboardInterrupt):
        engine.reset(scope.record, None, NOW, slices)
    assert scope.used() == {"tpm": 0, "window": 6}
    scope.charge(tpm=4, window=0)
    assert scope.settle(first, tpm=-6)
    assert scope.used() == {"tpm": 4, "window": 6}


@pytest.mark.parametrize(
    ("change", "used"), [(2, 8), (-2, 4), (0.5, 6.5), (-0.5, 5.5)], ids=["more", "less", "more_parts", "less_parts"]
)
def test_a_change_is_converted_into_other_parts(change: float, used: float) -> None:
    scope = OneScope(TPM)
    claim = scope.charge(tpm=6)
    scope.change(FINER)
    assert scope.record.schema.rules[0].parts_per_unit != claim.shape.limits[0].rule.parts_per_unit
    assert scope.settle(claim, tpm=change)
    assert scope.used() == {"tpm": used}


@pytest.mark.parametrize(
    ("parts", "used"), [(1, 1), (999_999, 1), (1_000_001, 2), (-1, 0), (-1_999_999, -1), (-2_000_000, -2)]
)
def test_a_converted_change_is_rounded_towards_more_use(parts: int, used: int) -> None:
    scope = OneScope(TPM)
    claim = scope.charge(tpm=6)
    scope.change(QuotaLimit.per_session("tpm", 100, 60))
    assert claim.shape.limits[0].rule.parts_per_unit == 1_000_000
    assert engine.settle(claim, [scope.record], NOW, [parts])
    assert scope.used() == {"tpm": 6 + used}


def test_enormous_usage_is_finished_early_and_counted_exactly() -> None:
    scope = OneScope(RateLimit("tpm", 1, 366 * 86_400, soft=True), counts_usage=True)
    record, rule = scope.record, scope.record.schema.rules[0]
    for _ in range(1100):
        scope.charge(tpm=10**12)
        assert record.amounts is not None
        assert record.amounts[0] <= 2**61
    engine.close_usage(record)
    usage = record.finished
    assert len(usage) > 1
    assert {hour for hour, _, _ in usage} == {hour_of(NOW)}
    total = sum(amounts["tpm"] for _, amounts, _ in usage)
    assert total >= 1100 * (rule.most_parts * 1000 // rule.parts_per_unit) - len(usage)


@pytest.mark.parametrize("counts_usage", [True, False])
def test_closed_usage_is_saved_and_counted_again_from_the_next_request_on(counts_usage: bool) -> None:
    scope = OneScope(TPM, counts_usage=counts_usage)
    scope.charge(tpm=1)
    scope.record.changed = False
    engine.close_usage(scope.record)
    assert (scope.record.changed, scope.record.counted_until) == (True, 0)


def test_only_scopes_that_count_usage_are_counted() -> None:
    counted, silent = OneScope(CALLS, counts_usage=True), OneScope(TPM)
    plan = plan_for([counted.scoped, silent.scoped], ["tpm"], left_out=())
    records = [counted.record, silent.record]
    assert engine.charge(Claim(plan, plan.shape.amounts({"tpm": 4})[0]), records, NOW)
    for record in records:
        engine.close_usage(record)
    assert [record.finished for record in records] == [(FinishedUsage(hour_of(NOW), {"call_count": 1000}),), ()]


HOUR_US = 3600 * SECOND
FULL = 2**61


def at_hour(us: int) -> int:
    """A time relative to the next full hour, as microseconds after NOW."""
    return hour_ends(NOW) + us - NOW


def counted_hours(record: Record) -> list[tuple[int, int]]:
    """How much of `tpm` was counted, in units, in each hour after that of NOW."""
    engine.close_usage(record)
    return [(hour - hour_of(NOW), amounts["tpm"] // 1000) for hour, amounts, _ in record.finished]


@pytest.mark.parametrize(("second_us", "hours"), [(-1, [(0, 5)]), (0, [(0, 2), (1, 3)])])
def test_usage_of_an_hour_ends_exactly_with_it(second_us: int, hours: list[tuple[int, int]]) -> None:
    scope = OneScope(TPM, counts_usage=True)
    scope.charge(at_hour(-2), tpm=2)
    scope.charge(at_hour(second_us), tpm=3)
    assert counted_hours(scope.record) == hours


@pytest.mark.parametrize(
    ("taken_us", "hours"),
    [
        pytest.param(-1, [(0, 1), (1, 6)], id="just before the current hour"),
        pytest.param(0, [(1, 7)], id="at its start"),
        pytest.param(HOUR_US - 1, [(1, 7)], id="in its last microsecond"),
        pytest.param(HOUR_US, [(2, 1), (1, 6)], id="just after it"),
    ],
)
def test_change_is_counted_in_the_hour_of_its_charge(taken_us: int, hours: list[tuple[int, int]]) -> None:
    scope = OneScope(TPM, counts_usage=True)
    claim = scope.charge(at_hour(0), tpm=6)
    claim.decided_at = NOW + at_hour(taken_us)
    scope.settle(claim, tpm=1)
    assert counted_hours(scope.record) == hours


@pytest.mark.parametrize(("below", "parts", "finished"), [(1, 1, 0), (0, 1, 1)])
def test_usage_beyond_the_largest_count_is_finished(below: int, parts: int, finished: int) -> None:
    scope = OneScope(TPM, counts_usage=True)
    claim = scope.charge(tpm=0)
    assert scope.record.amounts is not None
    scope.record.amounts[0] = FULL - below
    engine.charge(Claim(claim.plan, [parts]), [scope.record], NOW)
    assert len(scope.record.finished) == finished
    scope.record.finished = ()
    scope.record.amounts[0] = FULL - below
    engine.settle(claim, [scope.record], NOW, [parts])
    assert len(scope.record.finished) == finished
