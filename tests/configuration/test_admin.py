"""The admin: every change is audited once, warnings teach, and no input is answered by a crash."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from limits_app import limits
from limits_app.engine.limits import QuotaLimit
from limits_app.models import AuditEvent, Endpoint, Entity, Limit, Policy, PolicyEffect, Resource, Verb
from limits_app.services.limit_fields import FIELDS, split
from tests.admin.browsing import policy_form
from tests.configuration.rows import rate, staff

pytestmark = pytest.mark.django_db

LIMIT = {"kind": "rate", "key": "tpm", "capacity": "1000", "window_seconds": "60"}


def limit_form(limit: Limit, **fields: Any) -> dict[str, Any]:
    """What a browser sends for a limit that is there already."""
    kept = {"id": limit.pk, **split(limit)}
    return {name: value for name, value in kept.items() if value not in (None, False)} | fields


def send(client: Client, page: str, form: dict[str, Any], *args: Any) -> Any:
    """Post a form, and give the answer."""
    return client.post(reverse(f"admin:limits_app_{page}", args=args), form)


def errors(response: HttpResponse) -> dict[str, list[str]]:
    """The errors of a form that was refused, by field; those of limits as `limits.<field>`."""
    assert response.status_code == 200
    context = response.context  # type: ignore[attr-defined]  # the test client adds it
    found = dict(context["adminform"].form.errors)
    for formset in context["inline_admin_formsets"]:
        found |= {"limits": formset.formset.non_form_errors()}
        found |= {f"limits.{field}": said for form in formset.forms for field, said in form.errors.items()}
    return {field: list(said) for field, said in found.items() if said}


def warnings(response: HttpResponse) -> list[str]:
    """The warnings that the next page will show."""
    return [str(message) for message in get_messages(response.wsgi_request) if message.level_tag == "warning"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", ["policy", "resource", "entity", "endpoint", "auditevent"])
def test_lists_can_be_shown_and_searched(page: str, admin_client: Client, policy: Policy) -> None:
    for query in ("", "?q=api", "?q=%F0%9F%9A%80", "?q=" + "x" * 10_240, "?scope=nowhere", "?o=2.-1"):
        response = admin_client.get(reverse(f"admin:limits_app_{page}_changelist") + query, follow=True)
        assert response.status_code == 200, query


@pytest.mark.parametrize(
    ("scope", "listed"),
    [
        ("system", {"system"}),
        ("resource", {"resource api"}),
        ("entity", {"entity user:42"}),
        ("entity_on_resource", {"entity user:42 on api"}),
        ("", {"system", "resource api", "entity user:42", "entity user:42 on api"}),
    ],
)
def test_filter_by_scope(scope: str, listed: set[str], admin_client: Client, api: Resource, user: Entity) -> None:
    for resource in (None, api):
        for entity in (None, user):
            Policy.objects.create(resource=resource, entity=entity)
    query = f"?scope={scope}" if scope else ""
    response = admin_client.get(reverse("admin:limits_app_policy_changelist") + query)
    assert {str(policy) for policy in response.context["cl"].result_list} == listed


@pytest.mark.parametrize(
    ("holds", "listed"),
    [
        ("always", "always"),
        ("dates", "from 2026-03-04 13:00 (CET) until 2026-03-05 13:00 (CET)"),
        ("hours", "mon-fri UTC"),
    ],
)
def test_filter_by_time(holds: str, listed: str, admin_client: Client, api: Resource, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    begins = datetime(2026, 3, 4, 12, tzinfo=UTC)
    Policy.objects.create(resource=api)
    Policy.objects.create(resource=api, valid_from=begins, valid_until=begins + timedelta(days=1))
    Policy.objects.create(resource=api, weekly_hours="mon-fri", time_zone="UTC", rollout_percent=5)
    response = admin_client.get(reverse("admin:limits_app_policy_changelist") + f"?holds={holds}")
    assert len(response.context["cl"].result_list) == 1
    page = response.content.decode()
    assert listed in page
    assert (", 5 %<" in page) is (holds == "hours")


def test_a_form_shows_help_as_it_is_and_not_as_markup(admin_client: Client) -> None:
    page = admin_client.get(reverse("admin:limits_app_endpoint_add")).content.decode()
    assert "such as “/api/orders/&lt;int:pk&gt;/”, or" in page


def events() -> list[AuditEvent]:
    """The events of the admin, in order."""
    return list(AuditEvent.objects.filter(source="admin").order_by("number"))


def test_a_policy_is_added_changed_and_deleted_with_one_event_each(admin_client: Client, api: Resource) -> None:
    fields = {"resource": api.pk, "enforcement": "shadow", "rollout_percent": 10, "weekly_hours": "sat,sun"}
    permit = {"kind": "resource", "key": "connections", "capacity": "10"}
    response = send(
        admin_client, "policy_add", policy_form({**LIMIT, "shared": "on"}, permit, reason="launch", **fields)
    )
    assert (response.status_code, warnings(response)) == (302, [])
    [added] = events()
    assert (added.actor, added.verb, added.reason) == ("admin", "create", "launch")
    assert (added.object_type, added.object_label, added.before) == ("policy", "resource api", None)
    assert (added.after["enforcement"], added.after["rollout_percent"]) == ("shadow", 10)
    assert (added.after["weekly_hours"], added.after["time_zone"]) == ("sat,sun", "UTC")
    assert [(limit["key"], limit.get("shared")) for limit in added.after["limits"]] == [
        ("connections", None),
        ("tpm", True),
    ]

    policy = Policy.objects.get()
    permit, tpm = (limit_form(limit) for limit in policy.limits.all())
    tpm["shared"] = "on"
    same = policy_form(tpm, permit, existing=2, reason="launch", **fields)
    assert send(admin_client, "policy_change", same, policy.pk).status_code == 302
    assert events() == [added]

    changed = policy_form(tpm | {"capacity": "2000"}, permit, existing=2, reason="launch", **fields)
    assert send(admin_client, "policy_change", changed, policy.pk).status_code == 302
    [_, event] = events()
    assert event.verb == Verb.UPDATE
    assert [(taken or {})["limits"][1]["text"] for taken in (event.before, event.after)] == ["1000/min", "2000/min"]

    assert send(admin_client, "policy_delete", {"post": "yes"}, policy.pk).status_code == 302
    [*_, event] = events()
    assert (event.verb, event.object_label, event.after) == ("delete", "resource api", None)
    assert [limit["key"] for limit in (event.before or {})["limits"]] == ["connections", "tpm"]
    assert not Limit.objects.exists()


@pytest.mark.parametrize(
    ("page", "form", "label"),
    [
        ("resource", {"name": "mail"}, "mail"),
        ("entity", {"identifier": "tenant:acme", "metadata": '{"plan": "pro"}'}, "tenant:acme"),
        ("entity", {"identifier": "\N{ROCKET}|:/", "metadata": ""}, "\N{ROCKET}|:/"),
        ("endpoint", {"name": "all", "path": "/", "amounts": "", "order": "1", "counted_by": "entity"}, "all"),
    ],
)
def test_other_pages_audited(page: str, form: dict[str, Any], label: str, admin_client: Client, api: Resource) -> None:
    assert send(admin_client, f"{page}_add", {"resource": api.pk} | form).status_code == 302
    [event] = events()
    assert (event.verb, event.object_type, event.object_label) == ("create", page, label)


@pytest.mark.parametrize("key", ["", "abc", "\0", "9" * 40, "1.5"])
def test_a_selection_that_cannot_be_rows_is_explained(key: str, admin_client: Client, api: Resource) -> None:
    form = {"action": "delete_selected", "_selected_action": [str(api.pk), key], "post": "yes"}
    response = send(admin_client, "resource_changelist", form)
    assert [str(message) for message in get_messages(response.wsgi_request)] == [
        "Invalid selection: select rows of this list, and run the action again."
    ]
    assert Resource.objects.exists()


def test_a_change_that_fails_leaves_no_event(admin_client: Client, api: Resource) -> None:
    def fail(execute: Callable[..., Any], sql: str, *details: Any) -> Any:
        if sql.startswith("INSERT") and AuditEvent._meta.db_table in sql:
            raise RuntimeError("disk full")
        return execute(sql, *details)

    with connection.execute_wrapper(fail), pytest.raises(RuntimeError, match="disk full"):
        send(admin_client, "resource_add", {"name": "mail"})
    assert not Resource.objects.filter(name="mail").exists()


def test_objects_in_use_are_explained_and_not_deleted(admin_client: Client, policy: Policy) -> None:
    page = send(admin_client, "resource_delete", {"post": "yes"}, policy.resource_id).content.decode()
    assert "would require deleting the following protected related objects" in page
    assert Resource.objects.exists()


BAD_LIMITS: list[tuple[dict[str, str], str, str]] = [
    ({"key": "a\0b"}, "limits.key", "Null characters are not allowed"),
    ({"capacity": "0"}, "limits.capacity", "capacity must be more than 0, not 0"),
    ({"capacity": "sNaN"}, "limits.capacity", "Write a number, such as 1000"),
    ({"capacity": "1e999999999"}, "limits.capacity", "no more than 19 digits"),
    ({"capacity": "9" * 10_240}, "limits.capacity", "no more than 19 digits"),
    ({"capacity": "1\0"}, "limits.capacity", "Write a number, such as 1000"),
    ({"window_seconds": "soon"}, "limits.window_seconds", "Write seconds, such as 60, or a time such as 1 min"),
]
"""What the fields of a form refuse, and one rule of the model; test_policy_and_limit has the others."""


@pytest.mark.parametrize(
    ("capacity", "window", "read"),
    [
        ("1M", "1 min", (1_000_000, 60)),
        ("1,000,000", "2h", (1_000_000, 7200)),
        (" 2.5 ", "90", (2.5, 90)),
        ("400k", "0.5", (400_000, 0.5)),
    ],
)
def test_a_form_reads_numbers_as_lists_show_them(
    capacity: str, window: str, read: tuple[float, float], admin_client: Client, api: Resource
) -> None:
    send(
        admin_client,
        "policy_add",
        policy_form(LIMIT | {"capacity": capacity, "window_seconds": window}, resource=api.pk),
    )
    limit = Limit.objects.get().definition()
    assert (limit.capacity, limit.window_seconds) == read


@pytest.mark.parametrize(("fields", "field", "said"), BAD_LIMITS, ids=lambda value: f"{value!a:.40}")
def test_a_bad_limit_is_refused_at_its_field(
    fields: dict[str, str], field: str, said: str, admin_client: Client, api: Resource
) -> None:
    response = send(admin_client, "policy_add", policy_form(LIMIT | fields, resource=api.pk))
    complained = " ".join(errors(response)[field])
    assert said in complained
    assert len(complained) < 500
    assert not Policy.objects.exists()
    assert not AuditEvent.objects.filter(source="admin").exists()


@pytest.mark.parametrize("change", [{"enforcement": "off"}, {"rollout_percent": 10}])
def test_weakening_needs_a_confirmation(change: dict[str, Any], admin_client: Client, api: Resource) -> None:
    send(admin_client, "policy_add", policy_form(LIMIT, resource=api.pk))
    policy, limit = Policy.objects.get(), Limit.objects.get()
    limits.set_system_limits("9/min")
    form = policy_form(limit_form(limit) | {"limits-0-policy": policy.pk}, existing=1, resource=api.pk, **change)
    complained = errors(send(admin_client, "policy_change", form, policy.pk))["confirm_weaker"]
    assert "Saving " in complained[0]
    assert "Without it these apply: system." in complained[0]
    form["confirm_weaker"] = "on"
    assert send(admin_client, "policy_change", form, policy.pk).status_code == 302
    policy.refresh_from_db()
    assert {name: getattr(policy, name) for name in change} == change


BAD_POLICIES: list[tuple[dict[str, Any], str, str]] = [
    ({"resource": "api"}, "resource", "not one of the available choices"),
    ({"entity": "9" * 40}, "entity", "not one of the available choices"),
    ({"entity": "\0"}, "entity", "Null characters are not allowed"),
    ({"reason": "because\0"}, "reason", "Null characters are not allowed"),
]


@pytest.mark.parametrize(("fields", "field", "said"), BAD_POLICIES, ids=lambda value: f"{value!a:.40}")
def test_an_invalid_policy_is_rejected(fields: dict[str, Any], field: str, said: str, admin_client: Client) -> None:
    found = errors(send(admin_client, "policy_add", policy_form(LIMIT, **fields)))
    assert said in " ".join(found[field])


BAD_ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    ("resource", {"name": "a b"}, "name", "must be a letter followed by"),
    ("resource", {"name": "a\0"}, "name", "Null characters are not allowed"),
    ("entity", {"identifier": "a\0"}, "identifier", "Null characters are not allowed"),
    ("entity", {"metadata": '{"a": NaN}'}, "metadata", "must be finite, not NaN or infinity"),
    ("entity", {"metadata": "[" * 10_240 + "]" * 10_240}, "metadata", "not be nested more than 32 levels"),
    ("entity", {"metadata": "9" * 10_240}, "metadata", "A number in the JSON is too long"),
    ("endpoint", {"view_name": "orders"}, "path", "Enter either a path or a view name."),
    ("endpoint", {"order": "9" * 40}, "order", "less than or equal to"),
    ("endpoint", {"counted_by": "header"}, "header", "Enter a header when counting"),
    ("endpoint", {"header": "X-Tenant"}, "header", "leave it empty otherwise"),
    ("endpoint", {"counted_by": "header", "header": "X Tenant"}, "header", "is not the name of a header"),
    ("endpoint", {"path": "/a*/"}, "path", "must be a whole segment"),
    ("endpoint", {"exempt_networks": "10.0.0.0/8\n10.0.0.0/99"}, "exempt_networks", "'10.0.0.0/99' is not an IP"),
    ("endpoint", {"exempt_entities": "x" * 256}, "exempt_entities", "255"),
]


@pytest.mark.parametrize(("page", "fields", "field", "said"), BAD_ROWS, ids=lambda value: f"{value!a:.40}")
def test_other_bad_forms_are_refused_at_the_field_that_is_wrong(
    page: str, fields: dict[str, Any], field: str, said: str, admin_client: Client, api: Resource
) -> None:
    every: dict[str, dict[str, Any]] = {
        "resource": {},
        "entity": {"identifier": "user:42", "metadata": "{}"},
        "endpoint": {
            "name": "all",
            "path": "/",
            "amounts": "{}",
            "order": "1",
            "resource": api.pk,
            "counted_by": "entity",
        },
    }
    complained = " ".join(errors(send(admin_client, f"{page}_add", every[page] | fields))[field])
    assert said in complained
    assert len(complained) < 500


def test_json_is_shown_again_as_it_was_typed(admin_client: Client) -> None:
    for value in ("NaN", "  1"):
        page = send(admin_client, "entity_add", {"identifier": "", "metadata": f'{{"a":{value}}}'}).content.decode()
        assert f"{{&quot;a&quot;:{value}}}" in page


def test_a_second_policy_for_one_scope_is_explained(admin_client: Client, policy: Policy) -> None:
    found = errors(send(admin_client, "policy_add", policy_form(LIMIT, resource=policy.resource_id)))
    assert found["__all__"] == ["A policy for this resource and entity or plan already exists."]


def test_two_limits_of_one_key_are_explained(admin_client: Client) -> None:
    found = errors(send(admin_client, "policy_add", policy_form(LIMIT, LIMIT)))
    assert "duplicate" in " ".join(found["limits"])


@pytest.mark.parametrize("limits", [(), ({"kind": "rate"},), ({**LIMIT, "DELETE": "on"},)])
def test_a_policy_without_limits_shows_its_meaning(limits: tuple[dict[str, Any], ...], admin_client: Client) -> None:
    found = errors(send(admin_client, "policy_add", policy_form(*limits)))
    assert found["limits"] == ["Add at least one limit, or choose the effect “unlimited” or “blocked”."]


@pytest.mark.parametrize("effect", [PolicyEffect.BLOCKED, PolicyEffect.UNLIMITED])
def test_an_effect_without_limits_needs_none(effect: PolicyEffect, admin_client: Client) -> None:
    assert send(admin_client, "policy_add", policy_form(effect=effect.value)).status_code == 302
    assert Policy.objects.get().effect == effect


def test_a_policy_is_blocked_by_removing_its_limits_in_the_same_form(
    admin_client: Client, policy: Policy, limit: Limit
) -> None:
    fields: dict[str, Any] = {"existing": 1, "effect": "blocked", "resource": policy.resource_id}
    found = errors(send(admin_client, "policy_change", policy_form(limit_form(limit), **fields), policy.pk))
    assert "A policy with the effect “blocked” cannot have limits: remove this one" in found["limits.__all__"][0]
    removed = policy_form(limit_form(limit, DELETE="on"), **fields)
    assert send(admin_client, "policy_change", removed, policy.pk).status_code == 302
    assert not Limit.objects.exists()


def test_a_removed_limit_of_a_broader_policy_is_named(admin_client: Client, policy: Policy) -> None:
    rate(Policy.objects.create(), "daily").save()
    daily, tpm = rate(policy, "daily"), rate(policy, "tpm")
    daily.save()
    tpm.save()
    form = policy_form(limit_form(daily, DELETE="on"), limit_form(tpm), existing=2, resource=policy.resource_id)
    assert "daily (system)" in warnings(send(admin_client, "policy_change", form, policy.pk))[0]


def test_a_long_list_of_dropped_limits_is_cut(admin_client: Client, api: Resource) -> None:
    system = Policy.objects.create()
    for number in range(12):
        rate(system, f"rate-{number:02}").save()
    [warning] = warnings(send(admin_client, "policy_add", policy_form(LIMIT, resource=api.pk)))
    assert "rate-09 (system), …." in warning
    assert "rate-10" not in warning


@pytest.mark.parametrize(("identifier", "warned"), [("user:42", False), (" user:42", True), ("user:42\t", True)])
def test_spaces_around_an_identifier_warn(identifier: str, warned: bool, admin_client: Client) -> None:
    response = send(admin_client, "entity_add", {"identifier": identifier, "metadata": "{}"})
    assert Entity.objects.get().identifier == identifier
    assert bool(warnings(response)) is warned


def test_the_audit_log_is_for_reading(admin_client: Client, api: Resource) -> None:
    send(admin_client, "resource_add", {"name": "mail", "description": "<b>"})
    event = AuditEvent.objects.get(source="admin")
    page = admin_client.get(reverse("admin:limits_app_auditevent_change", args=[event.pk])).content.decode()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert send(admin_client, "auditevent_change", {"actor": "x"}, event.pk).status_code == 403
    assert send(admin_client, "auditevent_delete", {"post": "yes"}, event.pk).status_code == 403
    assert admin_client.get(reverse("admin:limits_app_auditevent_add")).status_code == 403


def test_permission_to_view_policies_shows_their_limits_read_only(client: Client, policy: Policy, limit: Limit) -> None:
    staff(client, "view_policy")
    response = client.get(reverse("admin:limits_app_policy_change", args=[policy.pk]))
    assert "tpm" in response.content.decode()
    form = policy_form(limit_form(limit, capacity="1"), existing=1)
    assert send(client, "policy_change", form, policy.pk).status_code == 403


def test_permission_to_change_policies_allows_changing_their_limits(
    client: Client, policy: Policy, limit: Limit
) -> None:
    staff(client, "change_policy")
    form = policy_form(
        limit_form(limit, capacity="1"), {**LIMIT, "key": "rpm"}, existing=1, resource=policy.resource_id
    )
    assert send(client, "policy_change", form, policy.pk).status_code == 302
    assert {row.key: row.text for row in policy.limits.all()} == {"tpm": "1/min", "rpm": "1000/min"}


def test_permission_to_add_policies_allows_adding_their_limits(client: Client) -> None:
    staff(client, "add_policy")
    assert send(client, "policy_add", policy_form(LIMIT)).status_code == 302
    assert Limit.objects.get().key == "tpm"


def test_a_soft_quota_is_set_softened_and_audited(admin_client: Client) -> None:
    form = {"kind": "quota", "key": "tokens", "capacity": "5000", "period": "month", "time_zone": "Europe/Berlin"}
    assert send(admin_client, "policy_add", policy_form(form)).status_code == 302
    stored = Limit.objects.get()
    assert stored.definition() == QuotaLimit.per_month("tokens", 5000, "Europe/Berlin")
    page = admin_client.get(reverse("admin:limits_app_policy_change", args=[stored.policy_id])).content.decode()
    assert 'value="Europe/Berlin"' in page
    changed = policy_form(form | {"id": stored.pk, "policy": stored.policy_id, "soft": "on"}, existing=1)
    assert send(admin_client, "policy_change", changed, stored.policy_id).status_code == 302
    assert Limit.objects.get().definition() == QuotaLimit.per_month("tokens", 5000, "Europe/Berlin", soft=True)
    update = AuditEvent.objects.get(verb=Verb.UPDATE, source="admin")
    assert update.before["limits"] == [{"key": "tokens", "text": "5000/month@Europe/Berlin"}]
    assert update.after["limits"] == [{"key": "tokens", "text": "5000/month@Europe/Berlin:soft"}]


def test_the_list_of_rules_describes_each_rule(admin_client: Client, api: Resource) -> None:
    Endpoint.objects.create(name="by path", path="/api/", resource=api)
    Endpoint.objects.create(name="by view", view_name="orders:detail", resource=api)
    page = admin_client.get(reverse("admin:limits_app_endpoint_changelist")).content.decode()
    assert "/api/" in page
    assert "orders:detail" in page


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"view_name": "shop:orders"}, "“shop:orders”"),
        ({"path": "/no/such/"}, "“/no/such/”"),
        ({"path": "/no/such/", "enabled": ""}, None),
        ({"path": "/admin/login/"}, None),
    ],
)
def test_an_unknown_endpoint(fields: dict[str, Any], named: str | None, admin_client: Client, api: Resource) -> None:
    form = {
        "name": "e",
        "resource": api.pk,
        "amounts": "",
        "order": "1",
        "counted_by": "entity",
        "enabled": "on",
    } | fields
    said = warnings(send(admin_client, "endpoint_add", form))
    assert Endpoint.objects.filter(name="e").exists()
    assert len(said) == (named is not None)
    assert named is None or named in said[0]


@pytest.mark.parametrize(("page", "term"), [("resource", "ap"), ("entity", "user")])
def test_autocompletion(page: str, term: str, admin_client: Client, api: Resource, user: Entity) -> None:
    field = {"app_label": "limits_app", "model_name": "policy", "field_name": page, "term": term}
    found = admin_client.get(reverse("admin:autocomplete"), field).json()["results"]
    assert [result["text"] for result in found] == [str({"resource": api, "entity": user}[page])]


@pytest.mark.parametrize(
    ("text", "shown"), [("10/min", ["10", "60"]), ("0.5/1250ms", ["0.5", "1.25"]), ("0.001/1ms", ["0.001", "0.001"])]
)
def test_numbers_are_shown_as_people_write_them(
    admin_client: Client, policy: Policy, text: str, shown: list[str]
) -> None:
    rate(policy, text=text).save()
    page = admin_client.get(f"/admin/limits_app/policy/{policy.pk}/change/")
    form = page.context["inline_admin_formsets"][0].formset.forms[0]
    assert [str(form[name].value()) for name in ("capacity", "window_seconds")] == shown
    assert all(f'value="{value}"' in page.content.decode() for value in shown)
    assert 'inputmode="decimal"' in str(form["capacity"])


def test_read_only_numbers_are_formatted(client: Client, policy: Policy) -> None:
    rate(policy).save()
    [limit] = (
        staff(client, "view_policy")
        .get(f"/admin/limits_app/policy/{policy.pk}/change/")
        .context["inline_admin_formsets"][0]
    )
    shown = {field.field["name"]: field for line in next(iter(limit)) for field in line}
    assert (shown["capacity"].contents(), shown["window_seconds"].contents()) == ("1,000", "60")
    assert shown["burst"].contents() == "-"
    for name in ("capacity", "window_seconds"):
        field = FIELDS[name]
        assert (shown[name].field["label"].lower(), shown[name].field["help_text"]) == (
            field.verbose_name,
            field.help_text,
        )


@pytest.mark.parametrize("capacity", ["", "abc", "1" * 30])
def test_a_capacity_that_cannot_be_is_all_that_is_wrong(capacity: str, admin_client: Client, api: Resource) -> None:
    limit = {"kind": "call", "capacity": capacity, "window_seconds": "60"}
    found = send(admin_client, "policy_add", policy_form(limit, resource=api.pk))
    [form] = [one for one in found.context["inline_admin_formsets"][0].formset.forms if one.errors]
    assert [*form.errors] == ["capacity"]


def test_a_limit_that_was_deleted_meanwhile_is_named(admin_client: Client, policy: Policy) -> None:
    kept, gone = rate(policy, "kept"), rate(policy, "gone")
    kept.save()
    gone.save()
    limits = [limit_form(limit, capacity="7") for limit in (kept, gone)]
    gone.delete()
    form = policy_form(*limits, existing=2, resource=policy.resource_id)
    answer = send(admin_client, "policy_change", form, policy.pk)
    assert "One of these limits has been deleted" in answer.content.decode()
    assert Limit.objects.get().text == "1000/min"


def test_a_form_that_is_outdated_is_refused_once(admin_client: Client, policy: Policy, limit: Limit) -> None:
    page = f"/admin/limits_app/policy/{policy.pk}/change/"

    def form(shown: HttpResponse, reason: str) -> dict[str, Any]:
        [version] = re.findall(r'name="_version" value="(\w+)"', shown.content.decode())
        fields: dict[str, Any] = {"resource": policy.resource_id, "reason": reason, "_version": version}
        return policy_form(limit_form(limit), existing=1, **fields)

    first = form(admin_client.get(page), "from A")
    Limit.objects.update(text="77/min")
    refused = admin_client.post(page, first)
    assert "This object has been changed since you opened the form" in refused.content.decode()
    assert (Limit.objects.get().text, Policy.objects.get().reason) == ("77/min", "")
    assert admin_client.post(page, form(refused, "from A")).status_code == 302
    assert (Limit.objects.get().text, Policy.objects.get().reason) == ("1000/min", "from A")
    assert admin_client.post(page, form(admin_client.get(page), "again")).status_code == 302
    assert Policy.objects.get().reason == "again"
