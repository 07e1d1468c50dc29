"""What happens while a store is down, and when it is back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any, NoReturn

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection
from pytest_django import Settings

from limits_app import (
    CallLimit,
    LimitExceeded,
    LimitTimeout,
    NeverAdmissible,
    RateLimit,
    ResourceLimit,
    StoreUnavailable,
    limits,
)
from limits_app.acquiring.breaker import BreakerState
from limits_app.acquiring.limit_set import LimitSet
from limits_app.conf import OnUnavailable
from limits_app.engine.errors import StaleConfiguration
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.policies import ResolvedSet, VersionedStore, resolver
from limits_app.services.unavailable import fallback_of
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.registry import resilient_store
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.services.failing import FailingStore, recover_by

BACK = 2
"""Seconds after which a store that answers again is certainly found out."""


@pytest.fixture(autouse=True)
def store(clock: FakeClock, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> FailingStore:
    """The store of the site, whose recovery goes by the same clock."""
    settings.LIMITS = {**settings.LIMITS, "EXPECTED_PROCESSES": 4}
    store = FailingStore(MemoryStore(clock=clock))
    put_store(monkeypatch, store)
    recover_by(clock, monkeypatch)
    return store


def on_api(policy: str, *given: LimitDefinition) -> None:
    """Set limits on `api`, and what happens while the store is down; known to this process."""
    limits.set_resource_limits("api", given or [CallLimit(8, 60)], on_unavailable=policy)
    resolver.get(("api", "a", (), None))


def admitted(times: int, entity: str = "a") -> int:
    """How many of some attempts are admitted."""
    return sum(bool(limits.try_acquire("api", entity=entity)) for _ in range(times))


def give_up(store: FailingStore) -> None:
    """Have the store go down, and everybody know it."""
    store.down = True
    while resilient_store().breaker.state is not BreakerState.OPEN:
        with suppress(StoreUnavailable):
            limits.try_acquire("other", default_limits=(CallLimit(1, 60),))


def test_block_refuses_with_the_time_of_the_next_probe(store: FailingStore) -> None:
    on_api("block")
    store.down = True
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match=r"the store 'default' is unavailable: connection refused") as caught:
            limits.acquire("api", entity="a")
        assert caught.value.retry_after == 0.5
        assert isinstance(caught.value.__cause__, StoreUnavailable)


def test_requests_are_blocked_by_default_while_the_store_is_unavailable(
    store: FailingStore, settings: Settings
) -> None:
    on_api("")
    store.down = True
    with pytest.raises(StoreUnavailable):
        limits.try_acquire("api", entity="a")
    settings.LIMITS = {**settings.LIMITS, "ON_UNAVAILABLE": "allow"}
    assert limits.try_acquire("api", entity="a").outcome.degraded


def test_allow_admits_requests_that_can_ever_fit(store: FailingStore) -> None:
    on_api("allow", CallLimit(2, 60), RateLimit("tpm", 10, 60), ResourceLimit("db", 1))
    store.down = True
    for _ in range(5):
        with limits.acquire("api", entity="a", requested={"tpm": 10}) as acquisition:
            acquisition.update({"tpm": 3})
            assert acquisition.outcome.degraded
            assert acquisition.outcome.as_dict()["degraded"] is True
            assert acquisition.fences == {"db": 0}
            acquisition.limit_set.store.renewer.run()
            assert not acquisition.lost_lease
    with pytest.raises(NeverAdmissible):
        limits.acquire("api", entity="a", requested={"tpm": 11})


@pytest.mark.parametrize("policy", [OnUnavailable.ALLOW, OnUnavailable.LOCAL])
def test_block_beside_limits_stays_in_force(policy: OnUnavailable, clock: FakeClock) -> None:
    scoped = ScopedLimits(scope_of("api", "a"), schema_of((CallLimit(8, 60), Blocked())))
    place = VersionedStore("default", MemoryStore(clock=clock), 0)
    found = ResolvedSet.of([scoped], place, resource="api", identity=None, on_unavailable=policy)
    assert not fallback_of(found).try_acquire()


def test_local_gives_out_the_share_of_this_process(store: FailingStore) -> None:
    on_api("local")
    store.down = True
    assert admitted(10) == 2
    assert admitted(10, "b") == 2
    with pytest.raises(LimitExceeded) as caught:
        limits.acquire("api", entity="a")
    assert caught.value.outcome.degraded
    assert caught.value.outcome.violations[0].capacity == 2


@pytest.mark.parametrize(
    ("limit", "share"),
    [
        (CallLimit(3, 60), 1),
        (CallLimit(2.5, 60), 1),
        (CallLimit(0.5, 60, burst=1), 1),
        (CallLimit(100, 3600, burst=20), 5),
        (ResourceLimit("db", 12), 3),
        (ResourceLimit("db", 2), 1),
    ],
)
def test_a_share_is_whole_and_at_least_one(store: FailingStore, limit: LimitDefinition, share: int) -> None:
    on_api("local", limit)
    store.down = True
    held = [limits.try_acquire("api", entity="a", requested={limit.key: 1}) for _ in range(20)]
    assert sum(map(bool, held)) == share


def test_a_local_limit_admits_at_most_its_share(store: FailingStore) -> None:
    on_api("local", RateLimit("tpm", 100, 60))
    store.down = True
    with pytest.raises(StoreUnavailable, match="is unavailable"):
        limits.try_acquire("api", entity="a", requested={"tpm": 26})
    with pytest.raises(NeverAdmissible, match="its most is 25"):
        limits.try_acquire("api", entity="a", requested={"tpm": 101})


def test_a_wait_for_the_share_of_this_process_ends_with_its_timeout(store: FailingStore, clock: FakeClock) -> None:
    on_api("local", CallLimit(1, 3600))
    give_up(store)
    assert admitted(1) == 1
    with pytest.raises(LimitTimeout) as caught:
        limits.acquire("api", entity="a", timeout=0.01)
    assert caught.value.outcome.degraded


def test_blocked_and_unlimited_clients_are_unaffected(store: FailingStore) -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    limits.set_entity_limits("vip", [], effect="unlimited")
    limits.set_entity_limits("spam", [], effect="blocked")
    store.down = True
    assert admitted(5, "vip") == 5
    assert admitted(5, "spam") == 0
    assert not limits.try_acquire("api", entity="spam").outcome.degraded
    assert limits.store_health()["default"].degraded == dict.fromkeys(OnUnavailable, 0)


def test_decisions_without_the_store_are_counted(store: FailingStore) -> None:
    on_api("allow")
    limits.set_resource_limits("web", [CallLimit(1, 60)], on_unavailable="block")
    store.down = True
    admitted(7)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            limits.try_acquire("web", entity="a")
    health = limits.store_health()["default"]
    assert health.degraded == {OnUnavailable.ALLOW: 7, OnUnavailable.BLOCK: 2, OnUnavailable.LOCAL: 0}
    assert health.as_dict() == {
        "state": "open",
        "error": "connection refused",
        "degraded": {"allow": 7, "block": 2, "local": 0},
        "unsettled": 0,
    }


def test_a_request_that_waits_for_a_local_share_returns_to_the_store(store: FailingStore, clock: FakeClock) -> None:
    on_api("local", CallLimit(4, 86_400))
    give_up(store)
    assert admitted(2) == 1
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limits.acquire, "api", entity="a", timeout=None)
        while not resilient_store().fallback().line.busy:
            Event().wait(0.001)
        store.down = False
        clock.advance(BACK)
        assert not waiting.result(10).outcome.degraded


def test_a_waiting_request_is_decided_by_policy_when_the_store_fails(store: FailingStore, clock: FakeClock) -> None:
    on_api("allow", CallLimit(1, 60))
    assert admitted(1) == 1
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limits.acquire, "api", entity="a", timeout=None)
        while not store.line.busy:
            Event().wait(0.001)
        store.down = True
        clock.advance(60)
        assert waiting.result(10).outcome.degraded


def test_a_release_is_settled_later(store: FailingStore, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    on_api("block", RateLimit("tpm", 10, 86_400), ResourceLimit("db", 2))
    for _ in range(2):
        with limits.acquire("api", entity="a", requested={"tpm": 5}) as acquisition:
            store.down = True
            acquisition.update({"tpm": 1})
        store.down = False
    assert acquisition.is_released
    assert not acquisition.claim.settled
    assert limits.store_health()["default"].unsettled == 2
    assert caplog.text.count("it is settled later") == 1
    clock.advance(BACK)
    assert limits.store_health()["default"].unsettled == 0
    assert acquisition.claim.settled
    stats = limits.status("api", entity="a").limits
    assert (round(float(stats["tpm"]["used"] or 0)), stats["db"]["holders"]) == (2, 0)


def test_amounts_admitted_during_an_outage_are_not_refunded_to_the_store(store: FailingStore, clock: FakeClock) -> None:
    on_api("local", ResourceLimit("db", 8))
    give_up(store)
    held = limits.acquire("api", entity="a")
    store.down = False
    clock.advance(BACK)
    asked = store.asked
    held.release()
    assert store.asked == asked
    assert limits.status("api", entity="a").limits["db"]["holders"] == 0


def test_an_outage_does_not_look_like_no_usage(store: FailingStore, clock: FakeClock) -> None:
    on_api("allow")
    give_up(store)
    asked = store.asked
    for look in (limits.status, limits.explain, limits.limit_set, limits.reset):
        with pytest.raises(StoreUnavailable, match="is unavailable"):
            look("api", entity="a")
    assert store.asked == asked
    store.down = False
    clock.advance(BACK)
    assert limits.status("api", entity="a").limits["call_count"]["used"] == 0


def test_a_change_during_an_outage(store: FailingStore, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    on_api("allow")
    version = store.version()
    give_up(store)
    limits.set_resource_limits("api", [CallLimit(1, 60)], on_unavailable="block")
    assert "has not received a change of limits" in caplog.text
    with pytest.raises(StoreUnavailable):
        limits.try_acquire("api", entity="a")
    store.down = False
    clock.advance(BACK)
    assert store.version() > version
    assert admitted(3) == 1


def test_limits_resolved_during_an_outage_use_the_store_afterwards(store: FailingStore, clock: FakeClock) -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)], on_unavailable="allow")
    give_up(store)
    assert admitted(3) == 3
    kept = resolver.cached(("api", "a", (), None))
    assert kept is not None
    with pytest.raises(StaleConfiguration):
        kept.limit_set.try_acquire()
    store.down = False
    clock.advance(BACK)
    assert admitted(3) == 1
    assert limits.limit_set("api", "a").try_acquire() is not None


def test_limits_of_an_outage_are_cached(store: FailingStore, django_assert_num_queries: Callable[[int], Any]) -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)], on_unavailable="allow")
    give_up(store)
    assert admitted(1, "b") == 1
    asked = store.asked
    with django_assert_num_queries(0):
        assert admitted(1, "b") == 1
        assert limits.acquire("api", entity="b", timeout=1).outcome.degraded
        assert async_to_sync(_ask)()
    assert store.asked == asked


def test_an_unopened_store_is_down(store: FailingStore, clock: FakeClock) -> None:
    on_api("allow")
    resolver.clear()

    def cannot_open(alias: str) -> FailingStore:
        raise StoreUnavailable("no space left")

    with registry.instead(cannot_open):
        assert admitted(5) == 5
        clock.advance(BACK)
        assert limits.store_health()["default"].error == "no space left"
    clock.advance(BACK)
    assert not limits.try_acquire("api", entity="a").outcome.degraded


def test_asyncio_is_answered_by_policy_alike(store: FailingStore, clock: FakeClock) -> None:
    on_api("local")
    store.down = True

    async def course() -> list[bool]:
        return [bool(await limits.atry_acquire("api", entity="a")) for _ in range(6)]

    async def refused() -> None:
        with pytest.raises(LimitExceeded):
            await limits.aacquire("api", entity="a")

    assert async_to_sync(course)() == [True, True, False, False, False, False]
    async_to_sync(refused)()
    store.down = False
    clock.advance(BACK)
    resilient_store().record_failure(StoreUnavailable("only once"))
    assert async_to_sync(course)() == [True] * 6


def test_last_known_limits_during_a_database_outage(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_TTL_SECONDS": 1e-9}
    limits.set_resource_limits("api", [CallLimit(2, 60)])
    assert admitted(1) == 1
    with connection.execute_wrapper(_unreachable):
        assert admitted(3) == 1
    assert "the limits cannot be read from the database 'default': server closed" in caplog.text


@pytest.mark.parametrize("word", ["block", "allow"])
def test_while_the_database_is_down_a_setting_decides_about_the_unknown(settings: Settings, word: str) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNRESOLVED": word}
    with connection.execute_wrapper(_unreachable):
        if word == "allow":
            assert admitted(3) == 3
            assert async_to_sync(_ask)()
            return
        with pytest.raises(StoreUnavailable, match="the limits cannot be read from the database") as caught:
            limits.acquire("api", entity="a")
        assert caught.value.retry_after == 0.5
    assert limits.store_health()["default"].state is BreakerState.CLOSED


def test_an_error_of_the_function_that_returns_the_amounts_is_raised(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNRESOLVED": "allow"}

    def amounts(_limits: LimitSet) -> NoReturn:
        raise OperationalError("no such table: sizes")

    with pytest.raises(OperationalError, match="sizes"):
        limits.try_acquire("api", requested=amounts)


def test_a_rejection_by_the_function_that_returns_the_amounts_is_raised(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNRESOLVED": "allow"}
    own = LimitSet("calls=1/h")
    own.try_acquire()
    with connection.execute_wrapper(_unreachable), pytest.raises(LimitExceeded, match="'call_count' has 0 of 1 left"):
        limits.try_acquire("api", requested=lambda _: own.acquire(timeout=0).requested)


def test_no_key_is_unknown_during_a_database_outage(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNRESOLVED": "allow", "UNKNOWN_KEYS": "raise"}
    with connection.execute_wrapper(_unreachable):
        assert limits.acquire("api", entity="a", requested={"tokens": 5})
    assert not [message for message in caplog.messages if "tokens" in message]


def _unreachable(*args: object) -> object:
    raise OperationalError("server closed the connection")


async def _ask() -> bool:
    return bool(await limits.atry_acquire("api", entity="b"))
