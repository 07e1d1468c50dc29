"""Statistics: every field, consistent over all keys, and reading changes nothing."""

from __future__ import annotations

import pytest

from limits_app.core.errors import StaleConfiguration
from limits_app.core.keys import scope_of, shared_scope
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit, Blocked, CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.outcome import survey
from limits_app.core.plan import ScopedLimits
from limits_app.core.record import schema_of
from limits_app.stores.memory import MemoryStore
from tests.core.sets import TPM, limit_set


def test_every_field_of_every_kind(store: MemoryStore) -> None:
    limits = limit_set(
        store,
        RateLimit("tpm", 100, 60, burst=50),
        CallLimit(5, 1, RateLimitAlgorithm.SLIDING_WINDOW),
        ResourceLimit("db", 4, 30),
    )
    first = limits.try_acquire({"tpm": 20, "db": 2})
    second = limits.try_acquire({"tpm": 0.5, "db": 1})
    assert first
    assert second
    assert limits.get_stats() == {
        "tpm": {
            "type": "rate",
            "algorithm": "token_bucket",
            "capacity": 100,
            "window_seconds": 60,
            "available": 29.5,
            "used": 20.5,
            "utilization": 0.41,
            "burst": 50,
        },
        "call_count": {
            "type": "call",
            "algorithm": "sliding_window",
            "capacity": 5,
            "window_seconds": 1,
            "available": 3,
            "used": 2,
            "utilization": 0.4,
        },
        "db": {
            "type": "resource",
            "algorithm": None,
            "capacity": 4,
            "window_seconds": None,
            "available": 1,
            "used": 3,
            "utilization": 0.75,
            "holders": 2,
        },
    }


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


def test_buckets_are_listed_only_where_there_are_several(store: MemoryStore) -> None:
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


def test_a_blocked_scope_has_nothing_available(store: MemoryStore) -> None:
    stats = LimitSet.composed([scoped("user", Blocked()), scoped("team", Blocked())], store).get_stats()["blocked"]
    assert (stats["type"], stats["available"], stats["algorithm"], stats["window_seconds"]) == (
        "blocked",
        0,
        None,
        None,
    )
    assert len(stats["buckets"]) == 2


def test_a_survey_lists_each_bucket_by_its_scope(store: MemoryStore) -> None:
    user, team = scoped("user", RateLimit("tpm", 100, 60)), scoped("team", RateLimit("tpm", 50, 60))
    limits = LimitSet.composed([user, team], store)
    limits.try_acquire({"tpm": 5})
    surveyed = survey([user, team], store, None)
    assert {key: fields["tpm"]["available"] for key, fields in surveyed.items()} == {user.key: 95, team.key: 45}
    assert not any("buckets" in fields["tpm"] for fields in surveyed.values())


def test_a_survey_of_nothing_asks_nothing() -> None:
    assert survey([], MemoryStore(), 1) == {}


def test_a_survey_of_an_older_configuration_is_an_error(store: MemoryStore) -> None:
    store.advance_version()
    with pytest.raises(StaleConfiguration):
        survey([scoped("user", TPM)], store, 0)
