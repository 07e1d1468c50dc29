"""The log as a chain: each way to break it is found, and each database refuses most of them itself."""

# ruff: noqa: S608 - the names in these statements are constants

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, NotSupportedError, connections, transaction
from django.utils import timezone
from pytest_django import DjangoDbBlocker, Settings

from limits_app.audit import (
    BrokenLink,
    Fault,
    Identifier,
    acting,
    is_protected,
    protect,
    prune,
    redact,
    sign,
    unprotect,
    unrecorded,
    verify,
)
from limits_app.engine.errors import InvalidRequest
from limits_app.models import AuditEvent, AuditHead, Entity, Policy, Resource
from limits_app.models.audit_log import digest_of
from tests.stores.database.databases import ALIAS, VENDORS, migrated, served

EVENTS = "limits_app_auditevent"
HEAD = "limits_app_audithead"
WHEN = datetime(2026, 3, 4, 12, 0, 0, 250_000, tzinfo=UTC)


@pytest.fixture(scope="module", params=VENDORS)
def vendor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """Each database in turn, with all tables."""
    with (
        django_db_blocker.unblock(),
        served(request.param, tmp_path_factory.mktemp("database")) as settings,
        migrated(settings) as vendor,
    ):
        yield vendor


@pytest.fixture
def events(vendor: str) -> list[AuditEvent]:
    """Five events, of a protected log that has no others."""
    begin_again()
    for name in "abcde":
        Resource.objects.using(ALIAS).create(name=name)
    return list(AuditEvent.objects.using(ALIAS).order_by("number"))


def begin_again() -> None:
    """Empty the database, and protect the log again."""
    unprotect(using=ALIAS)
    # Rows are deleted, since MariaDB makes each table anew where its sequence is reset.
    options = {"interactive": False, "reset_sequences": False, "inhibit_post_migrate": True}
    call_command("flush", database=ALIAS, verbosity=0, **options)
    protect(using=ALIAS)


def sql(statement: str, *parameters: object) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement, parameters)


def broken_link(known: tuple[int, str] | None = None) -> BrokenLink:
    """What is wrong with the log."""
    report = verify(using=ALIAS, known=known)
    assert report.broken is not None
    return report.broken


def tamper(*statements: str) -> None:
    """Change what the triggers protect, as a user can who is permitted to drop them."""
    unprotect(using=ALIAS)
    for statement in statements:
        sql(statement)
    protect(using=ALIAS)


COPY = (
    f"INSERT INTO {EVENTS} (id, number, previous, digest, actor, source, verb, object_type, object_id, object_label,"
    f" {{when}}, reason) SELECT 99, %d, previous, digest, 'mallory', source, verb, object_type, object_id,"
    f" object_label, {{when}}, reason FROM {EVENTS} WHERE number = 2"
)
BROKEN: dict[str, tuple[list[str], Fault, int]] = {
    "changed": ([f"UPDATE {EVENTS} SET actor = 'mallory' WHERE number = 3"], Fault.CHANGED, 3),
    "changed_moment": ([f"UPDATE {EVENTS} SET {{when}} = '2001-01-01 00:00:00' WHERE number = 5"], Fault.CHANGED, 5),
    "missing": ([f"DELETE FROM {EVENTS} WHERE number = 3"], Fault.MISSING, 4),
    "missing_first": ([f"DELETE FROM {EVENTS} WHERE number = 1"], Fault.MISSING, 2),
    "missing_last": ([f"DELETE FROM {EVENTS} WHERE number > 3"], Fault.MISSING, 4),
    "missing_all": ([f"DELETE FROM {EVENTS}"], Fault.MISSING, 1),
    "missing_and_renumbered": (
        [
            f"DELETE FROM {EVENTS} WHERE number = 3",
            f"UPDATE {EVENTS} SET number = 3 WHERE number = 4",
            f"UPDATE {EVENTS} SET number = 4 WHERE number = 5",
        ],
        Fault.MISSING,
        3,
    ),
    "reordered": (
        [
            f"UPDATE {EVENTS} SET number = 9 WHERE number = 2",
            f"UPDATE {EVENTS} SET number = 2 WHERE number = 3",
            f"UPDATE {EVENTS} SET number = 3 WHERE number = 9",
        ],
        Fault.REORDERED,
        2,
    ),
    "renumbered": (
        [f"UPDATE {EVENTS} SET number = 7 WHERE number = 5", f"UPDATE {HEAD} SET number = 7"],
        Fault.REORDERED,
        7,
    ),
    "inserted_last": ([COPY % 6], Fault.INSERTED, 6),
    "inserted_first": ([COPY % 0], Fault.CHANGED, 0),
    "another_head": ([f"UPDATE {HEAD} SET digest = 'x'"], Fault.CHANGED, 5),
}


