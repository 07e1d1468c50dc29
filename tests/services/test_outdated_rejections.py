"""Rejections for which no store is asked: each process finds out that limits are outdated before it gives one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from pytest_django import DjangoAssertNumQueries

from limits_app import InvalidRequest, LimitSet, NeverAdmissible, limits
from limits_app.acquiring.store import Store
from limits_app.engine import checked_limits
from limits_app.models import Entity, Limit, Policy, PolicyEffect, PoolMember, Resource
from limits_app.services.amounts import known_amounts
from limits_app.services.several import Share, foresee
from limits_app.services.task_waiting import Waiting
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.redis import RedisStore
from tests.opened import fail_at, put_store
from tests.servers import shared
from tests.services.pool_rows import make_pool, serve
from tests.stores.redis.support import store_on

BEFORE, AFTER = "tokens=50/month", "seats=50"
"""Limits by which a request without amounts is invalid, and limits by which it is not."""
WHOLE, PARTS = "tokens=10/month", "tokens=10/min"
"""Limits that are requested in whole numbers, and in parts."""
HALF = {"tokens": 0.5}


class Watched(MemoryStore):
    """Counts what is read of the version of the configuration."""

    reads = 0

    def version(self, namespace: str = "") -> int:
        self.reads += 1
        return super().version(namespace)

    def changes_since(self, version: int, namespace: str = "") -> Any:
        self.reads += 1
        return super().changes_since(version, namespace)


@pytest.fixture(params=["memory", "process", pytest.param("redis", marks=pytest.mark.server)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store of the limits."""
    store: MemoryStore | ProcessStore | RedisStore
    if request.param == "memory":
        store = MemoryStore()
    elif request.param == "process":
        store = ProcessStore(tmp_path / "limits.db")
    else:
        store = store_on(shared.redis())
    put_store(monkeypatch, store)
    yield store
    if not isinstance(store, MemoryStore):
        store.close()


def first_of(limits_: LimitSet) -> dict[str, float]:
    """An amount of the tokens, which a function of the site finds in the limits."""
    return {"tokens": limits_["tokens"].ceiling / 100}


VERBS: dict[str, Callable[[Any], object]] = {
    "try_acquire": lambda amounts: limits.try_acquire("api", entity="user:1", requested=amounts),
    "atry_acquire": lambda amounts: async_to_sync(limits.atry_acquire)("api", entity="user:1", requested=amounts),
    "waiting": lambda amounts: limits.acquire("api", entity="user:1", requested=amounts, timeout=5),
    "waiting in a task": lambda amounts: async_to_sync(limits.aacquire)(
        "api", entity="user:1", requested=amounts, timeout=5
    ),
    "check": lambda amounts: limits.check("api", entity="user:1", requested=amounts).allowed,
    "idempotency key": lambda amounts: limits.try_acquire(
        "api", entity="user:1", requested=amounts, idempotency_key=f"upload {amounts}"
    ),
    "resources": lambda amounts: limits.try_acquire({"api": amounts, "mail": None}, entity="user:1"),
    "resources with a key": lambda amounts: limits.try_acquire(
        {"mail": None, "api": amounts}, entity="user:1", idempotency_key=f"uploads {amounts}"
    ),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("store")
def test_an_invalid_request_is_decided_by_the_latest_limits(verb: str) -> None:
    use = VERBS[verb]
    limits.set_resource_limits("mail", "seats=50")
    for before, after, amounts in ((BEFORE, AFTER, None), (WHOLE, PARTS, HALF)):
        limits.set_resource_limits("api", before)
        for _ in range(2):
            with pytest.raises(InvalidRequest):
                use(amounts)
        limits.set_resource_limits("api", after)
        assert use(amounts)


@pytest.mark.usefixtures("store")
def test_a_function_of_the_limits_that_fails_is_called_with_the_latest_ones() -> None:
    for key in (None, "upload 3"):
        limits.set_resource_limits("api", "bytes=100/min")
        with pytest.raises(KeyError):
            limits.try_acquire("api", requested=first_of, idempotency_key=key)
        limits.set_resource_limits("api", "tokens=500/min")
        assert limits.try_acquire("api", requested=first_of, idempotency_key=key).requested["tokens"] == 5
        with pytest.raises(LookupError, match="of the site"):
            limits.try_acquire("api", requested=fail, idempotency_key=key)


def fail(_: LimitSet) -> dict[str, float]:
    raise LookupError("of the site")


@pytest.mark.parametrize("in_task", [False, True])
@pytest.mark.usefixtures("store")
def test_an_invalid_extension_is_decided_by_the_latest_limits(in_task: bool) -> None:
    def extend(amounts: dict[str, float]) -> None:
        if in_task:
            async_to_sync(held.aextend)(amounts)
        else:
            held.extend(amounts)

    limits.set_resource_limits("api", WHOLE)
    held = limits.acquire("api", entity="user:1", requested={"tokens": 1})
    for _ in range(2):  # the limits of the acquisition stay those of its admission
        limits.set_resource_limits("api", WHOLE)
        with pytest.raises(InvalidRequest):
            extend(HALF)
        limits.set_resource_limits("api", PARTS)
        extend(HALF)
        extend(HALF)
    held.cancel()


@pytest.mark.usefixtures("store")
def test_an_invalid_request_of_a_pool_is_decided_by_its_latest_members() -> None:
    pool = make_pool({"a": checked_limits(BEFORE)})
    serve("api", pool)
    for acquire in (lambda: limits.try_acquire("api"), limits.pool(pool.name).try_acquire):
        with pytest.raises(InvalidRequest):
            acquire()
    Limit.objects.all().delete()
    Limit.from_definition(PoolMember.objects.get(), *checked_limits(AFTER)).save()
    for acquire in (lambda: limits.try_acquire("api"), limits.pool(pool.name).try_acquire):
        assert acquire()


@pytest.mark.usefixtures("store")
def test_resources_of_several_pools_are_requested_as_soon_as_they_share_one() -> None:
    first, second = (make_pool({"a": checked_limits(AFTER)}, name=name) for name in ("one", "two"))
    serve("api", first)
    serve("mail", second)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="by one pool"):
            limits.try_acquire({"api": None, "mail": None})
    serve("mail", first)
    assert limits.try_acquire({"api": None, "mail": None})


