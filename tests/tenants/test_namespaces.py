"""What `LIMITS["NAMESPACE"]` returns: limits, counters and what is noted are kept apart, and errors say what to do."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from limits_app import checks, limits, signals, tasks
from limits_app.acquiring.store import is_counting
from limits_app.engine.change_log import ALL, EVERYTHING, Changes
from limits_app.engine.errors import InvalidRequest, LimitExceeded, LimitsError, StaleConfiguration
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.engine.namespaces import Namespace
from limits_app.models import Denial, Entity, Limit, Pool, PoolMember, Resource, namespaces
from limits_app.models.namespaces import MOST_NAMESPACES, current_namespace
from limits_app.policies import configuration, resolver
from limits_app.policies.identifiers import KnownIdentifiers
from limits_app.policies.kept import KeyLocks
from limits_app.policies.kept_configuration import CurrentConfiguration, KeptConfiguration
from limits_app.policies.reading import IdentifierReader, entities, members_of_groups
from limits_app.stores.process import open_process_store
from limits_app.stores.registry import instead, resilient_store
from limits_app.testing import fresh_limits
from limits_app.usage import rollup
from limits_app.usage.denial_counter import Denials, denials
from limits_app.usage.pruning import Archive
from tests.commands.running import run
from tests.replacing import at_next_call

HOUR = 3600
TENANT: ContextVar[str | None] = ContextVar("tenant", default=None)


@contextmanager
def tenant(name: str) -> Iterator[None]:
    """Be in a tenant."""
    token = TENANT.set(name)
    try:
        yield
    finally:
        TENANT.reset(token)


@pytest.fixture
def chosen(settings: Settings, transactional_db: None) -> Iterator[Settings]:
    """A site whose tenants are chosen by a variable, with unused limits."""
    settings.LIMITS = {"NAMESPACE": TENANT.get, "NAMESPACE_CONTEXT": tenant, "NAMESPACES": ["a", "b"]}
    with fresh_limits():
        limits.set_resource_limits("api", [CallLimit(2, HOUR)])
        yield settings


def add_pool(*members: str) -> Pool:
    """A pool whose members admit one request each."""
    pool = Pool.objects.create(name="pool")
    for name in members:
        row = Limit.from_definition(None, CallLimit(1, HOUR))
        row.member = PoolMember.objects.create(pool=pool, name=name)
        row.save()
    return pool


def admitted(name: str, times: int = 1) -> int:
    """How many requests of a tenant are admitted."""
    with tenant(name):
        return sum(bool(limits.try_acquire("api", entity="user:1")) for _ in range(times))


@pytest.mark.usefixtures("chosen")
def test_counters_are_apart_and_a_site_without_a_tenant_has_its_own() -> None:
    assert [admitted(name, 3) for name in ("a", "b", "")] == [2, 2, 2]
    assert not limits.try_acquire("api", entity="user:1"), "None and empty text are the same"


@pytest.mark.usefixtures("chosen")
def test_status_reset_and_idempotency_keys_are_those_of_the_tenant() -> None:
    for name in ("a", "b"):
        with tenant(name):
            for _ in range(2):
                assert limits.try_acquire("api", entity="user:1", idempotency_key="order")
    with tenant("a"):
        limits.reset("api", entity="user:1")
        assert admitted("a", 3) == 2
    assert admitted("b", 3) == 1


@pytest.mark.usefixtures("chosen")
def test_pools_and_their_cool_downs_are_those_of_the_tenant() -> None:
    add_pool("one", "two")
    pool = limits.pool("pool")
    with tenant("a"):
        assert [bool(pool.try_acquire()) for _ in range(3)] == [True, True, False]
        pool.cool_down("one", 60)
        assert pool.cooling_seconds(0) > 0
    with tenant("b"):
        assert pool.cooling_seconds(0) == 0
        assert [bool(pool.try_acquire()) for _ in range(3)] == [True, True, False]


def test_at_most_a_hundred_namespaces_are_kept(chosen: Settings) -> None:
    numbers = range(2 * MOST_NAMESPACES)
    for number in numbers:
        admitted(f"tenant {number}")
    assert len(configuration.all()) == MOST_NAMESPACES + 1, "and that of the site without a tenant"
    assert [admitted(f"tenant {number}", 3) for number in numbers] == [1] * len(numbers)


def test_a_change_of_one_tenant_costs_others_no_query(
    chosen: Settings,
    django_assert_num_queries: Callable[[int], AbstractContextManager[CaptureQueriesContext]],
) -> None:
    for name in ("a", "b"):
        with tenant(name):
            limits.try_acquire("api", entity="user:2")
    with tenant("b"):
        limits.set_resource_limits("api", [CallLimit(5, HOUR)])
    with tenant("a"), django_assert_num_queries(0):
        limits.try_acquire("api", entity="user:2")
    assert admitted("b", 6) == 5


@pytest.mark.usefixtures("chosen")
def test_a_transaction_announces_changes_in_the_tenant_that_made_them() -> None:
    announced: list[tuple[Namespace, Changes]] = []

    def receive(*, namespace: Namespace, changes: Changes, **_: object) -> None:
        announced.append((namespace, changes))

    signals.limits_changed.connect(receive)
    with transaction.atomic():
        for name in ("a", "b", "a"):
            with tenant(name):
                Entity.objects.create(identifier=f"user:{name}{len(name)}{Entity.objects.count()}")
    signals.limits_changed.disconnect(receive)
    with tenant("a"):
        a = current_namespace().keys
    with tenant("b"):
        b = current_namespace().keys
    assert sorted(announced) == sorted([(a, (EVERYTHING,)), (b, (EVERYTHING,))]), (
        "the rows cannot be looked at any more"
    )


@pytest.mark.usefixtures("chosen")
def test_changes_that_no_store_announces_apply_to_their_tenant() -> None:
    kept = {}
    for name in ("a", "b"):
        admitted(name)
        with tenant(name):
            kept[name] = configuration.current()
    before = {name: one.generation for name, one in kept.items()}
    configuration.apply((ALL,), kept["a"].namespace.keys)
    assert {name: one.generation != before[name] for name, one in kept.items()} == {"a": True, "b": False}


def test_a_set_that_was_sent_to_another_tenant_stays_in_its_own(chosen: Settings, tmp_path: Path) -> None:
    store = open_process_store(tmp_path)
    with instead(lambda _: store):
        resolver.clear()
        with tenant("a"):
            sent = pickle.dumps(limits.limit_set("api", entity="user:1"))
            Resource.objects.update(pool=add_pool("one"))
        with tenant("b"):
            with pytest.raises(StaleConfiguration):
                pickle.loads(sent).try_acquire()
            with tenant("a"):
                pooled = pickle.dumps(limits.limit_set("api", entity="user:1"))
            assert pickle.loads(pooled).try_acquire()
            assert not pickle.loads(pooled).try_acquire()
            assert limits.try_acquire("api", entity="user:1")
    store.close()


@pytest.mark.usefixtures("chosen")
def test_usage_and_rejections_of_one_identifier_do_not_add_up() -> None:
    for name, times in (("a", 1), ("b", 3), ("", 2)):
        admitted(name, times)
    read = {}
    for name in ("a", "b", ""):
        with tenant(name):
            limits.roll_up()
    for name in ("a", "b", ""):
        with tenant(name):
            used = limits.usage("api", entity="user:1", by="entity")
            read[name] = [(use.admitted, use.refused) for use in used], sum(row.count for row in limits.denials("api"))
    assert read == {"a": ([(1, 0)], 0), "b": ([(2, 1)], 1), "": ([(2, 0)], 0)}
    with tenant("b"):
        Denial.objects.all().delete()
    assert not Denial._base_manager.exists()


def rejections() -> list[tuple[str, int]]:
    """The rejections that were added to the store, in any tenant."""
    for name in ("a", "b", ""):
        with tenant(name):
            store = resilient_store().open()
            assert is_counting(store)
            rollup.roll_up(store)
    return [*Denial._base_manager.order_by("entity").values_list("entity", "count")]


def test_failed_writes_of_a_tenant_are_kept_while_others_are_written(chosen: Settings) -> None:
    @contextmanager
    def broken(name: str) -> Iterator[None]:
        if name == "a":
            raise DatabaseError("no such schema")
        with tenant(name):
            yield

    denials.clear()
    chosen.LIMITS = {**chosen.LIMITS, "NAMESPACE_CONTEXT": broken}
    for name in ("a", "b"):
        with tenant(name):
            limits.set_resource_limits("api", [CallLimit(1, HOUR)])
            for _ in range(3):
                limits.try_acquire("api", entity=f"user:{name}")
    with pytest.raises(DatabaseError, match="no such schema"):
        denials.flush()
    assert rejections() == [("user:b", 2)]
    with tenant("a"):
        assert denials.flush_here() == 2
    assert rejections() == [("user:a", 2), ("user:b", 2)]
    assert denials.waiting == 0


def test_each_tenant_has_room_for_its_rejections(chosen: Settings) -> None:
    noted = Denials(most=2)
    for name in ("a", "b"):
        with tenant(name):
            for number in range(2):
                acquired = [limits.try_acquire("api", entity=f"user:{name}{number}") for _ in range(3)]
                noted.note(acquired[-1].outcome)
    noted.flush()
    assert rejections() == [("user:a0", 1), ("user:a1", 1), ("user:b0", 1), ("user:b1", 1)]


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (None, "LIMITS['NAMESPACE_CONTEXT'] must be set where LIMITS['NAMESPACE'] is"),
        (nullcontext, "must enter the namespace 'a': in its context, the namespace is 'default'"),
    ],
)
def test_a_thread_that_does_not_enter_a_tenant_writes_nothing(
    chosen: Settings, context: Callable[[str], AbstractContextManager[str]] | None, message: str
) -> None:
    denials.clear()
    admitted("a", 3)
    chosen.LIMITS = {**chosen.LIMITS, "NAMESPACE_CONTEXT": context}
    with pytest.raises(ImproperlyConfigured) as error:
        denials.flush()
    assert message in str(error.value)
    assert rejections() == []
    denials.clear()


@pytest.mark.parametrize("value", [7, "x" * 256])
def test_invalid_name_of_a_namespace_is_an_error(chosen: Settings, value: Any) -> None:
    chosen.LIMITS = {**chosen.LIMITS, "NAMESPACE": lambda: value}
    with pytest.raises(InvalidRequest, match="must return None or text of at most 255 characters; got"):
        limits.try_acquire("api")


def test_commands_work_on_the_tenant_that_they_name(chosen: Settings) -> None:
    for name in ("a", "b"):
        admitted(name, 3)
        assert json.loads(run(f"snapshot --namespace {name} --format json").out)["added"] == {"default": 1}
    assert run("snapshot --all --namespace a").code == 2
    done = run("snapshot --all")
    assert (done.code, done.err.splitlines()) == (0, ["namespace a:", "namespace b:"])
    chosen.LIMITS = {**chosen.LIMITS, "NAMESPACES": lambda: ["a", "b"], "NAMESPACE_CONTEXT": only_b}
    done = run("snapshot --all")
    assert done.code == 1
    assert "namespace a: LIMITS['NAMESPACE_CONTEXT'] must enter the namespace 'a'" in done.err
    assert "The command failed in 1 namespaces: a." in done.err
    chosen.LIMITS = {"NAMESPACE": TENANT.get}
    done = run("snapshot --all")
    assert done.code == 2
    assert "LIMITS['NAMESPACES'] must be set to work on all namespaces" in done.err
    done = run("doctor --namespace a")
    assert done.code == 2
    assert "the namespace 'a' cannot be entered: set LIMITS['NAMESPACE_CONTEXT']" in done.err


@contextmanager
def only_b(name: str) -> Iterator[None]:
    """Be in b."""
    with tenant("b"):
        yield


def test_tasks_work_on_every_tenant(chosen: Settings) -> None:
    for name in ("a", "b"):
        admitted(name, 2)
    assert tasks.roll_up(every_namespace=True) == {name: {"added": {"default": 1}, "failed": {}} for name in ("a", "b")}
    assert tasks.prune(every_namespace=True) == {name: tasks.prune() for name in ("a", "b")}
    assert tasks.send_alerts(every_namespace=True) == {name: {"sent": 0, "failed": 0} for name in ("a", "b")}
    chosen.LIMITS = {**chosen.LIMITS, "NAMESPACE_CONTEXT": only_b}
    with pytest.raises(LimitsError, match="the work on the namespaces a failed; that on the others is done"):
        tasks.send_alerts(every_namespace=True)


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("name", ["acme", "../../etc", "..", "ä/b", "x" * 255])
def test_the_archive_of_a_tenant_is_in_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    with tenant(name):
        Archive(tmp_path / "archive", "usage").add([{"id": 1}])
    [folder] = (tmp_path / "archive").iterdir()
    assert [file.name for file in folder.iterdir()] == ["usage.jsonl.gz"]
    assert [one.name for one in tmp_path.iterdir()] == ["archive"]


@pytest.mark.django_db
def test_a_site_without_tenants_looks_nothing_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LIMITS = {}
    assert current_namespace() is namespaces.WHOLE_SITE
    monkeypatch.setattr(namespaces, "_current", None)
    assert limits.try_acquire("api", default_limits=[CallLimit(2, HOUR)])


def test_settings_are_checked(settings: Settings) -> None:
    def found() -> list[str | None]:
        return [one.id for one in (*checks.check_settings(), *checks.check_hazards()) if "NAMESPACE" in str(one.msg)]

    settings.LIMITS = {"NAMESPACE": TENANT.get, "NAMESPACE_CONTEXT": tenant, "NAMESPACES": ["a"]}
    assert found() == []
    settings.LIMITS = {"NAMESPACE": lambda request: request}
    assert found() == ["limits_app.E057", "limits_app.E085"]
    settings.LIMITS = {"NAMESPACE_CONTEXT": lambda: None, "NAMESPACES": lambda one: one}
    assert found() == ["limits_app.E057", "limits_app.E057"]
    settings.LIMITS = {"NAMESPACE": 7, "NAMESPACE_CONTEXT": "nowhere", "NAMESPACES": [""]}
    assert found() == ["limits_app.E082", "limits_app.E083", "limits_app.E084"]
    settings.LIMITS = {"NAMESPACES": "no.such.function"}
    assert found() == ["limits_app.E018"]


def test_which_clients_have_rows_is_read_of_each_tenant_that_a_thread_can_enter(
    chosen: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    Entity.objects.create(identifier="user:1")
    chosen.LIMITS = {**chosen.LIMITS, "NAMESPACE_CONTEXT": only_b}
    kept = []
    for name in ("a", "b"):
        with tenant(name):
            kept.append((current_namespace(), KnownIdentifiers(entities, members_of_groups)))
    reader = IdentifierReader(lambda: kept)
    while reader._step() is not None:
        pass
    assert [known.is_complete for _, known in kept] == [False, True]
    assert kept[1][1].may_have_rows("user:1")
    assert not kept[1][1].may_have_rows("user:2")
    assert [record.message for record in caplog.records if "'a'" in record.message] == [
        "which clients have rows is unknown, so that the rows of each are queried: LIMITS['NAMESPACE_CONTEXT'] must "
        "enter the namespace 'a': in its context, the namespace is 'b'"
    ]


@pytest.mark.usefixtures("chosen")
def test_threads_that_begin_with_a_tenant_at_the_same_time_share_its_kept_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configurations, begun = CurrentConfiguration(), list[KeptConfiguration]()

    def begin_meanwhile(locked: Callable[..., AbstractContextManager[None]], *args: Any) -> Any:
        begun.append(configurations.current())
        return locked(*args)

    at_next_call(monkeypatch, KeyLocks, "locked", begin_meanwhile)
    with tenant("a"):
        assert configurations.current() is begun[0]
        assert configurations.current() is begun[0]


@pytest.mark.usefixtures("chosen")
def test_an_extension_is_charged_in_the_tenant_of_its_request() -> None:
    denials.clear()
    with tenant("a"):
        limits.set_resource_limits("api", [RateLimit("tokens", 10, HOUR)])
        stream = limits.acquire("api", entity="user:1", requested={"tokens": 4})
        limits.set_resource_limits("api", [RateLimit("tokens", 8, HOUR)])
    stream.extend({"tokens": 3})
    with pytest.raises(LimitExceeded):
        stream.extend({"tokens": 2})
    stream.update({"tokens": 7})
    stream.release()
    with tenant("b"):
        assert limits.try_acquire("api", entity="user:1", requested={"tokens": 8})
        denials.flush_here()
    assert rejections() == []
    denials.flush()
    assert rejections() == [("user:1", 1)]


@pytest.mark.usefixtures("chosen")
def test_an_extension_in_a_task_is_charged_in_the_tenant_of_its_request() -> None:
    async def extended() -> list[bool]:
        with tenant("a"):
            stream = await limits.atry_acquire("api", entity="user:1", requested={"tokens": 4})
        with tenant("b"):
            other = await limits.atry_acquire("api", entity="user:1", requested={"tokens": 10})
        await stream.aextend({"tokens": 6})
        stream.update({"tokens": 10})
        other.update({"tokens": 10})
        stream.release()
        other.release()
        return [stream.successful, other.successful]

    limits.set_resource_limits("api", [RateLimit("tokens", 10, HOUR)])
    assert asyncio.run(extended()) == [True, True]