def test_a_broken_link_is_reported(events: list[AuditEvent]) -> None:
    when = connections[ALIAS].ops.quote_name("when")
    assert verify(using=ALIAS).ok
    unprotect(using=ALIAS)
    for name, (statements, fault, number) in BROKEN.items():
        with transaction.atomic(using=ALIAS):
            for statement in statements:
                sql(statement.format(when=when))
            report = verify(using=ALIAS)
            transaction.set_rollback(True, using=ALIAS)
        assert report.broken is not None, name
        assert (report.broken.fault, report.broken.number) == (fault, number), name
        assert f"then event {number}: {fault}: " in str(report), name


def test_a_log_that_was_shortened_is_reported(events: list[AuditEvent]) -> None:
    tamper(
        f"UPDATE {HEAD} SET pruned_number = 3, pruned_digest = '{events[2].digest}'",
        f"DELETE FROM {EVENTS} WHERE number < 4",
    )
    broken = broken_link()
    assert (broken.fault, broken.number) == (Fault.PRUNED, 3)
    assert "no event records that the events up to here were pruned" in str(broken)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_head_that_was_set_back_or_lost_has_no_signature_until_it_is_signed_again(
    is_lost: bool, events: list[AuditEvent]
) -> None:
    if is_lost:
        tamper(f"DELETE FROM {HEAD}")
    else:
        back = f"UPDATE {HEAD} SET number = 3, digest = '{events[2].digest}'"
        tamper(back, f"DELETE FROM {EVENTS} WHERE number > 3")
    Resource.objects.using(ALIAS).create(name="later")
    broken = broken_link()
    assert (broken.fault, broken.number) == (Fault.CHANGED, 6 if is_lost else 4)
    assert "no valid signature" in str(broken)
    sign(using=ALIAS)
    assert verify(using=ALIAS).ok


def test_the_signature_goes_with_the_secret_key_and_its_fallbacks(events: list[AuditEvent], settings: Settings) -> None:
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another"
    assert verify(using=ALIAS).ok
    settings.SECRET_KEY_FALLBACKS = []
    assert not verify(using=ALIAS).ok


def test_the_orm_refuses_to_change_the_head(events: list[AuditEvent]) -> None:
    heads = AuditHead.objects.using(ALIAS)
    head = heads.get()
    assert str(head) == "event 5"
    changes: list[Callable[[], object]] = [
        lambda: heads.update(pruned_number=3),
        heads.delete,
        head.save,
        head.delete,
        lambda: heads.bulk_create([AuditHead(pk=2)]),
        lambda: heads.bulk_update([head], ["number"]),
    ]
    for change in changes:
        with pytest.raises(NotSupportedError, match="append-only"):
            change()
    assert verify(using=ALIAS).events == 5


def test_a_dumped_log_is_loaded_once(events: list[AuditEvent], tmp_path: Path) -> None:
    everything = tmp_path / "everything.json"
    with everything.open("w") as file:
        call_command("dumpdata", "limits_app", database=ALIAS, stdout=file)
    begin_again()
    call_command("loaddata", str(everything), database=ALIAS, verbosity=0)
    report = verify(using=ALIAS)
    assert report.ok, report.broken
    assert report.events == 10  # those of the file, and those of loading the five resources
    assert list(unrecorded(using=ALIAS)) == []
    with pytest.raises(IntegrityError, match="a log can be loaded only where it is empty"):
        call_command("loaddata", str(everything), database=ALIAS, verbosity=0)
    of_events = tmp_path / "events.json"
    rows = [one for one in json.loads(everything.read_text()) if one["model"] == "limits_app.auditevent"]
    of_events.write_text(json.dumps(rows))
    with pytest.raises(IntegrityError, match="a log can be loaded only where it is empty"):
        call_command("loaddata", str(of_events), database=ALIAS, verbosity=0)
    assert verify(using=ALIAS).events == 10


