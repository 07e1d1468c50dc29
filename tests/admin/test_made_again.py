"""A rule that is deleted and made again under its name starts afresh; what is named by code or clients continues."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from limits_app import CallLimit, audit, limits, services
from limits_app.models import (
    AuditEvent,
    Endpoint,
    Entity,
    Limit,
    Plan,
    Policy,
    Pool,
    PoolMember,
    Resource,
    UsageSnapshot,
)
from limits_app.services.limits_file import PlannedChange, apply, export, plan, read_content
from limits_app.usage.evaluation_counter import evaluations
from tests.admin.browsing import address

_FILE = "endpoints: [{name: Ping, path: /api/ping/, limits: 2/day, counted_by: everyone}]"
_EMPTY = "endpoints: []"
_FORM = {"name": "Ping", "path": "/api/ping/", "limits": "2/day", "amounts": "{}", "order": "1"}
_FORM |= {"counted_by": "everyone", "enabled": "on"}


def rule(**fields: Any) -> Endpoint:
    """A rule that allows two requests a day."""
    values = {"name": "Ping", "path": "/api/ping/", "limits": "2/day", "counted_by": "everyone"}
    return Endpoint.objects.create(**values | fields)


def answers(number: int) -> list[int]:
    """The status of requests to the path of the rule."""
    return [Client().get("/api/ping/").status_code for _ in range(number)]


def names() -> list[str]:
    """The resources that rules charge."""
    return [row.resource_name for row in Endpoint.objects.order_by("pk")]


def made_by_form(client: Client) -> None:
    assert client.post(address("endpoint_add"), _FORM).status_code == 302


def deleted_by_form(client: Client) -> None:
    client.post(address("endpoint_delete", Endpoint.objects.get().pk), {"post": "yes"})


def deleted_from_list(client: Client) -> None:
    data = {"action": "delete_selected", "_selected_action": [Endpoint.objects.get().pk], "post": "yes"}
    client.post(address("endpoint_changelist"), data)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("deleted", [deleted_by_form, deleted_from_list])
def test_a_rule_made_again_in_the_admin_starts_afresh(admin_client: Client, deleted: Any) -> None:
    for _time in range(3):
        made_by_form(admin_client)
        assert answers(3) == [200, 200, 429]
        deleted(admin_client)
        assert not Resource.objects.exists()


def test_a_rule_that_a_limits_file_has_again_starts_afresh_and_the_file_applied_twice_changes_nothing() -> None:
    apply(read_content(_FILE))
    assert answers(3) == [200, 200, 429]
    assert {step.change for step in plan(read_content("".join(export()))).steps} == {PlannedChange.UNCHANGED}
    apply(read_content(_FILE))
    assert answers(1) == [429]
    apply(read_content(_EMPTY))
    apply(read_content(_FILE))
    assert answers(3) == [200, 200, 429]
    apply(read_content(_FILE))
    assert (answers(1), names()) == ([429], ["rule-ping-2"])


@pytest.mark.django_db(transaction=True)
def test_a_rule_imported_twice_continues_and_one_imported_after_its_deletion_starts_afresh(
    admin_client: Client,
) -> None:
    rows = b"name,path,limits,counted_by\nPing,/api/ping/,2/day,everyone\n"

    def import_rows() -> None:
        file = SimpleUploadedFile("rules.csv", rows)
        shown = admin_client.post(address("endpoint_import"), {"import_file": file, "format": "0"})
        if "confirm_form" in shown.context:
            admin_client.post(address("endpoint_process_import"), shown.context["confirm_form"].initial)

    import_rows()
    assert answers(3) == [200, 200, 429]
    import_rows()
    assert answers(1) == [429]
    Endpoint.objects.all().delete()
    import_rows()
    assert answers(3) == [200, 200, 429]


def test_a_rule_deleted_and_made_in_one_change_starts_afresh() -> None:
    rule()
    assert answers(3) == [200, 200, 429]
    with audit.acting(actor="root"):
        Endpoint.objects.all().delete()
        rule()
    assert answers(3) == [200, 200, 429]


def test_limits_removed_from_a_rule_and_set_again_start_afresh() -> None:
    row = rule()
    assert answers(2) == [200, 200]
    api = Resource.objects.create(name="api")
    Endpoint.objects.update(limits="", resource=api)
    assert answers(1) == [200]
    Endpoint.objects.update(limits="2/day", resource=None)
    assert answers(3) == [200, 200, 429]
    Endpoint.objects.filter(pk=row.pk).update(limits="3/day", name="other")
    assert answers(2) == [200, 429]  # changed limits and names continue


def test_a_reverted_deletion_continues(admin_client: Client) -> None:
    rule()
    assert answers(3) == [200, 200, 429]
    Endpoint.objects.all().delete()
    audit.revert(AuditEvent.objects.filter(object_type="endpoint").latest("number"))
    assert (answers(1), names()) == ([429], ["rule-ping"])


def test_the_name_of_a_renamed_rule_is_not_used_again() -> None:
    rule(path="/elsewhere/")
    Endpoint.objects.update(name="other")
    Endpoint.objects.all().delete()
    Resource.objects.all().delete()
    rule()
    assert names() == ["rule-ping-2"]


def test_rules_made_again_in_bulk_have_names_of_their_own() -> None:
    rows = [Endpoint(name="Ping", path=f"/{n}/", limits="2/day") for n in range(3)]
    Endpoint.objects.bulk_create(rows)
    Endpoint.objects.all().delete()
    Endpoint.objects.bulk_create([Endpoint(name="Ping", path=f"/{n}/", limits="2/day") for n in range(3)])
    assert names() == ["rule-ping-4", "rule-ping-5", "rule-ping-6"]


@pytest.mark.parametrize(("resource", "expected"), [("rule-ping", "rule-ping-2"), ("rule-ping-2", "rule-ping")])
def test_a_name_with_usage_is_not_used_again_where_the_log_was_pruned(resource: str, expected: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    UsageSnapshot.objects.create(resource=resource, key="call_count", period="day", start=start)
    rule()
    assert names() == [expected]


@pytest.mark.parametrize(
    ("until", "expected"),
    [(None, "rule-ping"), ("2099-01-01T00:00Z", "rule-ping"), ("2020-01-02T00:00Z", "rule-ping-2")],
)
def test_a_resource_that_a_policy_in_force_refers_to_is_adopted(until: str | None, expected: str) -> None:
    rule(counted_by="entity")
    limits.set_entity_limits("user:1", [CallLimit(9, 60)], resource="rule-ping")
    begins = None if until is None else datetime(2020, 1, 1, tzinfo=UTC)
    ends = None if until is None else datetime.fromisoformat(until)
    Policy.objects.filter(entity__isnull=False).update(valid_from=begins, valid_until=ends)
    Endpoint.objects.all().delete()
    rule(counted_by="entity")
    assert names() == [expected]


def is_admitted(resource: str, entity: str | None = None) -> bool:
    """Whether a request is admitted."""
    return bool(limits.try_acquire(resource, entity=entity))


def test_counters_of_names_in_code_and_of_clients_continue() -> None:
    def make() -> None:
        limits.set_resource_limits("search", [CallLimit(1, 60)], shared=["call_count"])
        limits.set_entity_limits("user:7", [CallLimit(1, 60)])
        member = PoolMember.objects.create(pool=Pool.objects.create(name="regions"), name="west")
        Limit.from_definition(member, CallLimit(1, 60)).save()
        limits.set_plan_limits("gold", [CallLimit(1, 60)])
        Entity.objects.create(identifier="user:8", plan=Plan.objects.get())

    def uses() -> list[bool]:
        pooled = bool(limits.pool("regions").try_acquire())
        return [is_admitted("search"), is_admitted("mail", "user:7"), is_admitted("mail", "user:8"), pooled]

    make()
    assert (uses(), uses()) == ([True] * 4, [False] * 4)
    for model in (Policy, Resource, Entity, Plan, Pool):
        model.objects.all().delete()
    make()
    assert uses() == [False] * 4


def test_another_candidate_has_counts_of_its_own_and_continues_the_usage_of_clients() -> None:
    policy = limits.set_resource_limits("search", [CallLimit(100, 60)])
    services.set_candidate(policy, "calls=1/min")
    assert [is_admitted("search", "user:7") for _ in range(3)] == [True] * 3
    evaluations.flush()
    assert [(one.evaluated, one.rejected) for one in services.candidates()] == [(3, 2)]
    services.discard_candidate(policy)
    services.set_candidate(policy, "calls=1/min")
    assert [(one.evaluated, one.rejected) for one in services.candidates()] == [(0, 0)]
    assert is_admitted("search", "user:7")
    evaluations.flush()
    assert [(one.evaluated, one.rejected) for one in services.candidates()] == [(1, 1)]
