"""Resources that are counted in different stores: one in memory, and one that processes share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from limits_app import CallLimit, LimitExceeded, StoreUnavailable, conf, limits
from limits_app.acquiring.breaker import BreakerState
from limits_app.engine.errors import InvalidRequest
from limits_app.models import Entity, Pool, PoolMember, Resource, UsagePeriod, UsageSnapshot
from limits_app.models import Limit as Row
from limits_app.policies import resolver
from limits_app.services import overview
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.registry import resilient_store
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.servers.redis import redis_server
from tests.services.failing import FailingStore, recover_by

HOUR = 3600
Stores = dict[str, FailingStore]


@pytest.fixture(autouse=True)
def site(clock: FakeClock, settings: Settings, tmp_path: Path) -> None:
    """`near` is counted in the default store, `far` and `farther` in the other one; each admits 3 an hour."""
    shared = {"KIND": "process", "STATE_DIR": str(tmp_path), "MAP_MEGABYTES": 4}
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}, "shared": shared}}
    for name, alias in {"near": "", "far": "shared", "farther": "shared"}.items():
        Resource.objects.create(name=name, store=alias)
        limits.set_resource_limits(name, [CallLimit(3, HOUR)], on_unavailable="allow")


@pytest.fixture
def stores(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Stores:
    """Both stores, as ones that can go down, and whose recovery goes by the clock of the test."""
    found = {}
    for alias in conf.get(conf.STORES):
        found[alias] = FailingStore(MemoryStore(clock=clock))
        put_store(monkeypatch, found[alias], alias)
        recover_by(clock, monkeypatch, alias)
    resolver.clear()
    return found


def admitted(resource: str, times: int = 5, entity: str = "a") -> int:
    """How many of some requests are admitted."""
    return sum(limits.try_acquire(resource, entity=entity).successful for _ in range(times))


def used(resource: str, entity: str | None = "a") -> Any:
    return whole(limits.status(resource, entity=entity).limits["call_count"]["used"])


def whole(amount: Any) -> int:
    """An amount without the little that has come back in the meantime."""
    return round(amount)


def move(resource: str, alias: str) -> None:
    row = Resource.objects.get(name=resource)
    row.store = alias
    row.save()


def test_each_resource_is_counted_in_its_store() -> None:
    assert (admitted("near"), admitted("far")) == (3, 3)
    near, far = limits.limit_set("near", "a"), limits.limit_set("far", "a")
    assert (near.store.remote, type(far.store.inner).__name__) == (False, "ProcessStore")  # type: ignore[attr-defined]
    assert type(near.store.inner) is MemoryStore  # type: ignore[attr-defined]


def test_all_verbs_are_about_the_store_of_the_resource() -> None:
    limits.acquire("far", entity="a")
    limits.acquire("far", entity="a", timeout=1)
    Entity.objects.create(identifier="a")
    assert whole(limits.status("far").used_by_all["call_count"]) == 2
    assert whole(limits.check("far", entity="a").passed[0].remaining) == 1
    limits.top_up("far", key="call_count", amount=1, entity="a")
    assert used("far") == 1
    limits.reset("far", entity="a")
    assert used("far") == 0
    limits.boost("a", "far", Decimal(2), timezone.now() + timedelta(hours=1), "a fair")
    assert admitted("far", 9) == 6
    [row] = overview([(Resource.objects.get(name="far"), Entity.objects.get())])
    assert [(whole(one.used), whole(one.available)) for one in row.limits] == [(6, 0)]
    with pytest.raises(LimitExceeded):
        limits.acquire("far", entity="a")


def test_an_explanation_names_the_store() -> None:
    far, near = limits.explain("far", entity="a"), limits.explain("near", entity="a")
    assert (far.store, far.as_dict()["store"], near.store) == ("shared", "shared", None)
    assert "It is counted in the store 'shared'." in far.text()
    assert "store" not in near.text()


def test_what_is_tried_in_the_shadow_is_tried_in_the_same_store(stores: Stores) -> None:
    limits.set_entity_limits("a", [CallLimit(1, HOUR)], resource="far", enforcement="shadow")
    assert [bool(limits.acquire("far", entity="a").outcome.shadowed) for _ in range(2)] == [False, True]
    acquire = stores["shared"].acquire
    asked = []

    def fail_the_second(claim: Any) -> bool:
        asked.append(claim)
        if len(asked) == 2:
            raise StoreUnavailable("a lost reply")
        return acquire(claim)

    stores["shared"].acquire = fail_the_second  # type: ignore[method-assign]
    resolver.clear()
    limits.acquire("far", entity="a")
    assert (resilient_store("shared").failing, resilient_store().failing) == (True, False)


def test_a_pool_is_counted_in_the_store_of_the_resource_that_it_serves() -> None:
    pool = Pool.objects.create(name="regions")
    member = PoolMember.objects.create(pool=pool, name="eu")
    limit = Row.from_definition(member, CallLimit(2, HOUR))
    limit.save()
    Resource.objects.update(pool=pool)
    assert (admitted("near"), admitted("far")) == (2, 2)
    assert whole(limits.status("far").members["eu"]["call_count"]["used"]) == 2
    assert not limits.pool("regions").try_acquire()
    resolver.clear()
    assert resolver.get(("far", "a", (), None)).members is resolver.get(("farther", "a", (), None)).members


def test_a_moved_resource_starts_empty_and_finds_its_state_when_moved_back() -> None:
    assert admitted("far") == 3
    move("far", "")
    assert admitted("far") == 3
    move("far", "shared")
    assert admitted("far") == 0


def test_one_query_reads_limits_and_store(stores: Stores, django_assert_num_queries: Callable[[int], Any]) -> None:
    for alias, resource in {"default": "near", "shared": "far"}.items():
        with django_assert_num_queries(1):
            assert limits.try_acquire(resource, entity="b")
        stores[alias].down = True
        with django_assert_num_queries(1):
            assert limits.try_acquire(resource, entity="c").outcome.degraded
        with django_assert_num_queries(0):
            assert limits.try_acquire(resource, entity="b").outcome.degraded
        stores[alias].down = False


@pytest.mark.parametrize(("down", "there", "elsewhere"), [("default", "near", "far"), ("shared", "far", "near")])
def test_an_outage_affects_one_store(stores: Stores, clock: FakeClock, down: str, there: str, elsewhere: str) -> None:
    assert admitted(elsewhere, 1) == 1
    stores[down].down = True
    assert admitted(there, 9) == 9
    assert resilient_store(down).breaker.state is BreakerState.OPEN
    outcomes = [limits.try_acquire(elsewhere, entity=who).outcome for who in ("a", "b", "b", "b", "b")]
    assert [outcome.allowed for outcome in outcomes] == [True, True, True, True, False]
    assert not any(outcome.degraded for outcome in outcomes)
    limits.set_resource_limits(elsewhere, [CallLimit(9, HOUR)])
    assert admitted(elsewhere, 9, "b") == 6
    assert async_to_sync(limits.atry_acquire)(elsewhere, entity="c")
    assert async_to_sync(limits.atry_acquire)(there, entity="c").outcome.degraded
    assert (used(elsewhere, "b"), limits.explain(elsewhere, entity="b").outcome.allowed) == (9, False)
    for ask in (limits.status, limits.explain, limits.reset, limits.limit_set):
        with pytest.raises(StoreUnavailable, match=f"the store '{down}' is unavailable"):
            ask(there)
    rows = overview([(Resource.objects.get(name=name), None) for name in (there, elsewhere)])
    assert [row.known for row in rows] == [False, True]
    health = limits.store_health()
    assert (sum(health[down].degraded.values()) > 9, health[down].state) == (True, BreakerState.OPEN)
    others = next(alias for alias in stores if alias != down)
    assert sum(health[others].degraded.values()) == 0
    stores[down].down = False
    clock.advance(2)
    assert not limits.try_acquire(there, entity="d").outcome.degraded


def test_a_store_that_fails_while_a_list_is_made_leaves_its_rows_unknown(stores: Stores) -> None:
    pairs = [(Resource.objects.get(name=name), None) for name in ("near", "far")]
    version = stores["shared"].version()
    stores["shared"].version = lambda *_: setattr(stores["shared"], "down", True) or version  # type: ignore[method-assign]
    assert [row.known for row in overview(pairs)] == [True, False]
    stores["shared"].down = False
    stores["shared"].version = lambda *_: version  # type: ignore[method-assign]
    peek = stores["shared"].peek
    stores["shared"].peek = lambda claim: peek(claim) or setattr(stores["shared"], "down", True)  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="the store 'shared' is unavailable"):
        limits.status("far")


def test_a_change_counts_in_each_store_also_when_another_process_made_it(tmp_path: Path) -> None:
    assert admitted("far") == 3
    with connection.cursor() as cursor:  # past this process, which is not to know of it
        cursor.execute("UPDATE limits_app_limit SET text = '5/min'")
    assert admitted("far") == 0
    told = "from limits_app.stores.process import open_process_store as o; import sys; o(sys.argv[1], map_megabytes=4)"
    subprocess.run([sys.executable, "-c", f"{told}.advance_version()", str(tmp_path)], check=True, timeout=60)
    assert admitted("far") == 2


def test_resources_in_different_stores_cannot_be_charged_together() -> None:
    problem = r"must be in one store, and are in several: near in 'default', far in 'shared'"
    for ask in (limits.try_acquire, limits.acquire, async_to_sync(limits.atry_acquire)):
        with pytest.raises(InvalidRequest, match=problem):
            ask({"near": None, "far": None}, entity="a")
    with pytest.raises(InvalidRequest, match=problem):
        limits.try_acquire({"near": None, "far": None}, entity="a", idempotency_key="order 7")
    assert (used("near"), used("far")) == (0, 0)


def test_resources_in_one_store_are_charged_together_wherever_that_is(settings: Settings, stores: Stores) -> None:
    together = {"far": None, "farther": None}
    assert limits.try_acquire(together, entity="a")
    assert async_to_sync(limits.atry_acquire)(together, entity="a")
    stores["shared"].down = True
    assert limits.try_acquire(together, entity="a").outcome.degraded
    stores["shared"].down = False
    settings.LIMITS = {**settings.LIMITS, "STORE": "shared"}
    Resource.objects.filter(name="farther").update(store="")
    assert (
        resolver.latest(("farther", None, (), None)).alias == resolver.latest(("far", None, (), None)).alias == "shared"
    )


def test_resources_that_moved_together_are_charged_together() -> None:
    together = {"far": None, "farther": None}
    assert limits.try_acquire(together, entity="a")
    Resource.objects.filter(name__in=together).update(store="")
    assert limits.try_acquire("far", entity="a")  # known to have moved, and the other not yet
    assert limits.try_acquire(together, entity="a")
    assert (used("far"), used("farther")) == (2, 1)


def test_a_removed_store_is_unavailable(settings: Settings, django_assert_num_queries: Callable[[int], Any]) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    assert admitted("near") == 3
    assert limits.try_acquire("far", entity="a").outcome.degraded
    for _ in range(2):
        with suppress(StoreUnavailable):
            limits.status("far")
    with django_assert_num_queries(0):
        assert admitted("far", 9) == 9
    limits.set_resource_limits("far", [CallLimit(3, HOUR)], on_unavailable="block")
    with pytest.raises(
        StoreUnavailable, match=r"the store 'shared' is unavailable: LIMITS\['STORES'\] has no 'shared'"
    ):
        limits.try_acquire("far", entity="a")
    assert admitted("near", 3, "b") == 3
    assert limits.store_health()["shared"].degraded[conf.OnUnavailable.ALLOW] == 10
    move("far", "")
    assert not limits.try_acquire("far", entity="a").outcome.degraded


def test_what_is_admitted_is_counted_in_each_store_and_rolled_up_from_all() -> None:
    assert (admitted("near", 2), admitted("far", 3)) == (2, 3)
    assert limits.roll_up().added == {"default": 1, "shared": 1}
    hours = UsageSnapshot.objects.filter(period=UsagePeriod.HOUR)
    assert {one.resource: one.admitted_milli for one in hours} == {"near": 2_000, "far": 3_000}


@pytest.mark.server
def test_a_redis_that_is_killed_leaves_the_process_store_alone(settings: Settings) -> None:
    with redis_server() as server:
        redis = {"KIND": "redis", "URL": server.url}
        settings.LIMITS = {"STORES": settings.LIMITS["STORES"] | {"default": redis}}
        assert (admitted("near", 2), admitted("far", 2)) == (2, 2)
        server.kill()
        assert limits.try_acquire("near", entity="a").outcome.degraded
        assert not limits.try_acquire("far", entity="a").outcome.degraded
        assert admitted("far", 5, "b") == 3
        registry.store().close()  # type: ignore[attr-defined]
