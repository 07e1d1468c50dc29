"""What was decided and why, for people and for programs."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import fields
from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.survey import survey_scopes
from limits_app.engine.amounts import NOTHING
from limits_app.engine.errors import (
    LimitExceeded,
    LimitsError,
    LimitTimeout,
    NeverAdmissible,
    NotShareable,
    StaleConfiguration,
    UsageNotReported,
)
from limits_app.engine.keys import scope_of, shared_scope
from limits_app.engine.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.outcome import LimitStatus, Outcome, Stats
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import DB, RPM, TPM, limit_set, used_up


def scoped_set(store: MemoryStore, *limits: LimitDefinition, entity: str | None = "user:42") -> LimitSet:
    """A set of a resource and an entity."""
    return LimitSet.composed([ScopedLimits(scope_of("api", entity), schema_of(limits), "entity")], store)


def test_an_admission_has_the_remaining_amounts(store: MemoryStore) -> None:
    outcome = limit_set(store).try_acquire({"tpm": 30, "db": 2}).outcome
    assert outcome.allowed
    assert outcome.violations == ()
    assert [(status.key, status.requested, status.remaining, status.capacity) for status in outcome.passed] == [
        ("tpm", 30, 70, 100),
        ("call_count", 1, 4, 5),
        ("db", 2, 1, 3),
    ]
    assert [status.retry_after for status in outcome.passed] == [0, 0, 0]
    assert outcome.retry_after == 0
    assert outcome.binding is None
    assert not outcome.never
    assert outcome.summary() == "allowed"


def test_a_rejection_names_the_limit_and_the_admissible_amount(store: MemoryStore) -> None:
    limits = limit_set(store, TPM, RPM, DB)
    held = limits.try_acquire({"tpm": 80, "rpm": 10})
    outcome = limits.try_acquire({"tpm": 50, "rpm": 1, "db": 1}).outcome
    assert not outcome.allowed
    assert [status.key for status in outcome.violations] == ["tpm", "rpm"]
    assert [status.key for status in outcome.passed] == ["db"]
    tpm, rpm = outcome.violations
    assert (tpm.remaining, tpm.requested, tpm.retry_after, tpm.reset_after) == (20, 50, 18, 48)
    assert (rpm.remaining, rpm.requested, rpm.retry_after, rpm.reset_after) == (0, 1, 6, 60)
    assert outcome.binding is tpm
    assert outcome.retry_after == 18
    held.cancel()


def test_the_outcome_is_of_the_decision_whenever_it_is_read(store: MemoryStore, clock: FakeClock) -> None:
    limits = limit_set(store, TPM)
    used_up(limits, "tpm")
    refused = limits.try_acquire({"tpm": 50})
    first = refused.outcome
    clock.advance(45)
    limits.try_acquire({"tpm": 10})
    assert refused.outcome == first
    assert first.retry_after == 30


def test_the_release_of_a_permit_has_no_predicted_time(store: MemoryStore) -> None:
    limits = limit_set(store, DB, RPM)
    held = limits.try_acquire({"db": 3, "rpm": 10})
    outcome = limits.try_acquire({"db": 1}).outcome
    assert outcome.retry_after is None
    assert outcome.violations[0].retry_after is None
    assert not outcome.never
    assert outcome.summary() == "'db' has 0 of 3 left, 1 requested: retry when a permit is released"
    both = limits.try_acquire({"db": 1, "rpm": 1}).outcome
    assert [status.key for status in both.violations] == ["db", "rpm"]
    assert both.retry_after == 6, "the earliest moment that is known"
    held.release()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"key": "tpm"}, "'tpm' has 5 of 10 left, 6 requested: retry in 1.5 s"),
        ({"resource": "api"}, "'k' of api has 5 of 10 left, 6 requested: retry in 1.5 s"),
        (
            {"resource": "api", "entity": "user:42"},
            "'k' of api for user:42 has 5 of 10 left, 6 requested: retry in 1.5 s",
        ),
        (
            {"resource": "pool", "member": "node-1"},
            "'k' of pool at node-1 has 5 of 10 left, 6 requested: retry in 1.5 s",
        ),
        ({"retry_after": 86_400.0}, "'k' has 5 of 10 left, 6 requested: retry in 86400 s"),
        ({"retry_after": 0.000001}, "'k' has 5 of 10 left, 6 requested: retry in 1e-06 s"),
        ({"retry_after": None}, "'k' has 5 of 10 left, 6 requested: retry when a permit is released"),
        ({"never": True, "retry_after": None, "requested": 11}, "'k' can never admit 11: its most is 10"),
        ({"capacity": 0, "retry_after": None, "resource": "api", "entity": "u"}, "everything for u is blocked"),
        ({"capacity": 0, "retry_after": None}, "everything is blocked"),
        ({"capacity": 0, "resource": "api"}, "the upstream of api cools down: retry in 1.5 s"),
    ],
)
def test_one_sentence_for_people(status: dict[str, Any], expected: str) -> None:
    known: dict[str, Any] = {
        "key": "k",
        "resource": None,
        "entity": None,
        "level": "set",
        "capacity": 10,
        "requested": 6,
        "remaining": 5,
        "retry_after": 1.5,
        "reset_after": 3.0,
    }
    outcome = Outcome(False, (LimitStatus(**(known | status)),), ())
    assert outcome.summary() == expected
    for error in (LimitExceeded(outcome), LimitTimeout(outcome), NeverAdmissible(outcome)):
        assert str(error) == expected
        assert error.outcome is outcome


def test_level_of_a_limit_is_reported(store: MemoryStore) -> None:
    limits = scoped_set(store, TPM, DB)
    (tpm, db) = limits.try_acquire({"tpm": 1}).outcome.passed
    for status in (tpm, db):
        assert (status.resource, status.entity, status.level) == ("api", "user:42", "entity")
    assert limit_set(store, TPM).try_acquire({"tpm": 1}).outcome.passed[0].level == "set"
    refused = limits.try_acquire({"tpm": 100})
    assert refused.outcome.summary().startswith("'tpm' of api for user:42 has 99 of 100 left")
    site = scoped_set(store, TPM, entity=None)
    used_up(site, "tpm")
    assert site.try_acquire({"tpm": 1}).outcome.summary().startswith("'tpm' of api has 0 of 100 left")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (RateLimit("tpm", 100, 60, burst=300), ("rate", 100, 60, 300)),
        (CallLimit(7, 0.5), ("call", 7, 0.5, 7)),
        (QuotaLimit("day", 9, "day"), ("quota", 9, 86_400, 9)),
        (QuotaLimit("month", 9, "month"), ("quota", 9, None, 9)),
        (QuotaLimit("session", 9, session_seconds=1800), ("quota", 9, 1800, 9)),
        (DB, ("resource", 3, None, 3)),
    ],
    ids=lambda one: getattr(one, "key", ""),
)
def test_status_has_the_amount_of_its_window(store: MemoryStore, limit: Any, expected: Any) -> None:
    limits = scoped_set(store, limit)
    [status] = limits.try_acquire({limit.key: 1}).outcome.passed
    assert (status.type, status.limit, status.window_seconds, status.capacity) == expected


def test_statuses_have_the_position_of_their_limit(store: MemoryStore) -> None:
    limits = scoped_set(store, TPM, CallLimit(1, 60), DB)
    used_up(limits, "call_count")
    outcome = limits.try_acquire({"tpm": 1}).outcome
    assert [(one.key, one.position) for one in (*outcome.violations, *outcome.passed)] == [
        ("call_count", 1),
        ("tpm", 0),
        ("db", 2),
    ]


def test_an_outcome_is_plain_data_too(store: MemoryStore) -> None:
    limits = scoped_set(store, TPM, DB)
    limits.try_acquire({"tpm": 80, "db": 0})
    outcome = limits.try_acquire({"tpm": 50, "db": 1}).outcome
    told = outcome.as_dict()
    common = {"resource": "api", "entity": "user:42", "level": "entity", "never": False, "overdrawn": 0, "member": None}
    common |= {"shared": False, "total": False, "priority": "", "kept_used": 0}
    tpm = {"key": "tpm", "capacity": 100, "requested": 50, "remaining": 20, "retry_after": 18.0, "reset_after": 48.0}
    db = {"key": "db", "capacity": 3, "requested": 1, "remaining": 3, "retry_after": 0.0, "reset_after": 0.0}
    assert told == json.loads(json.dumps(told))
    assert told == {
        "allowed": False,
        "retry_after": 18.0,
        "never": False,
        "degraded": False,
        "violations": [common | tpm],
        "passed": [common | db],
        "overdrawn": [],
        "shadowed": [],
    }
    of_definition = {"type", "limit", "window_seconds", "position"}
    names = [field.name for field in fields(LimitStatus) if field.name not in of_definition]
    assert list(told["violations"][0]) == names  # type: ignore[index]


def test_limit_that_never_admits_binds_before_any_wait(store: MemoryStore) -> None:
    limits = limit_set(store, RateLimit("year", 10, 366 * 86_400), RPM)
    limits.try_acquire({"year": 10})
    with pytest.raises(NeverAdmissible) as caught:
        limits.try_acquire({"year": 10, "rpm": 11})
    outcome = caught.value.outcome
    assert outcome.binding is not None
    assert outcome.binding.key == "rpm"
    assert outcome.retry_after is None
    assert [status.retry_after for status in outcome.violations] == [366 * 86_400, None]


def test_remaining_amount_is_in_thousandths_and_rounded_down(store: MemoryStore, clock: FakeClock) -> None:
    limits = limit_set(store, RateLimit("k", 1, 60))
    for taken, remaining in ((0, 1), (0.001, 0.999), (0.249, 0.75), (0.75, 0)):
        (status,) = limits.try_acquire({"k": taken}).outcome.passed
        assert (status.requested, status.remaining) == (taken, remaining)
    clock.advance(0.119999)
    remaining = limits.peek({"k": 0.002}).violations[0].remaining
    assert remaining == 0.001
    assert limits.try_acquire({"k": remaining})
    clock.move(1)
    assert isinstance(limits.peek({"k": 0}).passed[0].remaining, float)
    clock.advance(59.9)
    assert isinstance(limits.peek({"k": 0}).passed[0].requested, int)


def test_debt_leaves_nothing_and_never_less(store: MemoryStore) -> None:
    limits = limit_set(store, TPM)
    with limits.try_acquire({"tpm": 100}) as acquisition:
        acquisition.update({"tpm": 250})
    outcome = limits.try_acquire({"tpm": 1}).outcome
    assert outcome.violations[0].remaining == 0
    assert outcome.retry_after == 90.6


def test_block_rejects_everything_without_a_retry_time(store: MemoryStore, clock: FakeClock) -> None:
    limits = scoped_set(store, Blocked(), TPM)
    for requested in ({"tpm": 1}, {"tpm": 0}, NOTHING):
        refused = limits.try_acquire(requested)
        assert not refused
        assert refused.outcome.retry_after is None
        assert not refused.outcome.never, "a change of the configuration may help"
        (status,) = refused.outcome.violations
        assert (status.key, status.capacity, status.remaining, status.reset_after) == ("blocked", 0, 0, 0)
        assert refused.outcome.summary() == "everything for user:42 is blocked"
    clock.advance(366 * 86_400)
    with pytest.raises(LimitTimeout, match="everything for user:42 is blocked"):
        limits.acquire({"tpm": 1}, timeout=0)
    assert limits.get_stats()["blocked"] == Stats(
        type="blocked", algorithm=None, window_seconds=None, capacity=0, available=0, used=0, utilization=0
    )


def test_errors_survive_a_journey_to_another_process(store: MemoryStore) -> None:
    limits = limit_set(store, TPM)
    used_up(limits, "tpm")
    outcome = limits.try_acquire({"tpm": 5}).outcome
    with pytest.raises(LimitTimeout) as caught:
        limits.acquire({"tpm": 5}, timeout=0)
    assert caught.value.refused is not None
    here = copy.copy(caught.value)
    assert (here.outcome, here.refused) == (caught.value.outcome, None)  # as it comes from another process
    errors = (LimitExceeded(outcome), LimitTimeout(outcome), NeverAdmissible(outcome), UsageNotReported(["a", "b"]))
    for error in (here, *errors):
        twin = pickle.loads(pickle.dumps(error))
        assert type(twin) is type(error)
        assert str(twin) == str(error) == str(copy.copy(error))
        assert vars(twin) == vars(error)


def test_every_error_has_one_root_and_the_builtin_kin_that_callers_expect() -> None:
    assert issubclass(LimitTimeout, TimeoutError)
    assert issubclass(NeverAdmissible, ValueError)
    assert issubclass(UsageNotReported, RuntimeError)
    assert issubclass(NotShareable, TypeError)
    for error in (LimitTimeout, NeverAdmissible, NotShareable, UsageNotReported):
        assert issubclass(error, LimitsError)


def test_statistics_have_the_fields_of_each_kind(store: MemoryStore) -> None:
    limits = limit_set(
        store,
        RateLimit("tpm", 100, 60, burst=50),
        CallLimit(5, 1, RateLimitAlgorithm.SLIDING_WINDOW),
        ResourceLimit("db", 4, 30),
        QuotaLimit.per_month("month", 100, "Europe/Berlin"),
        QuotaLimit.per_session("session", 50, 18_000),
    )
    held = [
        limits.try_acquire({"tpm": 20, "db": 2, "month": 25, "session": 10}),
        limits.try_acquire({"tpm": 0.5, "db": 1}),
    ]
    none = Stats(algorithm=None, window_seconds=None)
    stats = limits.get_stats()
    resets = {key: stat.pop("reset_after") for key, stat in stats.items() if "reset_after" in stat}
    assert resets.keys() == {"tpm", "call_count", "month", "session"}
    assert (resets["tpm"], resets["session"]) == (pytest.approx(12.3), 18_000)
    assert stats == {
        "tpm": Stats(
            type="rate", algorithm="token_bucket", window_seconds=60, burst=50,
            capacity=100, available=29.5, used=20.5, utilization=0.41,
        ),
        "call_count": Stats(
            type="call", algorithm="sliding_window", window_seconds=1,
            capacity=5, available=3, used=2, utilization=0.4,
        ),
        "db": none | Stats(type="resource", holders=2, capacity=4, available=1, used=3, utilization=0.75),
        "month": none | Stats(
            type="quota", period="month", time_zone="Europe/Berlin",
            capacity=100, available=75, used=25, utilization=0.25,
        ),
        "session": Stats(
            type="quota", algorithm=None, window_seconds=18_000, period=None, time_zone=None,
            capacity=50, available=40, used=10, utilization=0.2,
        ),
    }  # fmt: skip
    assert all(held)


def scoped(entity: str | None, *limits: AnyLimit, level: str = "entity") -> ScopedLimits:
    return ScopedLimits(scope_of("llm", entity), schema_of(limits), level)


def test_the_bucket_that_binds_is_returned_and_all_are_listed(store: MemoryStore) -> None:
    team, site = scoped("team", RateLimit("tpm", 100, 60)), scoped(None, RateLimit("tpm", 60, 60), level="resource")
    user = scoped("user", RateLimit("tpm", 1000, 60, RateLimitAlgorithm.FIXED_WINDOW))
    limits = LimitSet.composed([user, team, site], store)
    limits.try_acquire({"tpm": 10})
    stats = limits.get_stats()["tpm"]
    fields = ("capacity", "available", "used", "utilization", "algorithm")
    assert [stats[field] for field in fields] == [60, 50, 10, 10 / 60, "token_bucket"]
    listed = stats["buckets"]
    assert [[bucket[field] for field in ("resource", "entity", "level")] for bucket in listed] == [
        ["llm", "user", "entity"],
        ["llm", "team", "entity"],
        ["llm", None, "resource"],
    ]
    assert [[bucket[field] for field in fields] for bucket in listed] == [
        [1000, 990, 10, 0.01, "fixed_window"],
        [100, 90, 10, 0.1, "token_bucket"],
        [60, 50, 10, 10 / 60, "token_bucket"],
    ]


@pytest.mark.parametrize("amount", [30, 45, 70])
def test_the_bucket_that_binds_is_the_one_that_rejects(amount: int, store: MemoryStore) -> None:
    team, site = scoped("team", RateLimit("tpm", 100, 60)), scoped(None, RateLimit("tpm", 75, 60))
    limits, beside = LimitSet.composed([team, site], store), LimitSet.composed([team], store)
    limits.try_acquire({"tpm": 20})
    beside.try_acquire({"tpm": 40})
    available = limits.get_stats()["tpm"]["available"]
    assert available == 40
    assert limits.peek({"tpm": amount}).allowed is (amount <= available)


def test_buckets_are_listed_only_for_several(store: MemoryStore) -> None:
    user, team = scoped("user", RateLimit("tpm", 100, 60), ResourceLimit("db", 2)), scoped("team", CallLimit(5, 60))
    stats = LimitSet.composed([user, team], store).get_stats()
    assert list(stats) == ["tpm", "db", "call_count"]
    assert not any("buckets" in fields for fields in stats.values())


def test_the_permits_of_a_parent_bind_where_others_hold_them(store: MemoryStore) -> None:
    parent = scoped("team", ResourceLimit("db", 3))
    ann, bob = (LimitSet.composed([scoped(who, ResourceLimit("db", 2)), parent], store) for who in ("ann", "bob"))
    held = ann.try_acquire({"db": 2})
    assert held
    stats = bob.get_stats()["db"]
    assert (stats["capacity"], stats["available"], stats["holders"]) == (3, 1, 1)
    assert [bucket["available"] for bucket in stats["buckets"]] == [2, 1]
    assert [bucket["holders"] for bucket in ann.get_stats()["db"]["buckets"]] == [1, 1]


def test_each_limit_has_the_level_at_which_it_was_set(store: MemoryStore) -> None:
    limits = (RateLimit("tpm", 100, 60), CallLimit(5, 60))
    user = ScopedLimits(scope_of("llm", "user"), schema_of(limits), levels=("entity", "resource"))
    shared = ScopedLimits(shared_scope("llm", "tpm"), schema_of(limits), level="site")
    stats = LimitSet.composed([user, shared], store).get_stats()
    assert [bucket["level"] for bucket in stats["tpm"]["buckets"]] == ["entity", "site"]
    assert [bucket["level"] for bucket in stats["call_count"]["buckets"]] == ["resource", "site"]


def test_a_survey_lists_each_bucket_by_its_scope(store: MemoryStore) -> None:
    user, team = scoped("user", RateLimit("tpm", 100, 60)), scoped("team", RateLimit("tpm", 50, 60))
    limits = LimitSet.composed([user, team], store)
    limits.try_acquire({"tpm": 5})
    surveyed = survey_scopes([user, team], store, None)
    assert {key: fields["tpm"]["available"] for key, fields in surveyed.items()} == {user.key: 95, team.key: 45}
    assert not any("buckets" in fields["tpm"] for fields in surveyed.values())


def test_a_survey_of_nothing_asks_nothing() -> None:
    assert survey_scopes([], MemoryStore(), 1) == {}


def test_a_survey_of_an_older_configuration_is_an_error(store: MemoryStore) -> None:
    store.advance_version()
    with pytest.raises(StaleConfiguration):
        survey_scopes([scoped("user", TPM)], store, 0)
