"""Which limits apply, in which store: what is read, when it is read again, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import CallLimit, LimitSet, RateLimit, RateLimitAlgorithm, ResourceLimit, limits, signals
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limits import Blocked
from limits_app.models import Limit, Policy
from limits_app.resolver.cache import Resolver, advance_version, resolver
from limits_app.resolver.resolution import resolve
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import default_process_store
from limits_app.stores.resilient import ResilientStore
from limits_app.testing import FakeClock


@pytest.mark.parametrize(
    "definition",
    [
        CallLimit(10, 60),
        CallLimit(10**12, 31_622_400, RateLimitAlgorithm.SLIDING_WINDOW),
        RateLimit("tpm", 0.001, 0.001, RateLimitAlgorithm.GCRA, burst=12.5),
        RateLimit("tpm", 999_999_999_999, 1, RateLimitAlgorithm.LEAKY_BUCKET, burst=1),
        RateLimit("tpm", 5, 1.5, RateLimitAlgorithm.FIXED_WINDOW),
        ResourceLimit("db", 3),
        ResourceLimit("db", 3, 0.25),
    ],
)
def test_a_definition_comes_back_as_it_was_set(definition: CallLimit | RateLimit | ResourceLimit) -> None:
    limits.set_resource_limits("api", [definition])
    assert list(limits.limit_set("api")) == [definition]
    assert Limit.objects.get().definition() == definition


def test_a_change_counts_on_the_next_acquire() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]
    Limit.objects.update(capacity=5)
    assert [bool(limits.try_acquire("api")) for _ in range(5)] == [True] * 4 + [False]


def test_a_transaction_that_is_rolled_back_changes_nothing() -> None:
    limits.set_resource_limits("api", [CallLimit(2, 60)])
    assert limits.try_acquire("api")
    with transaction.atomic():
        limits.set_resource_limits("api", [CallLimit(9, 60)])
        assert [limit.capacity for limit in resolve("api", None).resolved.limit_set] == [9]
        transaction.set_rollback(True)
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]


def test_others_see_a_change_only_after_the_commit() -> None:
    limits.set_resource_limits("api", [CallLimit(3, 60)])
    assert limits.try_acquire("api")
    before = registry.store().version()
    with transaction.atomic():
        limits.set_resource_limits("api", [CallLimit(1, 60)])
        assert registry.store().version() == before
    assert registry.store().version() > before


def test_what_is_kept_is_bounded(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_MAX_ENTRIES": 10}
    own = Resolver()
    for number in range(100):
        own.get(("api", f"user:{number}", (), None))
    assert own.info() == (0, 100, 10)
    own.get(("api", "user:99", (), None))
    assert own.info() == (1, 100, 10)
    own.get(("api", "user:0", (), None))
    assert own.info() == (1, 101, 10)
    own.clear()
    assert own.info().size == 0
    own.get(("api", "user:0", (), None))
    assert own.info() == (1, 102, 1)


def test_calls_that_bring_limits_of_their_own_each_have_theirs() -> None:
    own, capacities = Resolver(), (1, 2, 1, 2)

    def found(capacity: int) -> int:
        [limit] = own.get(("api", "user:1", (CallLimit(capacity, 60),), None)).limit_set
        return int(limit.ceiling)

    with CaptureQueriesContext(connection) as queries:
        assert tuple(map(found, capacities)) == capacities
    assert sum(Policy._meta.db_table in query["sql"] for query in queries) == 2
    assert own.info() == (2, 2, 2)


def test_a_call_may_bring_a_block() -> None:
    assert not limits.try_acquire("api", default_limits=(Blocked(),))  # type: ignore[arg-type]  # as a rate of 0 does
    assert limits.try_acquire("api")


@pytest.mark.parametrize("forgotten", [1, 2])
def test_what_is_forgotten_is_asked_anew_and_nothing_else(forgotten: int) -> None:
    own, brought = Resolver(), {number: (CallLimit(number, 60),) for number in (1, 2)}
    for default_limits in brought.values():
        own.get(("api", "user:1", default_limits, None))
    own.forget(("api", "user:1", brought[forgotten], None))
    assert own.info() == (0, 2, 1)
    own.get(("api", "user:1", brought[3 - forgotten], None))
    assert own.info() == (1, 2, 1)
    own.get(("api", "user:1", brought[forgotten], None))
    assert own.info() == (1, 3, 2)


def test_what_is_kept_becomes_too_old(settings: Settings, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_TTL_SECONDS": 1e-9}
    own = Resolver()
    with django_assert_num_queries(3):
        for _ in range(3):
            own.get(("api", None, (), None))


def test_what_bypasses_the_app_counts_once_nothing_is_kept_any_more() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE limits_app_limit SET capacity = 2")
    assert not limits.try_acquire("api")
    resolver.clear()
    assert limits.try_acquire("api")


def test_an_unreachable_store_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(MemoryStore):
        def advance_version(self) -> int:
            raise StoreUnavailable("not now")

    for key in list(registry._OPENED):
        monkeypatch.setitem(registry._OPENED, key, Deaf())
    advance_version(using="default")
    [record] = [one for one in caplog.records if "does not know" in one.message]
    assert record.message.endswith("limits have changed: the store 'default' is down: not now")
    assert record.exc_info is None, "one line, also in commands"


def test_the_state_of_entities_with_limits_of_their_own_lasts() -> None:
    def lasting(resource: str, entity: str | None) -> list[bool]:
        return [scoped.lasting for scoped in resolver.get((resource, entity, (), None)).limit_set.scoped]

    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.set_entity_limits("vip", [CallLimit(10, 60)], resource="api")
    limits.set_entity_limits("tenant", [CallLimit(10, 60)])
    assert lasting("api", "vip") == [True]
    assert lasting("other", "tenant") == [True]
    assert lasting("api", "anybody") == [False]
    assert lasting("api", None) == [False]


def test_sets_of_mode_process_use_the_store_of_the_site(settings: Settings, tmp_path: Path) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}, "STATE_DIR": str(tmp_path), "MAP_MEGABYTES": 1}
    gate = LimitSet([CallLimit(1, 60)], shared=True, mode="process")
    assert gate.store is default_process_store()
    assert [bool(gate.try_acquire()) for _ in range(2)] == [True, False]
    gate.store.close()


def test_other_settings_count_at_once(settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}, "other": {"KIND": "memory"}}}
    first = _store_of_limits()
    settings.LIMITS = {**settings.LIMITS, "STORE": "other"}
    assert _store_of_limits() is registry.store("other")
    assert first is registry.store("default")


def test_a_lost_lease_is_told(heard: Callable[..., list[object]]) -> None:
    lost = heard(signals.lease_lost, "claim")
    held = LimitSet([ResourceLimit("db", 1, max_hold_seconds=1)], store=MemoryStore(clock=(clock := FakeClock())))
    acquisition = held.acquire()
    clock.advance(10)
    assert lost == [acquisition]


def _store_of_limits() -> object:
    """The store that limits really use, behind its circuit breaker."""
    guarded = limits.limit_set("api", "a").store
    assert isinstance(guarded, ResilientStore)
    return guarded.inner