def test_a_forged_event_is_reported(events: list[AuditEvent]) -> None:
    second = events[1]
    content = [WHEN, "mallory", "admin", "create", "resource", "9", "forged", None, None, "", None]
    forged = digest_of(second.digest, content)
    tamper(f"UPDATE {EVENTS} SET number = number + 10 WHERE number > 2")
    tamper(f"UPDATE {EVENTS} SET number = number - 9 WHERE number > 2", f"UPDATE {HEAD} SET number = 6")
    when = connections[ALIAS].ops.quote_name("when")
    sql(
        f"INSERT INTO {EVENTS} (id, number, previous, digest, actor, source, verb, object_type, object_id,"
        f" object_label, {when}, reason) VALUES (99, 3, %s, %s, 'mallory', 'admin', 'create', 'resource', '9',"
        " 'forged', %s, '')",
        second.digest,
        forged,
        connections[ALIAS].ops.adapt_datetimefield_value(WHEN),
    )
    broken = broken_link()
    assert (broken.fault, broken.number) == (Fault.INSERTED, 3)


def test_a_rewritten_log_does_not_match_a_digest_that_was_kept(events: list[AuditEvent]) -> None:
    kept = verify(using=ALIAS)
    known = (kept.number, kept.digest)
    assert verify(using=ALIAS, known=known).ok
    assert verify(using=ALIAS, known=(3, events[2].digest)).ok
    assert broken_link(known=(3, "another")).fault is Fault.CHANGED
    begin_again()
    assert broken_link(known=known).fault is Fault.MISSING


REFUSED = [
    f"UPDATE {EVENTS} SET actor = 'x'",
    f"UPDATE {EVENTS} SET reason = 'x' WHERE number = 2",
    f"DELETE FROM {EVENTS}",
    f"DELETE FROM {EVENTS} WHERE number = 1",
    f"DELETE FROM {HEAD}",
    f"UPDATE {HEAD} SET pruned_number = 3, pruned_digest = 'x'",
    f"UPDATE {HEAD} SET number = 3",
]
TRUNCATING = [f"TRUNCATE {EVENTS}", f"TRUNCATE {HEAD}", f"TRUNCATE {EVENTS}, {HEAD}"]


def test_the_database_itself_is_append_only(events: list[AuditEvent], vendor: str) -> None:
    for statement in REFUSED + TRUNCATING * (vendor == "postgresql"):
        with pytest.raises(DatabaseError, match="append-only"):
            sql(statement)
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(using=ALIAS):
            sql(statement)
        assert verify(using=ALIAS).events == 5, statement


def test_replacing_a_row_is_refused(events: list[AuditEvent], vendor: str) -> None:
    """PostgreSQL knows no statement for it but an update."""
    when = connections[ALIAS].ops.quote_name("when")
    verb = {"sqlite": "INSERT OR REPLACE", "mysql": "REPLACE"}.get(vendor, "INSERT")
    for column, other in (("id", "number"), ("number", "id")):
        into = (
            f"INTO {EVENTS} ({column}, {other}, previous, digest, actor, source, verb, object_type, object_id,"
            " object_label"
        )
        values = f"VALUES ({getattr(events[1], column)}, 99, '', '', 'x', 'x', 'create', 'x', '', ''"
        upsert = f" ON CONFLICT ({column}) DO UPDATE SET actor = 'x'" if vendor == "postgresql" else ""
        with pytest.raises(DatabaseError, match="append-only"):
            sql(f"{verb} {into}, {when}, reason) {values}, '2001-01-01 00:00:00', ''){upsert}")
        assert verify(using=ALIAS).events == 5, column


def test_a_flush_begins_a_new_log_once_it_is_no_longer_protected(events: list[AuditEvent], vendor: str) -> None:
    if vendor != "mysql":  # which has no triggers for TRUNCATE
        with pytest.raises(CommandError, match="couldn't be flushed"):
            call_command("flush", database=ALIAS, interactive=False, verbosity=0)
    assert verify(using=ALIAS).events == 5
    unprotect(using=ALIAS)
    call_command("flush", database=ALIAS, interactive=False, verbosity=0)
    assert verify(using=ALIAS).events == 0
    Resource.objects.using(ALIAS).create(name="a")
    assert verify(using=ALIAS).ok


