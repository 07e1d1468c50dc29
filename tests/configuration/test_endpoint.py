"""Endpoints: paths, views, methods, amounts, and limits in the rule."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from limits_app import audit, services
from limits_app.engine.errors import CannotRevert
from limits_app.engine.limits import CallLimit
from limits_app.engine.notation import limit_text
from limits_app.models import AuditEvent, Endpoint, Policy, Resource
from limits_app.services.definitions import find_or_new, read, save
from limits_app.services.limits_file import PlannedChange, apply, export, plan, read_content
from tests.configuration.rows import complaint

pytestmark = pytest.mark.django_db


def endpoint(resource: Resource, **fields: Any) -> Endpoint:
    """An endpoint for all requests to one path."""
    return Endpoint(**({"name": "orders", "path": "/api/orders/", "resource": resource} | fields))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("https://example.org/api/", "Enter only the path"),
        ("/api/?page=1", "Enter only the path"),
        ("/api/#top", "Enter only the path"),
        ("/api/\0", "NUL"),
        ("/api/<int:pk", "unmatched '<' bracket"),
        ("/api/pk>", "unmatched '>' bracket"),
        ("/api/<number:pk>/", "uses invalid converter 'number'"),
        ("/api/<int:1>/", "isn't a valid Python identifier"),
        ("/api/<int: pk>/", "cannot contain whitespace"),
        ("/<int:pk>/<int:pk>/", "This is not a valid route: redefinition of group name 'pk'"),
        ("^api/$", "begins with a '^', or ends with a '$'"),
        ("//api/", "has a route beginning with a '/'"),
        ("/<path:a>/<path:b>", "at most one “<path:…>”"),
        ("/<a>-<b>-<c>", "one parameter between two slashes"),
        ("/" + "x" * 10_240, "at most 255 characters"),
    ],
)
def test_invalid_path_is_an_error_with_advice(path: str, said: str, api: Resource) -> None:
    assert said in complaint(endpoint(api, path=path).full_clean, "path")


@pytest.mark.parametrize(
    ("view_name", "said"), [("order detail", "A view name must not contain spaces"), ("a\0", "NUL")]
)
def test_a_bad_view_name_is_refused(view_name: str, said: str, api: Resource) -> None:
    assert said in complaint(endpoint(api, path="", view_name=view_name).full_clean, "view_name")


@pytest.mark.parametrize("fields", [{"path": "", "view_name": ""}, {"view_name": "orders:detail"}])
def test_either_a_path_or_a_view_is_given(fields: dict[str, str], api: Resource) -> None:
    assert complaint(endpoint(api, **fields).full_clean) == "Enter either a path or a view name."
    with pytest.raises(IntegrityError, match="limits_app_endpoint_fields"), transaction.atomic():
        Endpoint.objects.bulk_create([endpoint(api, **fields)])


def test_an_endpoint_has_a_name(api: Resource) -> None:
    assert complaint(endpoint(api, name="").full_clean, "name") == "This field cannot be blank."
    with pytest.raises(IntegrityError, match="limits_app_endpoint_fields"), transaction.atomic():
        Endpoint.objects.bulk_create([endpoint(api, name="")])


@pytest.mark.parametrize(
    ("methods", "kept"), [("", ""), ("post, get", "GET,POST"), ("GET,get, GET", "GET"), ("patch", "PATCH")]
)
def test_methods_are_kept_in_one_way(methods: str, kept: str, api: Resource) -> None:
    row = endpoint(api, methods=methods)
    row.full_clean()
    assert row.methods == kept
    assert row.method_set == frozenset(filter(None, kept.split(",")))


@pytest.mark.parametrize("methods", ["PSOT", "GET POST", "GET,,POST"])
def test_methods_that_do_not_exist_are_refused(methods: str, api: Resource) -> None:
    said = complaint(endpoint(api, methods=methods).full_clean, "methods")
    assert "is not an HTTP method: use CONNECT, DELETE, GET," in said


@pytest.mark.parametrize(
    ("amounts", "kept"), [(None, {}), ("", {}), ([], {}), ({"tpm": 0, "slots": 0.125}, {"tpm": 0, "slots": 0.125})]
)
def test_amounts_are_numbers_by_limit_key_or_none(amounts: object, kept: dict[str, float], api: Resource) -> None:
    row = endpoint(api, amounts=amounts)
    row.full_clean()
    assert row.amounts == kept


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        (500, "Must be a JSON object such as"),
        ({"a b": 1}, "limit key 'a b' must be a letter"),
        ({"tpm": -1}, "The amount of tpm must not be negative, not -1."),
        ({"tpm": "500"}, "The amount of tpm must be a number, not '500'."),
        ({"tpm": True}, "The amount of tpm must be a number, not a boolean, not True."),
        ({"tpm": 0.0001}, "The amount of tpm must have at most three decimals"),
        ({"tpm": 10**13}, "The amount of tpm must not be more than 10^12"),
        ({"tpm": float("inf")}, "must be finite, not NaN or infinity"),
    ],
)
def test_invalid_amounts_are_errors_with_advice(amounts: object, said: str, api: Resource) -> None:
    assert said in complaint(endpoint(api, amounts=amounts).full_clean, "amounts")


def test_endpoints_are_in_their_order(api: Resource) -> None:
    for name, order in (("late", 200), ("early", 1), ("middle", 100)):
        endpoint(api, name=name, order=order).save()
    assert [str(row) for row in Endpoint.objects.all()] == ["early", "middle", "late"]


def rule(limits: str = "60/min", **fields: Any) -> Endpoint:
    """A saved rule with limits."""
    return Endpoint.objects.create(**({"name": "Log in", "path": "/log-in/", "limits": limits} | fields))


def made() -> dict[str, str]:
    """The resources that were made for rules, with the limits of their policies."""
    return {
        policy.resource.name: " ".join(
            sorted(limit_text(one.definition(), shared=one.shared) for one in policy.limits.all())
        )
        for policy in Policy.objects.filter(resource__made_for_rule=True, entity=None).select_related("resource")
        if policy.resource is not None
    }


def undo(event: AuditEvent) -> None:
    """Revert an event of a rule."""
    audit.revert(event)


@pytest.mark.parametrize(
    ("text", "kept", "limits"),
    [
        ("60/min", "60/min", "calls=60/min"),
        (" 60/min   tokens=1M/day ", "60/min tokens=1M/day", "calls=60/min tokens=1M/d"),
        ("60 / min, tokens=1M/day;db=3", None, "calls=60/min db=3 tokens=1M/d"),
        ("5/10s:sliding_window connections=3:shared", None, "calls=5/10s:sliding_window connections=3:shared"),
    ],
)
def test_limits_make_a_resource_and_a_policy(text: str, kept: str | None, limits: str) -> None:
    row = Endpoint(name="Log in", path="/log-in/", limits=text)
    row.full_clean()
    assert row.limits == (kept or text)
    row.save()
    row.refresh_from_db()
    assert (made(), row.resource_name) == ({"rule-log-in": limits}, "rule-log-in")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"limits": "many"}, "limit 'many' must look like '5/min'"),
        ({"limits": "60"}, "limit '60' must look like '5/min'"),
        ({"limits": "60/min calls=5/s"}, "appears twice: keys in a set must differ, such as 'call_count_day'"),
        ({"limits": "10/min:soft:permits"}, "permits"),
        ({"limits": "\0"}, "NUL"),
        ({"limits": ""}, "Enter either limits or a resource."),
        ({"limits": "60/min", "resource": Resource(pk=1, name="api")}, "Enter either limits or a resource."),
    ],
)
def test_invalid_limits_are_rejected(fields: dict[str, Any], said: str) -> None:
    row = Endpoint(**({"name": "x", "path": "/"} | fields))
    assert said in complaint(partial(row.full_clean, exclude=["resource"]))


@pytest.mark.parametrize("limits", ["", "many"])
def test_the_database_has_no_rule_without_valid_limits(limits: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        rule(limits)
    assert not Resource.objects.exists()


def test_names_of_resources_are_free_and_stay() -> None:
    services.set_resource_limits("rule-log-in-2", [CallLimit(5, 60)])
    first, second, third = rule(), rule("5/s"), rule("5/h", name="\N{ROCKET}")
    assert made() == {"rule-log-in": "calls=60/min", "rule-log-in-3": "calls=5/s", "rule-url": "calls=5/h"}
    Endpoint.objects.filter(pk=first.pk).update(name="renamed")
    copy = Endpoint.objects.get(pk=second.pk)
    copy.pk = None
    copy._state.adding = True
    copy.save()
    third.delete()
    assert made() == {"rule-log-in": "calls=60/min", "rule-log-in-3": "calls=5/s", "rule-log-in-4": "calls=5/s"}


@pytest.mark.parametrize("way", ["save", "update", "bulk_update", "definition"])
def test_edited_limits_are_those_of_the_policy(way: str) -> None:
    row = rule("60/min tokens=1M/day")
    row.refresh_from_db()
    kept = Policy.objects.get().limits.get(key="tokens").pk
    row.limits = "30/min tokens=1M/day"
    match way:
        case "save":
            row.save()
        case "update":
            Endpoint.objects.update(limits=row.limits)
        case "bulk_update":
            Endpoint.objects.bulk_update([row], ["limits"])
        case _:
            save(read(Endpoint.objects.get(), {"limits": row.limits}, partial=True, find=find_or_new))
    assert made() == {"rule-log-in": "calls=30/min tokens=1M/d"}
    assert Policy.objects.get().limits.get(key="tokens").pk == kept


@pytest.mark.parametrize("end", ["delete", "delete_all", "resource"])
@pytest.mark.parametrize("is_used", [False, True])
def test_without_its_rule_a_resource_is_deleted_unless_it_is_used(end: str, is_used: bool) -> None:
    row = rule()
    if is_used:
        services.set_entity_limits("user:1", [CallLimit(9, 60)], resource="rule-log-in")
    if end == "delete":
        row.delete()
    elif end == "delete_all":
        Endpoint.objects.all().delete()
    else:
        row.refresh_from_db()
        row.limits, row.resource = "", Resource.objects.create(name="api")
        row.save()
        row.refresh_from_db()
        assert (row.limits_resource, row.resource_name) == ("", "api")
    assert made() == {}
    assert Resource.objects.filter(name="rule-log-in").exists() == is_used
    assert Policy.objects.count() == is_used


def test_a_rule_that_code_has_made_and_saves_again_keeps_its_resource() -> None:
    row = rule()
    row.enabled, row.limits = False, "9/min"
    row.save()
    assert made() == {"rule-log-in": "calls=9/min"}
    row.delete()
    assert not Resource.objects.exists()


def test_all_of_it_is_audited_and_reverted_with_the_rule() -> None:
    with audit.acting(actor="root", source="admin"):
        row = rule()
    assert [(one.verb, one.object_type, one.actor) for one in AuditEvent.objects.order_by("number")] == [
        ("create", "endpoint", "root"),
        ("create", "resource", "root"),
        ("create", "policy", "root"),
    ]
    Endpoint.objects.update(limits="5/s")
    edited = AuditEvent.objects.filter(object_type="endpoint").latest("number")
    assert edited.before is not None
    assert (edited.before["limits"], edited.before["limits_resource"]) == ("60/min", "rule-log-in")
    with pytest.raises(CannotRevert, match="those of its URL rule"):
        undo(AuditEvent.objects.filter(object_type="policy").latest("number"))
    undo(edited)
    assert made() == {"rule-log-in": "calls=60/min"}
    row.delete()
    undo(AuditEvent.objects.filter(object_type="endpoint").latest("number"))
    assert made() == {"rule-log-in": "calls=60/min"}
    assert Endpoint.objects.get().resource_name == "rule-log-in"


@pytest.mark.parametrize(
    ("fields", "is_valid"), [({}, False), ({"entity": "user:1"}, True), ({"valid_from": "2027-01-01T00:00Z"}, True)]
)
def test_only_the_rule_changes_the_policy_that_was_made_for_it(fields: dict[str, str], is_valid: bool) -> None:
    rule()
    data = {"resource": "rule-log-in", "limits": ["calls=5/s"], **fields}
    if is_valid:
        read(Policy(), data, find=find_or_new)
    else:
        with pytest.raises(ValueError, match="those of its URL rule"):
            read(Policy.objects.get(), data, find=find_or_new)


def test_a_limits_file_has_the_limits_in_the_rule() -> None:
    text = "endpoints: [{name: Log in, path: /log-in/, limits: 60/min}]"
    apply(read_content(text))
    assert made() == {"rule-log-in": "calls=60/min"}
    exported = "".join(export())
    [section] = [line for line in exported.splitlines() if line.endswith(":")]
    assert ("limits: 60/min" in exported, section) == (True, "endpoints:")
    assert {step.change for step in plan(read_content(exported)).steps} == {PlannedChange.UNCHANGED}
    apply(read_content(text.replace("60/min", "9/s")))
    assert made() == {"rule-log-in": "calls=9/s"}
    services.set_entity_limits("user:1", [CallLimit(9, 60)], resource="rule-log-in")
    exported = "".join(export())
    Policy.objects.filter(entity__isnull=False).delete()
    Endpoint.objects.all().delete()
    apply(read_content(exported))
    assert made() == {"rule-log-in": "calls=9/s"}


def test_the_form_shows_and_edits_the_limits(admin_client: Client) -> None:
    form = {"name": "Log in", "path": "/log-in/", "limits": "60/min", "amounts": "{}", "order": "1"}
    form |= {"counted_by": "everyone", "enabled": "on"}
    admin_client.post(reverse("admin:limits_app_endpoint_add"), form)
    row = Endpoint.objects.get()
    address = reverse("admin:limits_app_endpoint_change", args=[row.pk])
    assert 'value="60/min"' in admin_client.get(address).content.decode()
    admin_client.post(address, form | {"limits": "5/s"})
    assert made() == {"rule-log-in": "calls=5/s"}
    page = admin_client.post(address, form | {"limits": "5 per second"}).content.decode()
    assert "limit &#x27;5&#x27; must look like" in page
    assert AuditEvent.objects.filter(actor="admin", object_type="policy").count() == 2


def test_the_form_suggests_the_paths_and_views_of_the_site(admin_client: Client) -> None:
    page = admin_client.get(reverse("admin:limits_app_endpoint_add")).content.decode()
    assert 'list="limits-path-values"' in page
    assert '<option value="/admin/limits_app/endpoint/add/">' in page
    assert '<option value="/admin/limits_app/endpoint/&lt;path:object_id&gt;/change/">' in page
    assert '<option value="admin:limits_app_endpoint_add">' in page