@pytest.mark.usefixtures("store")
def test_a_key_is_unknown_by_the_latest_limits() -> None:
    limits.set_resource_limits("api", BEFORE)
    with pytest.raises(InvalidRequest, match="seats"):
        known_amounts("api", None, {"seats": 1})
    limits.set_resource_limits("api", AFTER)
    assert known_amounts("api", None, {"seats": 1}) == {"seats": 1}


def tell(**fields: Any) -> Entity:
    entity, _ = Entity.objects.update_or_create(identifier="user:1", defaults=fields)
    return entity


def exempt() -> Policy:
    return Policy.objects.create(
        entity=tell(),
        resource=Resource.objects.get(name="api"),
        effect=PolicyEffect.UNLIMITED,
    )


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object], bool]] = {
    "no limits": (lambda: None, lambda: limits.set_resource_limits("api", BEFORE), True),
    "unlimited policy": (
        lambda: (limits.set_resource_limits("api", BEFORE), exempt()),
        lambda: Policy.objects.filter(effect=PolicyEffect.UNLIMITED).delete(),
        True,
    ),
    "blocked": (lambda: tell(blocked=True), lambda: tell(blocked=False), False),
    "unlimited client": (
        lambda: (limits.set_resource_limits("api", BEFORE), tell(unlimited=True)),
        lambda: tell(unlimited=False),
        True,
    ),
    "never admissible": (
        lambda: limits.set_resource_limits("api", BEFORE),
        lambda: limits.set_resource_limits("api", "tokens=100/month"),
        False,
    ),
    "switched off": (
        lambda: (limits.set_resource_limits("api", BEFORE), limits.set_emergency("off", reason="a test")),
        lambda: limits.set_emergency("enforce", reason="a test"),
        True,
    ),
}
"""What is there first, how it is changed, and whether a request is admitted before; after the change it is not."""


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.usefixtures("store")
def test_every_other_decision_is_by_the_latest_configuration(what: str) -> None:
    prepare, change, is_admitted = CHANGES[what]

    def decided() -> bool:
        try:
            return bool(limits.try_acquire("api", entity="user:1", requested={"tokens": 60}))
        except NeverAdmissible:
            return False

    prepare()
    assert [decided(), decided()] == [is_admitted, is_admitted]
    change()
    assert decided() is not is_admitted


def test_an_invalid_request_reads_the_version_once_and_queries_nothing(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    watched = Watched()
    put_store(monkeypatch, watched)
    for name in ("api", "mail"):
        limits.set_resource_limits(name, BEFORE)
    for use in VERBS.values():
        with suppress(InvalidRequest):
            use(None)
        before = watched.reads
        with django_assert_num_queries(0), pytest.raises(InvalidRequest):
            use(None)
        assert watched.reads == before + 1


def test_an_invalid_request_stays_invalid_while_its_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", BEFORE)
    with pytest.raises(InvalidRequest):
        limits.try_acquire("api")
    fail_at(monkeypatch, "version", "changes_since")
    with pytest.raises(InvalidRequest):
        limits.try_acquire("api")


@pytest.mark.usefixtures("store")
def test_a_task_waits_in_the_line_of_the_latest_limits() -> None:
    limits.set_resource_limits("api", "1/month")
    limits.acquire("api", entity="user:1").release()
    Waiting({}).seconds_to_retry(limits.try_acquire("api", entity="user:1"), 0)
    for _ in range(2):
        assert foresee(Share("api", "user:1"), Waiting({}).seconds_to_turn) > 0
    limits.set_resource_limits("api", "seats=50")
    assert foresee(Share("api", "user:1"), Waiting({}).seconds_to_turn) == 0