def test_protection_can_be_created_and_removed_again_and_again(events: list[AuditEvent]) -> None:
    protect(using=ALIAS)
    assert is_protected(using=ALIAS)
    unprotect(using=ALIAS)
    unprotect(using=ALIAS)
    assert not is_protected(using=ALIAS)
    sql(f"UPDATE {EVENTS} SET actor = 'mallory' WHERE number = 3")
    protect(using=ALIAS)
    call_command("migrate", "limits_app", database=ALIAS, verbosity=0)
    assert is_protected(using=ALIAS)
    begin_again()  # an empty log is protected from its first event on
    Resource.objects.using(ALIAS).create(name="a")
    with pytest.raises(DatabaseError, match="append-only"):
        sql(f"DELETE FROM {EVENTS}")


def test_old_events_are_pruned_and_the_rest_is_verified(events: list[AuditEvent]) -> None:
    kept: list[str] = []
    now = timezone.now()
    archive: Callable[[Any], object] = lambda old: kept.extend(event.object_label for event in old)  # noqa: E731
    with acting(using=ALIAS):
        prune(now, using=ALIAS)
        transaction.set_rollback(True, using=ALIAS)
    assert verify(using=ALIAS).events == 5
    assert prune(events[0].when - timedelta(days=1), using=ALIAS) == 0
    assert prune(now, archive=archive, batch=2, actor="ann", using=ALIAS) == 2
    assert prune(now, archive=archive, using=ALIAS) == 3
    assert kept == list("abcde")
    report = verify(using=ALIAS)
    assert (report.ok, report.events, report.number) == (True, 2, 7)
    pruning = AuditEvent.objects.using(ALIAS).get(number=6)
    assert (pruning.verb, pruning.actor, pruning.after["count"]) == ("prune", "ann", 2)
    with pytest.raises(DatabaseError, match="append-only"):
        sql(f"DELETE FROM {EVENTS}")
    assert list(unrecorded(using=ALIAS)) == []
    with pytest.raises(InvalidRequest, match="batch must be 1 or more"):
        prune(now, batch=0, using=ALIAS)
    with pytest.raises(InvalidRequest, match="must not be in the future"):
        prune(timezone.now() + timedelta(days=1), using=ALIAS)


def test_events_pruned_during_verification_are_not_missing(events: list[AuditEvent]) -> None:
    now, asked = timezone.now(), 0

    def prune_meanwhile(execute: Any, statement: str, *arguments: Any) -> Any:
        nonlocal asked
        if statement.startswith("SELECT") and statement.count("previous") and (asked := asked + 1) == 1:
            prune(now, batch=3, using=ALIAS)
        return execute(statement, *arguments)

    with connections[ALIAS].execute_wrapper(prune_meanwhile):
        report = verify(using=ALIAS)
    assert (report.ok, report.events, report.number, asked) == (True, 3, 6, 2)


def test_a_pruned_event_is_compared_with_its_digest_or_reported_as_gone(events: list[AuditEvent]) -> None:
    prune(timezone.now(), batch=3, using=ALIAS)
    assert verify(using=ALIAS, known=(3, events[2].digest)).ok
    broken = broken_link(known=(3, "another"))
    assert (broken.fault, broken.number) == (Fault.CHANGED, 3)
    assert str(broken_link(known=(2, events[1].digest))) == (
        "event 2: pruned: it was pruned and cannot be compared: record the number and digest of event 3 or a later one"
    )


def test_what_a_database_makes_of_numbers_and_texts_breaks_nothing(events: list[AuditEvent]) -> None:
    numbers = {"big": 1e22, "whole": 1.0, "tiny": 1e-7, "id": 2**60 + 1, "minus": -0.0}
    for name, metadata in (("user:1", numbers), ("user:2", {"b": [1, {"ä": None}], "a": "\u2028"})):
        Entity.objects.using(ALIAS).create(identifier=name, metadata=metadata)
    assert verify(using=ALIAS).ok
    assert list(unrecorded(using=ALIAS)) == []


