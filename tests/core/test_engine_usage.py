"""Usage: what the engine counts in the hour in which it is admitted."""

from __future__ import annotations

from limits_app.core import engine
from limits_app.core.counting import HOUR_US, hour_of
from limits_app.core.limits import AnyLimit, CallLimit, RateLimit, ResourceLimit
from limits_app.core.record import FinishedUsage, Record, schema_of
from tests.core.algorithms.driven import NOW, SECOND
from tests.core.engine_steps import Scopes

TPM = RateLimit("tpm", 1000, 60)
DB = ResourceLimit("db", 3)
HOUR = hour_of(NOW)


def counting(*limits: AnyLimit) -> Scopes:
    """Scopes whose usage is counted."""
    return Scopes(*(limits or (TPM, DB)), counts_usage=True)


def finished(record: Record) -> list[FinishedUsage]:
    """Take the finished usage of a record, with that of the current hour, as a store does that collects it."""
    engine.close_usage(record)
    usage, record.finished = list(record.finished), ()
    return usage


def test_admitted_amounts_are_counted_in_their_hour() -> None:
    scopes = counting()
    scopes.charge(tpm=5, db=2)
    scopes.charge(tpm=3, db=1)
    assert not scopes.charge(tpm=3, db=1).admitted
    assert not scopes.record.finished
    assert finished(scopes.record) == [FinishedUsage(HOUR, {"tpm": 8000, "db": 3000})]


def test_an_hour_that_has_ended_is_finished_by_the_next_admitted_request() -> None:
    scopes = counting()
    scopes.charge(tpm=5, db=0)
    scopes.charge(at=HOUR_US - 1, tpm=1, db=0)
    assert not scopes.record.finished
    scopes.charge(at=HOUR_US, tpm=7, db=0)
    assert list(scopes.record.finished) == [FinishedUsage(HOUR, {"tpm": 6000})]
    scopes.record.finished = ()
    assert finished(scopes.record) == [FinishedUsage(HOUR + 1, {"tpm": 7000})]


def test_counting_starts_again_after_it_was_closed() -> None:
    scopes = counting()
    scopes.charge(tpm=5, db=0)
    assert finished(scopes.record) == [FinishedUsage(HOUR, {"tpm": 5000})]
    assert scopes.record.changed
    assert finished(scopes.record) == []
    scopes.charge(at=SECOND, tpm=1, db=0)
    assert finished(scopes.record) == [FinishedUsage(HOUR, {"tpm": 1000})]


def test_nothing_is_counted_where_the_schema_counts_nothing() -> None:
    scopes = Scopes(TPM, DB)
    claim = scopes.charge(tpm=5)
    scopes.settle(claim, tpm=-1)
    assert scopes.record.usage is None
    assert finished(scopes.record) == []


def test_only_scopes_that_count_are_counted() -> None:
    scopes = counting()
    scopes.scoped[0] = scopes.scoped[0].__class__(scopes.scoped[0].scope, schema_of((TPM, DB)))
    scopes.records[0] = engine.migrate(scopes.record, scopes.scoped[0].schema, NOW)
    both = Scopes(CallLimit(5, 60), counts_usage=True)
    both.scoped.append(scopes.scoped[0])
    both.records.append(scopes.record)
    claim = both.charge(tpm=4)
    both.settle(claim, tpm=3)
    assert finished(both.records[0]) == []
    assert finished(both.records[1]) == []


def test_changes_after_the_hour_has_ended_are_counted_in_it() -> None:
    scopes = counting()
    claim = scopes.charge(tpm=5, db=0)
    scopes.charge(at=HOUR_US, tpm=1, db=0)
    scopes.settle(claim, at=HOUR_US, tpm=-2)
    assert list(scopes.record.finished) == [
        FinishedUsage(HOUR, {"tpm": 5000}),
        FinishedUsage(HOUR, {"tpm": -2000}),
    ]


def test_a_change_of_limits_finishes_the_usage() -> None:
    scopes = counting()
    claim = scopes.charge(tpm=5, db=0)
    scopes.change(DB, RateLimit("tpm", 7, 60), counts_usage=True)
    assert list(scopes.record.finished) == [FinishedUsage(HOUR, {"tpm": 5000})]
    scopes.charge(tpm=1, db=0)
    scopes.settle(claim, tpm=2)
    assert finished(scopes.record) == [
        FinishedUsage(HOUR, {"tpm": 5000}),
        FinishedUsage(HOUR, {"tpm": 2000}),
        FinishedUsage(HOUR, {"tpm": 1000}),
    ]


def test_a_scope_that_stops_to_count_loses_nothing() -> None:
    scopes = counting()
    claim = scopes.charge(tpm=5, db=0)
    scopes.change(TPM, DB)
    scopes.charge(tpm=1, db=0)
    scopes.settle(claim, tpm=-2)
    assert finished(scopes.record) == [FinishedUsage(HOUR, {"tpm": 5000}), FinishedUsage(HOUR, {"tpm": -2000})]


def test_enormous_usage_is_finished_early_and_counted_exactly() -> None:
    scopes = counting(RateLimit("tpm", 1, 366 * 86_400, soft=True))
    record, rule = scopes.record, scopes.record.schema.rules[0]
    for _ in range(1100):
        scopes.charge(tpm=10**12)
        assert record.usage is not None
        assert record.usage.amounts[0] <= 2**61
    usage = finished(record)
    assert len(usage) > 1
    assert {hour for hour, _ in usage} == {HOUR}
    total = sum(amounts["tpm"] for _, amounts in usage)
    assert total >= 1100 * (rule.most_parts * 1000 // rule.parts_per_unit) - len(usage)
