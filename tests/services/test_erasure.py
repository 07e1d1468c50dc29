"""An identifier that is erased is nowhere any more: not in tables, stores, nor texts; all others stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.utils import timezone
from pytest_django import Settings
from redis import Redis

from limits_app import InvalidRequest, StoreUnavailable, audit, limits
from limits_app.engine.errors import CannotRevert
from limits_app.models import (
    Alert,
    AlertRule,
    AuditEvent,
    Denial,
    Endpoint,
    Entity,
    Policy,
    Resource,
    ScopeCount,
    ScopeState,
    UsageSnapshot,
)
from limits_app.policies import resolver
from limits_app.stores.registry import resilient_store
from tests.commands.running import run
from tests.opened import fail_at
from tests.servers.redis import redis_server
from tests.stores.database.databases import ALIAS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

WHO = "mail:berta@example.net"
ALIKE = (
    "mail:berta@example.netz",
    "mail:berta@example.net:phone",
    "x-mail:berta@example.net",
    "MAIL:berta@example.net",
)


def rows() -> Iterator[tuple[str, str]]:
    """All rows of the app, with what is binary as text, and without identifiers that are alike."""
    for model in (*apps.get_app_config("limits_app").get_models(), LogEntry):
        for row in model._default_manager.values() if model._meta.managed else ():
            binary = [bytes(one).decode("latin-1") for one in row.values() if isinstance(one, bytes | memoryview)]
            text = str([row, *binary])
            for entity in ALIKE:
                text = text.replace(entity, "")
            yield model.__name__, text


def tables(text: str) -> set[str]:
    """The models of the app with a row that has a text."""
    return {name for name, row in rows() if text in row}


def use(entity: str, times: int = 3) -> int:
    return sum(bool(limits.try_acquire("post", entity=entity)) for _ in range(times))


@pytest.fixture
def site() -> None:
    """Everything that can name an identifier names this one, and some that are alike."""
    limits.set_resource_limits("post", "calls=2/h")
    limits.set_entity_limits(WHO, "calls=1/h", resource="post", reason=f"asked by {WHO}.")
    limits.set_entity(WHO, name="Berta", metadata={"phone": "+49 30 0123"}, reason=f"({WHO})")
    limits.top_up("post", entity=WHO, key="call_count", amount=1, idempotency_key=f"for-{WHO}")
    for entity in ALIKE:
        limits.set_entity(entity, reason=f"not {WHO}" if entity == ALIKE[0] else "")
        use(entity)
    use(WHO)
    limits.roll_up()
    rule = AlertRule.objects.create(name="rule", kind="rejections", rejections=1, entity=WHO, target="a@example.com")
    payload = {"event": "rejections", "about": WHO, "text": f"{WHO} was rejected", "entity": WHO}
    Alert.objects.create(rule=rule, about=WHO, payload=payload, created_at=timezone.now(), dedupe_key="x")
    Endpoint.objects.create(name="r", path="/", resource=Resource.objects.get(), exempt_entities=f"{ALIKE[0]}\n{WHO}")
    LogEntry.objects.create(
        user=User.objects.create(username="root"),
        content_type=ContentType.objects.get_for_model(Policy),
        object_repr=f"entity {WHO} on post",
        action_flag=1,
    )


@contextmanager
def stored(kind: str, folder: Path, settings: Settings) -> Iterator[Callable[[], bytes]]:
    """A site with a store of this kind; gives a function that reads what servers keep of it."""
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        raw: Callable[[], bytes] = bytes
        if kind == "process":
            options = {"STATE_DIR": str(folder), "MAP_MEGABYTES": 4}
        if kind == "database":
            options = {"USING": ALIAS}
            tables_of_store = (ScopeState.objects.using(ALIAS), ScopeCount.objects.using(ALIAS))
            raw = lambda: str([*tables_of_store[0].values(), *tables_of_store[1].values()]).encode()  # noqa: E731
        if kind == "redis":
            server = stack.enter_context(redis_server())
            options = {"URL": server.url}
            client = stack.enter_context(Redis.from_url(server.url))
            raw = lambda: b" ".join(key + (client.dump(key) or b"") for key in client.scan_iter())  # noqa: E731
        settings.LIMITS = {"STORES": {"default": {"KIND": kind, **options}}}
        resolver.clear()
        yield raw
        if kind == "database":
            resilient_store().open().inner.close()  # type: ignore[attr-defined]
    resolver.clear()


@pytest.fixture(params=["memory", "process", "database", "redis"])
def store(
    request: pytest.FixtureRequest, second_database: None, tmp_path: Path, settings: Settings
) -> Iterator[Callable[[], bytes]]:
    with stored(request.param, tmp_path, settings) as raw:
        yield raw


def test_an_identifier_is_erased_everywhere_with_its_policies(store: Callable[[], bytes], site: None) -> None:
    assert tables(WHO) >= {"Denial", "Alert", "AuditEvent", "AlertRule", "Endpoint", "LogEntry"}
    erased = limits.erase(WHO, with_policies=True, reason=f"{WHO} wrote to us", actor="ann")
    assert not tables(WHO)
    assert "Berta" not in str([*AuditEvent.objects.values()])
    assert "+49 30 0123" not in str([*AuditEvent.objects.values()])
    assert erased.pseudonym.startswith("erased:")
    assert UsageSnapshot.objects.filter(entity=erased.pseudonym).exists()
    assert Denial.objects.get(entity=erased.pseudonym).count == 2
    assert resilient_store("default").open().collect_counts() is None
    assert WHO.encode() not in store()
    assert not Policy.objects.exclude(entity=None).exists()
    assert Endpoint.objects.get().exempt_entities == ALIKE[0]
    assert {*Entity.objects.values_list("identifier", flat=True)} == {*ALIKE}
    report = audit.verify()
    assert (report.ok, report.redacted) == (True, erased.events)
    assert f"{erased.events} of them redacted" in str(report)
    assert [*audit.unrecorded()] == []
    event = AuditEvent.objects.get(verb="erase")
    assert (event.actor, event.object_label, event.reason) == (
        "ann",
        erased.pseudonym,
        f"{erased.pseudonym} wrote to us",
    )
    assert use(WHO) == 2  # it starts again, as any other
    for entity in ALIKE:
        assert use(entity) == 0


def test_an_identifier_is_erased_where_it_is_part_of_another_one(site: None) -> None:
    """As `login.account-address` counts by account and address."""
    both, other = f"account:7 {WHO}", f"account:7 {ALIKE[0]}"
    limits.erase(WHO, with_policies=True)
    assert [use(both), use(other)] == [2, 2]
    limits.reset("post", entity=both)
    assert [use(both), use(other)] == [2, 0]
    limits.roll_up()
    assert {"Denial", "AuditEvent"} <= tables(WHO)
    erased = limits.erase(WHO)
    assert not tables(WHO)
    assert Denial.objects.filter(entity=f"account:7 {erased.pseudonym}").exists()
    assert Denial.objects.filter(entity=other).exists()
    assert [use(both), use(other)] == [2, 0]
    assert audit.verify().ok


def test_policies_stay_and_are_listed(site: None) -> None:
    erased = limits.erase(WHO)
    assert not erased.removed
    assert erased.configuration == (f"policy entity {WHO} on post", "alert rule rule", "URL rule r", f"client {WHO}")
    assert tables(WHO) == {"AlertRule", "Endpoint", "Entity", "Policy"}
    assert (erased.alerts, Alert.objects.get().about) == (1, erased.pseudonym)
    assert (audit.verify().ok, [*audit.unrecorded()]) == (True, [])
    assert limits.status("post", entity=WHO).limits["call_count"]["capacity"] == 1


def test_a_parent_is_renamed_and_its_children_stay(site: None) -> None:
    limits.set_entity("member:1", parent=WHO, cascade=True)
    erased = limits.erase(WHO, with_policies=True)
    parent = Entity.objects.get(identifier="member:1").parent
    assert parent is not None
    assert (parent.identifier, parent.name, parent.metadata) == (erased.pseudonym, "", {})
    assert not tables(WHO)
    assert (audit.verify().ok, [*audit.unrecorded()]) == (True, [])


def test_second_erasure_finds_only_later_rows(site: None) -> None:
    first = limits.erase(WHO, with_policies=True)
    count = AuditEvent.objects.count()
    assert (limits.erase(WHO).pseudonym, AuditEvent.objects.count()) == ("", count)
    use(WHO)
    limits.roll_up()
    second = limits.erase(WHO)
    assert (second.rejections, second.usage > 0, second.events) == (1, True, 0)
    assert first.pseudonym != second.pseudonym
    third = limits.erase(ALIKE[0], with_policies=True)  # an event that was redacted before is redacted again
    assert third.events
    assert audit.verify().ok


def test_a_dry_run_changes_nothing(site: None) -> None:
    before = {model: [*model._default_manager.values()] for model in (AuditEvent, Denial, Alert, Policy, LogEntry)}
    found = limits.erase(WHO, with_policies=True, dry_run=True)
    assert found.rows > 5
    assert before == {model: [*model._default_manager.values()] for model in before}


def test_a_redacted_event_cannot_be_reverted(site: None) -> None:
    limits.erase(WHO, with_policies=True)
    event = AuditEvent.objects.filter(object_type="policy", verb="delete").latest("number")
    with pytest.raises(CannotRevert, match="is redacted"):
        audit.revert(event)


@pytest.mark.parametrize("name", ["post", "acme"])
def test_a_word_is_replaced_only_where_it_is_an_entity(name: str) -> None:
    limits.set_resource_limits("post", "calls=2/h", reason=f"a limit of {name}")
    limits.set_entity_limits(name, "calls=1/h", resource="post", reason=f"for {name}.")
    limits.reset("post", entity=name)
    erased = limits.erase(name, with_policies=True)
    events = [*AuditEvent.objects.order_by("number")]
    assert [one.object_label for one in events if one.object_type == "resource"] == ["post"]
    assert events[1].reason == f"a limit of {name}"
    labels = {one.object_label for one in events if one.object_type in {"policy", "entity", "state"}}
    assert labels == {
        "resource post",
        erased.pseudonym,
        f"entity {erased.pseudonym} on post",
        f"{erased.pseudonym} on post",
    }
    assert all((one.after or {}).get("resource") in {None, "post"} for one in events)
    assert f"for {erased.pseudonym}." in {one.reason for one in events}
    assert audit.verify().ok


def test_impossible_erasures_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="is a pattern"):
        limits.erase("user:*")
    with transaction.atomic(), pytest.raises(InvalidRequest, match="outside of a transaction"):
        limits.erase("user:1")
    limits.set_resource_limits("post", "calls=2/h")
    use("user:1")
    fail_at(monkeypatch, "collect_counts")
    with pytest.raises(StoreUnavailable, match="may have the identifier"):
        limits.erase("user:1")


def test_the_command_erases(site: None) -> None:
    assert run(f"erase {WHO} --dry-run").err.splitlines()[-1] == "This was a dry run: nothing was changed."
    assert "Still configured; --with-policies removes it: policy entity" in run(f"erase {WHO} --yes").err
    done = run(f"erase {WHO} --with-policies --yes --format json --reason x")
    assert (done.code, "Removed: alert rule rule." in done.err) == (0, True)
    assert "redacted" in run("audit verify").out
    assert run(f"erase {WHO} --yes").err == "No row has it.\n"
    assert run("erase 'ip:*' --yes").code == 2