def test_concurrent_writers_make_one_chain(events: list[AuditEvent]) -> None:
    errors: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for number in range(5):
                with transaction.atomic(using=ALIAS):
                    Resource.objects.using(ALIAS).create(name=f"{name}{number}")
                    if number == 3:
                        transaction.set_rollback(True, using=ALIAS)
        except BaseException as error:  # noqa: BLE001 - of a thread; it is looked at below
            errors.append(error)
        finally:
            connections[ALIAS].close()

    threads = [threading.Thread(target=write, args=(name,)) for name in ("w", "x", "y", "z")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    report = verify(using=ALIAS)
    assert (report.ok, report.events, report.number) == (True, 21, 21)


def test_changes_by_sql_are_found(events: list[AuditEvent]) -> None:
    pilot = Resource.objects.using(ALIAS).create(name="pilot")
    Policy.objects.using(ALIAS).create(resource=pilot)
    Resource.objects.using(ALIAS).filter(name="pilot").update(name="renamed")
    assert list(unrecorded(using=ALIAS)) == []
    sql("UPDATE limits_app_resource SET description = 'x' WHERE name = 'a'")
    sql("DELETE FROM limits_app_resource WHERE name = 'b'")
    sql("INSERT INTO limits_app_resource (name, description) VALUES ('forged', '')")
    sql("UPDATE limits_app_policy SET resource_id = NULL")
    assert sorted(re.sub(r" \d+ ", " ", str(one)) for one in unrecorded(using=ALIAS)) == [
        "policy was changed without an event",
        "resource was changed without an event",
        "resource was created without an event",
        "resource was deleted without an event",
    ]


def erase(identifier: str, using: str = ALIAS) -> int:
    with acting(using=using) as changes:
        return redact(Identifier(identifier, f"erased:{identifier[::-1]}"), changes, using=using, usage=1)


def test_events_are_redacted_and_keep_their_places(events: list[AuditEvent]) -> None:
    Entity.objects.using(ALIAS).create(identifier="tenant:zoë", name="Zoë", metadata={"mail": "z@example.net"})
    Entity.objects.using(ALIAS).update(blocked=True)
    before = verify(using=ALIAS)
    assert erase("tenant:zoë") == 2
    report = verify(using=ALIAS, known=(before.number, before.digest))
    assert (report.ok, report.events, report.redacted) == (True, 8, 2)
    assert "Zoë" not in str([*AuditEvent.objects.using(ALIAS).values()])
    assert list(unrecorded(using=ALIAS)) == []
    assert prune(timezone.now(), batch=6, using=ALIAS) == 6
    assert verify(using=ALIAS).ok


FORGED = [
    "UPDATE {events} SET actor = 'mallory' WHERE number = 6",
    "UPDATE {events} SET source = 'x' WHERE number = 7",
    "UPDATE {events} SET digest = 'x' WHERE number = 7",
    "UPDATE {events} SET verb = 'delete' WHERE number = 7",
    "UPDATE {events} SET number = 70 WHERE number = 7",
    "DELETE FROM {events} WHERE number = 7",
]


def test_only_named_events_can_be_changed_and_only_their_contents(events: list[AuditEvent]) -> None:
    for name in ("a", "b"):
        Entity.objects.using(ALIAS).create(identifier=f"user:{name}")
    assert erase("user:b") == 1
    for statement in FORGED:
        with pytest.raises(DatabaseError, match="append-only"):
            sql(statement.format(events=EVENTS))
    assert verify(using=ALIAS).ok
    sql(f"UPDATE {EVENTS} SET reason = 'forged' WHERE number = 7")  # the last event allows it until there is another
    assert broken_link().fault is Fault.CHANGED
    assert broken_link().number == 7


def test_after_another_event_nothing_can_be_redacted(events: list[AuditEvent]) -> None:
    Entity.objects.using(ALIAS).create(identifier="user:a")
    erase("user:a")
    Resource.objects.using(ALIAS).create(name="after")
    with pytest.raises(DatabaseError, match="append-only"):
        sql(f"UPDATE {EVENTS} SET reason = 'forged' WHERE number = 6")


def test_an_erasure_that_fails_leaves_everything_as_it_was(events: list[AuditEvent]) -> None:
    Entity.objects.using(ALIAS).create(identifier="user:a")
    with acting(using=ALIAS) as changes:
        redact(Identifier("user:a", "erased:1"), changes, using=ALIAS)
        transaction.set_rollback(True, using=ALIAS)
    assert (verify(using=ALIAS).redacted, verify(using=ALIAS).events) == (0, 6)
