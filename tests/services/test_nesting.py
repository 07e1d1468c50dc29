"""Nested acquires of what was resolved: nobody waits for permits that their own thread or task has."""

from __future__ import annotations

from threading import Thread

from limits_app import CallLimit, ResourceLimit, limits
from limits_app.models import Entity
from limits_app.policies import resolver
from limits_app.services.pools import member_use
from tests.services.pool_rows import CALLS, NAME, make_pool, serve

DB = ResourceLimit("db", 1)
GPU = ResourceLimit("gpu", 1)


def held(resource: str, key: str = "db", entity: str | None = None) -> object:
    """How many permits of a resource are lent."""
    return limits.status(resource, entity=entity).limits[key]["used"]


def by_member(key: str) -> list[object]:
    """How many permits each member of the pool has lent."""
    return [one[key]["used"] for one in member_use(NAME).values()]


def test_permits_of_the_resource_are_taken_once_whichever_members_serve() -> None:
    serve("llm", make_pool({"a": [CALLS], "b": [CALLS]}))
    limits.set_resource_limits("llm", [DB])
    with limits.acquire("llm") as outer, limits.acquire("llm") as inner, limits.acquire("llm") as innermost:
        assert [one.config["member"] for one in (outer, inner, innermost)] == ["a", "b", "a"]
        assert "db" not in inner.acquisitions
        assert held("llm") == 1
    assert held("llm") == 0


def test_permits_of_each_member_are_taken_once() -> None:
    serve("llm", make_pool({"a": [CALLS, DB], "b": [CALLS, DB]}))
    limits.set_resource_limits("llm", [DB])
    with limits.acquire("llm"), limits.acquire("llm"), limits.acquire("llm"), limits.acquire("llm"):
        assert held("llm") == 1
        assert by_member("db") == [1, 1]
    assert (held("llm"), by_member("db")) == (0, [0, 0])


def test_a_pool_by_its_name_lends_each_permit_once_also_after_a_change() -> None:
    make_pool({"a": [DB]})
    pool = limits.pool(NAME)
    with pool.acquire():
        limits.set_resource_limits("another", [CALLS])
        with pool.acquire(timeout=0):
            assert by_member("db") == [1]
    assert by_member("db") == [0]


def test_a_set_that_is_resolved_again_is_the_same_set() -> None:
    limits.set_resource_limits("api", [DB])
    with limits.acquire("api"):
        limits.set_resource_limits("api", [DB, CallLimit(9, 60)])
        resolver.clear()
        with limits.acquire("api") as inner:
            assert set(inner.acquisitions) == {"call_count"}
            assert held("api") == 1
    assert held("api") == 0


def test_several_resources_are_one_set() -> None:
    limits.set_resource_limits("api", [DB])
    limits.set_resource_limits("llm", [GPU])
    both = {"api": None, "llm": None}
    with limits.acquire(both), limits.acquire(both):
        assert (held("api"), held("llm", "gpu")) == (1, 1)
        with limits.acquire(both, idempotency_key="one"):
            assert (held("api"), held("llm", "gpu")) == (1, 1)


def test_what_another_entity_or_thread_does_takes_permits_of_its_own() -> None:
    tenant = Entity.objects.create(identifier="tenant:acme")
    for who in ("user:1", "user:2"):
        Entity.objects.create(identifier=who, parent=tenant, cascade=True)
    limits.set_resource_limits("api", [ResourceLimit("db", 2)])
    with limits.acquire("api", entity="user:1"), limits.acquire("api", entity="user:2"):
        assert held("api", entity="tenant:acme") == 2
        seen: list[bool] = []
        thread = Thread(target=lambda: seen.append(bool(limits.try_acquire("api", entity="user:1"))))
        thread.start()
        thread.join()
        assert seen == [False], "the tenant has none left"
