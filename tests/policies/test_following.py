"""What a process reads again after a change, and that no request is decided by limits that were replaced."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from threading import Event, Thread, current_thread
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from limits_app import CallLimit, limits
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.change_log import Changes
from limits_app.models import Entity, Plan, Policy, PolicyEffect, Resource
from limits_app.policies import ResolutionKey, ResolvedSet, client_resolver, configuration, resolver
from limits_app.policies.identifiers import Known, KnownIdentifiers
from limits_app.policies.kept_configuration import KeptConfiguration
from limits_app.policies.precedence import rollout_position
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from tests.flushing import made_once
from tests.opened import fail_at, put_store
from tests.replacing import at_next_call
from tests.services.wall import Wall

CLIENT = "user:1"


def read_all() -> None:
    """Read which identifiers have rows, as the background thread does."""
    resolver.get(("unused", None, (), None))
    while configuration.current().known.read_page():
        pass


@pytest.fixture
def api() -> None:
    """A limit of 1,000 for each client on a resource, a tenant, and a client with a limit of its own."""
    made_once("following", make_rows)
    read_all()


def make_rows() -> None:
    limits.set_resource_limits("api", [CallLimit(1000, 60)])
    for entity in ("user:own", "user:alike"):
        limits.set_entity_limits(entity, [CallLimit(2000, 60)], resource="api")
    Entity.objects.create(identifier="tenant:acme")
    Plan.objects.create(name="pro")
    limits.set_plan_limits("pro", [CallLimit(3000, 60)], resource="api")


def capacity(entity: str | None = CLIENT, resource: str = "api", **options: Any) -> int:
    """The limit of an admitted request."""
    with limits.acquire(resource, entity=entity, **options) as acquisition:
        [status] = acquisition.outcome.passed
    return int(status.capacity)


def queries(*entities: str | None, **options: Any) -> int:
    """How many queries the requests of some clients make."""
    with CaptureQueriesContext(connection) as captured:
        for entity in entities:
            capacity(entity, **options)
    return len(captured)


# ------------------------------------------------------------------------------------------ what is read


def shape_of(limit_set: LimitSet) -> object:
    """What was compiled for requests of one call, the same object for sets that share it."""
    return limit_set.prepare(None).claim.plan.shape


def test_clients_without_rows_cost_no_query(api: None) -> None:
    assert queries("user:7") == 1
    assert queries(*[f"user:{number}" for number in range(50)], "ip:10.0.0.1", "ip:2001:db8::/64", None) == 0


def test_clients_without_rows_share_compiled_limits(api: None) -> None:
    first, second = (resolver.get(("api", name, (), None)) for name in ("user:7", "user:8"))
    assert first.limit_set.scopes != second.limit_set.scopes
    assert shape_of(first.limit_set) is shape_of(second.limit_set)
    assert [scope.entity for scope in second.limit_set.scopes] == ["user:8"]
    assert configuration.current().clients.values == {} or all(
        key[1] == "user:own" for key in configuration.current().clients.values
    )


@pytest.mark.slow
@pytest.mark.parametrize("resource", ["api", "unlimited"])
def test_client_that_is_not_seen_again_leaves_the_garbage_collector_nothing(resource: str, api: None) -> None:
    def request(names: Iterable[str]) -> int:
        for name in names:
            resolver.get((resource, name, (), None))
        gc.collect()
        return len(gc.get_objects())

    before = request(f"user:before {number}" for number in range(300))
    assert request(f"user:once {number}" for number in range(100)) - before < 10
    for name in [f"user:regular {number}" for number in range(50)]:
        _, second, third = (resolver.get((resource, name, (), None)) for _ in range(3))
        assert second is third, "whoever comes back is kept"


def test_client_with_rows_is_one_query(api: None) -> None:
    assert queries("user:own") == 1
    assert queries("user:own", "user:own") == 0
    assert capacity("user:own") == 2000


def test_sets_of_returning_clients_are_kept(settings: Settings, api: None) -> None:
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_MAX_ENTRIES": 3}
    Entity.objects.bulk_create([Entity(identifier=f"key:{number}") for number in range(6)])
    read_all()
    capacity("user:own")
    for number in range(6):
        capacity(f"key:{number}")
        assert queries("user:own") == 0
    assert len(configuration.current().clients) == 3


@pytest.mark.parametrize("number", [2, 100])
def test_many_clients_are_read_in_one_query(number: int, api: None) -> None:
    limits.set_entity_limits("tenant:acme", [CallLimit(70, 60)], resource="api")
    tenant = Entity.objects.get(identifier="tenant:acme")
    names = [f"key:{place}" for place in range(number)]
    Entity.objects.bulk_create([Entity(identifier=name, parent=tenant, cascade=True) for name in names[1:]])
    limits.set_entity_limits(names[0], [CallLimit(5, 60)], resource="api")
    read_all()
    capacity(None)  # applies the changes
    keys: list[ResolutionKey] = [("api", name, (), None) for name in names]
    with CaptureQueriesContext(connection) as captured:
        resolver.prefetch(iter([*keys, *keys]))
        found = [len(resolver.get(key).limit_set.scoped) for key in keys]
    assert len(captured) == 1
    assert found == [1, *[2] * (number - 1)]
    assert [capacity(name) for name in names[:1]] == [5]


def test_clients_without_rows_are_read_once_and_those_that_are_kept_not_again(api: None) -> None:
    names = [f"user:{number}" for number in range(150)]
    with CaptureQueriesContext(connection) as captured:
        resolver.prefetch([("api", name, (), None) for name in names])
    assert len(captured) == 1
    assert "UNION ALL SELECT 1," not in captured[0]["sql"], "all of them have one template"
    assert queries(*names) == 0
    with CaptureQueriesContext(connection) as captured:
        resolver.prefetch([("api", name, (), None) for name in [*names, "user:own"]])
    assert len(captured) == 1


CLIENT_CHANGES: dict[str, Callable[[], object]] = {
    "limit": lambda: limits.set_entity_limits("user:own", [CallLimit(5, 60)], resource="api"),
    "block": lambda: Entity.objects.filter(identifier="user:own").update(unlimited=True),
    "parent": lambda: Entity.objects.filter(identifier="user:own").update(
        parent=Entity.objects.get(identifier="tenant:acme")
    ),
    "new row": lambda: Entity.objects.create(identifier="user:new"),
    "other tenant": lambda: Entity.objects.filter(identifier="tenant:acme").update(plan=Plan.objects.get()),
    "deleted row": lambda: Policy.objects.filter(entity__identifier="user:own").delete(),
}


@pytest.mark.parametrize("change", CLIENT_CHANGES)
def test_change_of_client_costs_others_no_query(change: str, api: None) -> None:
    Entity.objects.create(identifier="user:other")
    queries("user:7", "user:other")
    CLIENT_CHANGES[change]()
    assert queries("user:7", "user:other", "user:8", None) == 0


def test_change_of_client_is_one_query_for_it(api: None) -> None:
    queries("user:own", "user:7")
    limits.set_entity_limits("user:own", [CallLimit(5, 60)], resource="api")
    assert queries("user:own", "user:own", "user:7") == 1
    assert capacity("user:own") == 5


OTHER_CHANGES: dict[str, Callable[[], object]] = {
    "resource": lambda: limits.set_resource_limits("api", [CallLimit(77, 60)]),
    "system": lambda: limits.set_system_limits([CallLimit(77, 60)]),
    "plan": lambda: limits.set_plan_limits("pro", [CallLimit(77, 60)], resource="api"),
    "pattern": lambda: limits.set_entity_limits("key:*", [CallLimit(77, 60)], resource="api"),
}


@pytest.mark.parametrize("change", OTHER_CHANGES)
def test_other_changes_are_one_query_for_each_template(change: str, api: None) -> None:
    limits.set_resource_limits("other", [CallLimit(9, 60)])
    read_all()
    queries("user:7", "user:8")
    queries("user:7", "user:8", resource="other")
    OTHER_CHANGES[change]()
    with CaptureQueriesContext(connection) as captured:
        for resource in ("api", "other"):
            for entity in ("user:7", "user:8", "user:9"):
                capacity(entity, resource)
    policies = [query for query in captured if "WITH RECURSIVE" in query["sql"]]
    latest = [query for query in captured if "WITH RECURSIVE" not in query["sql"]]
    assert (len(policies), len(latest)) == (2, 1 if change == "pattern" else 0)


# ------------------------------------------------------------------------------------------ what applies


def test_patterns_and_networks_apply_without_a_query(api: None) -> None:
    limits.set_entity_limits("key:*", [CallLimit(10, 60)], resource="api")
    limits.set_entity_limits("key:eu-*", [CallLimit(11, 60)], resource="api")
    limits.set_entity_limits("ip:10.0.0.0/8", [CallLimit(12, 60)], resource="api")
    found = {name: capacity(name) for name in ("key:1", "key:eu-1", "ip:10.1.1.1", "ip:11.1.1.1", "user:1")}
    assert found == {"key:1": 10, "key:eu-1": 11, "ip:10.1.1.1": 12, "ip:11.1.1.1": 1000, "user:1": 1000}
    assert queries("key:2", "key:eu-2", "ip:10.9.9.9", "ip:12.1.1.1", "user:2") == 0
    assert [capacity(name) for name in ("key:2", "key:eu-2", "ip:10.9.9.9", "ip:12.1.1.1")] == [10, 11, 12, 1000]
    Policy.objects.filter(entity__identifier="key:eu-*").delete()
    assert [capacity(name) for name in ("key:eu-2", "key:eu-3")] == [10, 10]


def test_name_that_no_row_can_have_decides_for_no_other_client(api: None) -> None:
    limits.set_entity_limits("key:*", [CallLimit(10, 60)], resource="api")
    assert capacity("key:\0") == 1000
    assert capacity("key:1") == 10
    assert capacity("key:\ud800") == 1000
    assert capacity("key:2") == 10


def test_plans_of_requests_and_of_groups_apply(api: None) -> None:
    user, group = User.objects.create(username="ann"), Group.objects.create(name="paying")
    name = f"user:{user.pk}"
    assert [capacity(name), capacity("user:9", plan="pro"), capacity("user:8", plan="unknown")] == [1000, 3000, 1000]
    Plan.objects.get().groups.create(group=group)
    read_all()
    user.groups.add(group)
    assert [capacity(name), capacity(f"user:0{user.pk}")] == [3000, 3000]
    assert queries(name, "user:123456") <= 1
    user.groups.clear()
    assert capacity(name) == 1000
    group.user_set.add(user)
    assert capacity(name) == 3000
    group.user_set.clear()
    assert capacity(name) == 1000
    user.groups.add(group)
    group.delete()
    assert capacity(name) == 1000


def test_members_of_groups_are_known_after_all_were_read(api: None) -> None:
    users = [User.objects.create(username=f"user {number}") for number in range(3)]
    group = Group.objects.create(name="paying")
    group.user_set.set(users[:2])
    Plan.objects.get().groups.create(group=group)
    capacity("user:none")
    read_all()
    assert [capacity(f"user:{user.pk}") for user in users] == [3000, 3000, 1000]


def test_rollout_applies_to_the_same_clients_as_for_clients_with_rows(api: None) -> None:
    limits.set_resource_limits("api", [CallLimit(500, 60)], rollout_percent=40)
    names = [f"user:{number}" for number in range(100)]
    by_template = [resolver.get(("api", name, (), None)).limit_set for name in names]
    configuration.current().known.restart()
    configuration.current().drop_all()
    by_query = [resolver.get(("api", name, (), None)).limit_set for name in names]
    assert [list(one) for one in by_template] == [list(one) for one in by_query]
    assert 0 < sum(not list(one) for one in by_query) < 100
    assert [one.scopes for one in by_template] == [one.scopes for one in by_query]


def test_template_ends_with_the_next_date(api: None, wall: Wall) -> None:
    until = datetime.fromtimestamp(wall(), UTC) + timedelta(minutes=1)
    Policy.objects.create(
        resource=Resource.objects.get(name="api"),
        effect=PolicyEffect.UNLIMITED,
        valid_from=until - timedelta(minutes=2),
        valid_until=until,
    )
    read_all()
    assert not list(limits.limit_set("api", "user:7"))
    assert not list(limits.limit_set("api", "user:8"))
    wall.advance(seconds=61)
    assert [capacity("user:7"), capacity("user:8")] == [1000, 1000]


def test_renamed_client_and_parent_apply_under_the_new_name(api: None) -> None:
    child = Entity.objects.create(identifier="user:child", parent=Entity.objects.get(identifier="tenant:acme"))
    assert capacity("user:child") == 1000
    Entity.objects.filter(identifier="tenant:acme").update(plan=Plan.objects.get())
    assert capacity("user:child") == 3000, "the plan of a parent that is not charged"
    Entity.objects.filter(identifier="tenant:acme").update(identifier="tenant:new")
    assert capacity("user:child") == 3000
    Entity.objects.filter(pk=child.pk).update(identifier="user:grown")
    assert [capacity("user:child"), capacity("user:grown")] == [1000, 3000]


def test_rows_written_past_the_app_apply_after_a_refresh(settings: Settings, api: None) -> None:
    capacity("user:raw")
    with connection.cursor() as cursor:
        columns = "identifier, name, cascade, unlimited, blocked, metadata"
        values = "'user:raw', '', false, true, false, '{}'"
        cursor.execute(f"INSERT INTO limits_app_entity ({columns}) VALUES ({values})")  # noqa: S608 - constants
    assert capacity("user:raw") == 1000
    configuration.current().due_at = 0.0
    assert not list(limits.limit_set("api", "user:raw"))


def _row_with_plan(user: User) -> None:
    Entity.objects.create(identifier=f"user:{user.pk}", plan=Plan.objects.get(name="max"))


def _row_with_parent(user: User) -> None:
    parent = Entity.objects.create(identifier="tenant:large", plan=Plan.objects.get(name="max"))
    Entity.objects.create(identifier=f"user:{user.pk}", parent=parent)


UNANNOUNCED: dict[str, Callable[[User], None]] = {
    "row": lambda user: Entity.objects.create(identifier=f"user:{user.pk}") and None,
    "plan": _row_with_plan,
    "plan of a parent": _row_with_parent,
    "group": lambda user: user.groups.add(Group.objects.get()),
}


@pytest.mark.parametrize("plan", ["pro", "unknown", None])
@pytest.mark.parametrize("change", UNANNOUNCED)
def test_client_whose_row_is_not_known_decides_for_no_other_client(
    change: str, plan: str | None, api: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, group = User.objects.create(username="ann"), Group.objects.create(name="large")
    Plan.objects.create(name="max").groups.create(group=group)
    limits.set_plan_limits("max", [CallLimit(9, 60)], resource="other")
    capacity("user:9")
    read_all()
    assert configuration.current().known.is_complete
    configuration.current().drop_all()
    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "advance_version", lambda *_: None)
        UNANNOUNCED[change](user)
    own = 1000 if plan != "pro" or "plan" in change else 3000
    assert capacity(f"user:{user.pk}", plan=plan) == own
    assert [capacity(name, plan=plan) for name in ("user:8", "user:7")] == [3000 if plan == "pro" else 1000] * 2


# ------------------------------------------------------------------------------------------ what happens in between


class Stop:
    """Holds one thread at a place until it may go on."""

    def __init__(self) -> None:
        self.thread: Thread | None = None
        self.reached = Event()
        self.may_go = Event()

    def hold(self) -> None:
        """Hold the thread, once."""
        if current_thread() is self.thread and not self.reached.is_set():
            self.reached.set()
            assert self.may_go.wait(20)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, before which the thread is held."""

        def held(*args: Any, **options: Any) -> Any:
            self.hold()
            return function(*args, **options)

        return held

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, after which the thread is held."""

        def held(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            self.hold()
            return result

        return held


STOPS: dict[str, tuple[Any, str, str]] = {
    "between reading seen and looking up": (Known, "may_have_rows", "before"),
    "between looking up and the query": (client_resolver, "stored_chains", "before"),
    "between the query and keeping": (client_resolver, "stored_chains", "after"),
    "between keeping and sending": (LimitSet, "try_acquire", "before"),
    "between reading the log and adding": (KnownIdentifiers, "add", "before"),
    "between adding and dropping": (KnownIdentifiers, "add", "after"),
    "between dropping and publishing": (KeptConfiguration, "drop", "after"),
    "after publishing": (KeptConfiguration, "catch_up", "after"),
}

IN_BETWEEN: dict[str, Callable[[], object]] = {
    "the same client": lambda: limits.set_entity_limits("user:own", [CallLimit(5, 60)], resource="api"),
    "a new row": lambda: limits.set_entity_limits(CLIENT, [CallLimit(5, 60)], resource="api"),
    "its parent": lambda: limits.set_entity_limits("tenant:acme", [CallLimit(5, 60)], resource="api"),
    "many rows": lambda: many_rows(100),
    "a pattern": lambda: limits.set_entity_limits("user:*", [CallLimit(5, 60)], resource="api"),
    "the resource": lambda: limits.set_resource_limits("api", [CallLimit(5, 60)]),
}
CLIENT_OF = {"the same client": "user:own", "its parent": "user:child"}


def many_rows(number: int) -> None:
    """New clients that are unlimited, also the client."""
    names = [CLIENT, *[f"key:{one}" for one in range(number - 1)]]
    Entity.objects.bulk_create([Entity(identifier=name, unlimited=True) for name in names])


def lowest(entity: str) -> int | None:
    """The lowest limit of an admitted request; None without limits."""
    acquisition = limits.try_acquire("api", entity=entity)
    assert acquisition
    acquisition.release()
    return min([int(status.capacity) for status in acquisition.outcome.passed], default=None)


@pytest.mark.slow
@pytest.mark.parametrize("change", IN_BETWEEN)
@pytest.mark.parametrize("stop", STOPS)
def test_change_while_a_request_is_between_two_steps_applies_to_it(
    stop: str, change: str, api: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity, expected = CLIENT_OF.get(change, CLIENT), None if change == "many rows" else 5
    parent = Entity.objects.get(identifier="tenant:acme")
    Entity.objects.create(identifier="user:child", parent=parent, cascade=True)
    read_all()
    if not any(word in stop for word in ("keeping", "query", "reading seen")):
        lowest(entity)  # what the request looks up is kept
    lowest("user:alike")  # whose rows are those of another client, which is compiled
    Entity.objects.create(identifier="user:unrelated")  # which the request finds out, and applies
    owner, name, when = STOPS[stop]
    held = Stop()
    monkeypatch.setattr(owner, name, getattr(held, when)(getattr(owner, name)))
    found: list[int | None] = []

    def request() -> None:
        found.append(lowest(entity))
        connection.close()

    threads = [Thread(target=request), Thread(target=request)]
    held.thread = threads[0]
    threads[0].start()
    if not held.reached.wait(5):
        threads[0].join(20)
        pytest.fail(f"{stop}: the request was never there")
    IN_BETWEEN[change]()
    threads[1].start()  # while the first one is held
    held.may_go.set()
    for thread in threads:
        thread.join(20)
    assert found == [expected] * 2
    assert lowest(entity) == expected


def test_look_up_sees_no_state_in_which_everything_is_forgotten(api: None, monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_entity_limits("key:*", [CallLimit(10, 60)], resource="api")
    assert [capacity("user:7"), capacity("key:1")] == [1000, 10]
    look_up = Known.may_have_rows

    def may_have_rows(self: Known, identifier: str) -> bool:
        found = look_up(self, identifier)
        configuration.current().known.restart()  # as another thread does that applies a change
        return found

    monkeypatch.setattr(Known, "may_have_rows", may_have_rows)
    assert capacity("key:1") == 10


@pytest.mark.release
def test_bulk_of_ten_thousand_rows_is_found_in_pages(api: None) -> None:
    capacity(CLIENT)
    many_rows(10_000)
    assert lowest(CLIENT) is None
    assert lowest("key:9998") is None
    assert [lowest("key:9999"), lowest("user:own")] == [1000, 2000]


def test_changes_that_are_applied_while_limits_are_kept_apply_to_them(
    api: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(keep: Callable[..., None], *args: Any, **options: Any) -> None:
        limits.set_entity_limits("user:own", [CallLimit(5, 60)], resource="api")
        assert capacity("user:2") == 1000  # as a finalizer does, which applies the change before the others are kept
        keep(*args, **options)

    at_next_call(monkeypatch, configuration.current().clients, "add", add)
    assert capacity("user:own") == 5
    assert capacity("user:own") == 5


def test_thread_that_notes_limits_of_code_keeps_no_other_one_waiting(
    api: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.set_resource_limits("new", [CallLimit(50, 60)], rollout_percent=50)
    clients = sorted((f"user:{number}" for number in range(100)), key=rollout_position)
    included, other = clients[0], clients[-1]
    capacity("user:own")
    read_all()
    written, may_go = Event(), Event()
    found: list[int] = []

    def note(*_: object) -> None:
        written.set()
        assert may_go.wait(20)  # as for the transaction of another thread

    def request(entity: str) -> None:
        found.append(capacity(entity, "new", default_limits=[CallLimit(5, 60)]))
        connection.close()

    monkeypatch.setattr(client_resolver, "note_code_limits", note)
    threads = [Thread(target=request, args=[entity]) for entity in (other, included)]
    threads[0].start()
    assert written.wait(20)
    threads[1].start()
    threads[1].join(5)
    before = [*found]
    may_go.set()
    for thread in threads:
        thread.join(20)
    assert (before, found) == ([50], [50, 5])


class ReadStore(MemoryStore):
    """Counts how often its log is read, which may lack changes."""

    reads = 0
    lacks_changes = False

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        self.reads += 1
        return None if self.lacks_changes else super().changes_since(version, namespace)


@pytest.fixture
def read_store(monkeypatch: pytest.MonkeyPatch) -> ReadStore:
    """The store of the site."""
    store = ReadStore()
    put_store(monkeypatch, store)
    return store


def test_log_that_lacks_changes_begins_everything_again(read_store: ReadStore, api: None) -> None:
    capacity(CLIENT)
    read_store.lacks_changes = True
    limits.set_entity_limits(CLIENT, [CallLimit(5, 60)], resource="api")
    assert capacity(CLIENT) == 5
    assert not configuration.current().known.is_complete
    assert capacity("user:2") == 1000


def test_threads_that_find_the_same_change_read_the_log_once(read_store: ReadStore, api: None) -> None:
    capacity(CLIENT)
    stale = resolver.get(("api", CLIENT, (), None))
    limits.set_entity_limits("user:2", [CallLimit(5, 60)], resource="api")
    read_store.reads = 0
    for _ in range(5):
        resolver.catch_up(("api", CLIENT, (), None), stale)
    assert read_store.reads == 1


def test_each_store_has_its_own_number(settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}, "other": {"KIND": "memory"}}}
    limits.set_resource_limits("api", [CallLimit(1000, 60)])
    Resource.objects.create(name="far", store="other")
    limits.set_resource_limits("far", [CallLimit(1000, 60)])
    read_all()
    assert [capacity(CLIENT), capacity(CLIENT, "far")] == [1000, 1000]
    registry.store("other").advance_version()  # as another process does that changes nothing here
    limits.set_entity_limits(CLIENT, [CallLimit(5, 60)], resource="far")
    assert [capacity(CLIENT, "far"), capacity(CLIENT), capacity("user:2", "far")] == [5, 1000, 1000]
    assert {*configuration.current().sync.seen} == {"default", "other"}


def test_sets_keep_their_compiled_shapes_for_another_version(api: None) -> None:
    first: ResolvedSet = resolver.get(("api", "user:own", (), None))
    Entity.objects.create(identifier="user:unrelated")
    capacity("user:7")
    second = resolver.get(("api", "user:own", (), None))
    assert second.limit_set.version != first.limit_set.version
    assert shape_of(second.limit_set) is shape_of(first.limit_set)


def test_requests_for_several_resources_share_compiled_limits(api: None) -> None:
    limits.set_resource_limits("other", [CallLimit(50, 60)])
    limits.set_system_limits([CallLimit(70, 60)], counted="total")
    read_all()

    def acquired(first: str, second: str) -> LimitSet:
        shares = [limits.Share("api", first), limits.Share("other", second)]
        with limits.try_acquire_all(shares) as acquisition:
            return acquisition.limit_set

    acquired("user:1", "user:1")
    acquired("user:2", "user:3")
    with CaptureQueriesContext(connection) as captured:
        acquired("user:8", "user:9")
    assert not captured
    sets = {names: acquired(*names) for names in [("user:2", "user:2"), ("user:2", "user:3"), ("user:4", "user:4")]}
    entities = {names: [scope.entity for scope in found.scopes] for names, found in sets.items()}
    assert entities == {
        ("user:2", "user:2"): ["user:2"] * 3,
        ("user:2", "user:3"): ["user:2", "user:2", "user:3", "user:3"],
        ("user:4", "user:4"): ["user:4"] * 3,
    }
    assert shape_of(sets["user:2", "user:2"]) is shape_of(sets["user:4", "user:4"])


def test_limits_in_place_of_an_unavailable_store_are_those_of_each_client(
    settings: Settings, api: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNAVAILABLE": "local"}
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    read_all()
    assert [bool(limits.try_acquire("api", entity=f"user:{number}")) for number in (1, 2, 3)] == [True] * 3

    fail_at(monkeypatch, "acquire")
    found = [limits.try_acquire("api", entity=f"user:{number}") for number in (4, 5, 4, 6)]
    assert [bool(one) for one in found] == [True, True, False, True]
    assert {scope.entity for one in found for scope in one.limit_set.scopes} == {"user:4", "user:5", "user:6"}
