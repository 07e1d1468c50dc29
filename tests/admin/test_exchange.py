"""Files: what lists export can be imported again, all of it or nothing, shown first and audited as an import."""

from __future__ import annotations

import csv
import io
import json
import re
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from benchmarks.site.copies import copy_row
from limits_app import limits
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.models import AuditEvent, Endpoint, Entity, Limit, Policy, Pool, PoolMember, Resource
from tests.admin.browsing import address, changelist, said

CSV, JSON = "0", "1"

SOUND = {
    "effect": "limits",
    "enforcement": "enforce",
    "rollout_percent": 100,
    "resource": "api",
    "entity": "",
    "plan": "",
    "counted": "each",
    "valid_from": "",
    "weekly_hours": "",
}
CALLS = '[{"kind": "call", "key": "call_count", "capacity": 5, "window_seconds": 60, "algorithm": "gcra"}]'


def upload(client: Client, model: str, rows: Any, kind: str = JSON) -> Any:
    """Show what a file would change."""
    content = rows if isinstance(rows, str) else json.dumps(rows)
    file = SimpleUploadedFile("rows", content.encode())
    return client.post(address(f"{model}_import"), {"import_file": file, "format": kind})


def confirm(client: Client, model: str, shown: Any) -> Any:
    """Do what was shown."""
    return client.post(address(f"{model}_process_import"), shown.context["confirm_form"].initial)


def imported(client: Client, model: str, rows: Any, kind: str = JSON) -> Any:
    return confirm(client, model, upload(client, model, rows, kind))


def exported(client: Client, model: str, kind: str = "json", query: str = "") -> str:
    response = client.get(address(f"{model}_export", kind) + query)
    assert response.status_code == 200
    assert response.headers["content-disposition"] == f'attachment; filename="{model}.{kind}"'
    return str(response.getvalue().decode())


def events() -> list[AuditEvent]:
    return list(AuditEvent.objects.filter(source="import").order_by("number"))


def configure() -> None:
    """Rows of each kind."""
    pool = Pool.objects.create(name="regions")
    PoolMember.objects.create(pool=pool, name="eu")
    api = Resource.objects.create(name="api", description="Ä <b>", pool=pool)
    parent = Entity.objects.create(identifier="tenant:acme", metadata={"plan": "pro", "seats": [1, 2.5]})
    Entity.objects.create(identifier=" user:1", name="Ada", parent=parent, cascade=True)
    limits.set_system_limits([RateLimit("tpm", 2.5, 60, burst=7)])
    limits.set_resource_limits("api", [CallLimit(5, 0.25), ResourceLimit("seats", 3, 60)], shared=["call_count"])
    limits.set_entity_limits("tenant:acme", [], effect="blocked")
    limits.set_entity_limits(
        "tenant:acme",
        [QuotaLimit.per_month("tokens", 10**12, "Europe/Berlin", soft=True)],
        resource="api",
        valid_from=datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC),
    )
    limits.set_entity_limits(" user:1", [QuotaLimit.per_session("s", 5, 60)], weekly_hours="mon 09:00-17:00")
    Endpoint.objects.create(name="e", path="/api/", resource=api, amounts={"tpm": 2})


MODELS = ("resource", "entity", "policy", "endpoint")


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_export_is_imported_into_an_empty_site(admin_client: Client, kind: str) -> None:
    configure()
    files = {model: exported(admin_client, model, kind) for model in MODELS}
    for model in (Endpoint, Limit, Policy, Entity, Resource):
        Entity.objects.update(parent=None)
        model.objects.all().delete()  # type: ignore[attr-defined]
    for model, file in files.items():
        done = imported(admin_client, model, sorted_parents_first(model, file), JSON if kind == "json" else CSV)
        assert "Import finished" in said(done)[0]
    assert {model: exported(admin_client, model, kind) for model in MODELS} == files


FORMULAS = ("=1+2", "+49", "-x", "@sum", "\tx", "'=quoted", "'", "plain", "a=b")


def test_an_exported_csv_has_no_formulas_and_the_import_restores_the_names(admin_client: Client) -> None:
    for number, text in enumerate(FORMULAS):
        Entity.objects.create(identifier=text, name=f"n{number}")
    file = exported(admin_client, "entity", "csv")
    cells = {row["name"]: row["identifier"] for row in csv.DictReader(io.StringIO(file, newline=""))}
    guarded = ["'=1+2", "'+49", "'-x", "'@sum", "'\tx", "''=quoted", "'", "plain", "a=b"]
    assert cells == {f"n{number}": text for number, text in enumerate(guarded)}
    assert {row["identifier"] for row in json.loads(exported(admin_client, "entity"))} == {*FORMULAS}
    Entity.objects.all().delete()
    assert "Import finished" in said(imported(admin_client, "entity", file, CSV))[0]
    assert {row.identifier for row in Entity.objects.all()} == {*FORMULAS}


def sorted_parents_first(model: str, file: str) -> str:
    """A file of entities with parents before children: they are exported by name."""
    if model != "entity":
        return file
    if not file.startswith("["):
        head, *rest = file.splitlines()
        return "\n".join([head, *reversed(rest)])
    return json.dumps(json.loads(file)[::-1])


def test_importing_unchanged_rows_records_no_event(admin_client: Client) -> None:
    configure()
    for model in MODELS:
        shown = upload(admin_client, model, exported(admin_client, model))
        assert {row.import_type for row in shown.context["result"]} == {"skip"}
        confirm(admin_client, model, shown)
    assert events() == []


def test_limits_that_imported_policies_drop_are_named_before_and_after(admin_client: Client) -> None:
    limits.set_system_limits([CallLimit(1000, 86400), RateLimit("tpm", 100, 60)])
    for name in ("api", "mail"):
        Resource.objects.create(name=name)
    calls = {"kind": "call", "key": "call_count", "capacity": 3, "window_seconds": 60, "algorithm": "token_bucket"}
    row = {"entity": "", "valid_from": "", "weekly_hours": "", "limits": [calls]}
    shown = upload(admin_client, "policy", [{"resource": "api", **row}])
    assert "This policy replaces broader policies" in shown.content.decode()
    assert "apply: tpm (system). Add them" in shown.content.decode()
    assert Policy.objects.count() == 1
    assert "apply: tpm (system). Add them" in said(confirm(admin_client, "policy", shown))[-1]
    done = imported(admin_client, "policy", [{"resource": name, **row} for name in ("api", "mail")])
    assert said(done)[-1].startswith("This policy replaces")  # the other one says nothing new
    broken = upload(admin_client, "policy", [{"resource": "nowhere", **row}])
    assert not hasattr(broken.context["result"], "warning")


def test_a_file_is_shown_as_differences_before_anything_is_changed(admin_client: Client) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 100, 60)])
    rows = json.loads(exported(admin_client, "policy"))
    rows[0]["limits"] = rows[0]["limits"].replace("100", "250")
    shown = upload(admin_client, "policy", rows)
    page = shown.content.decode()
    assert re.search(r"<del>100?</del>|<ins>25</ins>|<ins>250</ins>", page)
    assert " style=" not in page
    for one in (shown, admin_client.get(address("policy_import"))):
        assert [entry["label"] for entry in one.context["menu"]["entries"] if entry["is_here"]] == ["Limits"]
        assert 'class="limits-tabs"' in one.content.decode()
    assert Limit.objects.get().definition().capacity == 100
    assert events() == []
    confirm(admin_client, "policy", shown)
    assert Limit.objects.get().definition().capacity == 250
    [event] = events()
    assert (event.actor, event.verb, event.object_label) == ("admin", "update", "resource api")
    assert [taken["limits"][0]["text"] for taken in (event.before, event.after)] == ["100/min", "250/min"]


@pytest.mark.parametrize("written", ["tpm=1M/min calls=5/60s:gcra", f'{CALLS[:-1]}, "tpm=1,000,000/1 min"]'])
def test_limits_are_exported_as_text_and_imported_as_text_or_json(written: str, admin_client: Client) -> None:
    Resource.objects.create(name="api")
    for _ in range(2):  # the second time nothing has changed
        imported(admin_client, "policy", [{**SOUND, "limits": written}])
    [row] = json.loads(exported(admin_client, "policy"))
    assert row["limits"] == "calls=5/min:gcra tpm=1M/min"
    assert [event.verb for event in events()] == ["create"]


def test_a_file_without_limits_leaves_them_as_they_are(admin_client: Client) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 100, 60)])
    imported(admin_client, "policy", [{**SOUND, "enforcement": "shadow"}])
    assert (Policy.objects.get().enforcement, Limit.objects.count()) == ("shadow", 1)
    shown = upload(admin_client, "policy", [{**SOUND, "resource": ""}])
    assert "Add at least one limit" in shown.content.decode()


def test_an_exported_file_has_the_columns_that_identify_rows(admin_client: Client) -> None:
    page = upload(admin_client, "policy", [{"resource": "", "limits": CALLS}]).content.decode()
    assert "entity, valid_from, weekly_hours" in page


def test_shown_values_are_escaped(admin_client: Client) -> None:
    page = upload(admin_client, "resource", [{"name": "api", "description": "<script>x</script>"}]).content.decode()
    assert "<script>x" not in page
    assert "&lt;script&gt;x" in page


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"resource": "nowhere", "limits": CALLS}, "resource nowhere does not exist: create it first"),
        ({"limits": "[many"}, "Expecting value"),
        ({"limits": '[{"kind": "call", "capacity": 0, "window_seconds": 60}]'}, "capacity must be more than 0"),
        ({"limits": '[{"kind": "call", "capacity": NaN, "window_seconds": 60}]'}, "JSON numbers must be finite"),
        ({"limits": CALLS, "valid_from": "soon"}, "Invalid isoformat string"),
        ({"limits": CALLS, "valid_from": "2026-01-01T00:00:00"}, "must be a timestamp with a time zone"),
    ],
)
def test_a_row_that_cannot_be_is_named_and_nothing_is_changed(
    row: dict[str, Any], problem: str, admin_client: Client
) -> None:
    Resource.objects.create(name="api")
    good = {**SOUND, "resource": None, "limits": CALLS}
    shown = upload(admin_client, "policy", [good, {**SOUND, **row}])
    page = " ".join(shown.content.decode().split())
    assert problem in page.replace("&#x27;", "'")
    result = shown.context["result"]
    numbers = [number for number, _errors in result.row_errors()] + [one.number for one in result.invalid_rows]
    assert numbers == [2]
    assert "confirm_form" not in shown.context or shown.context["confirm_form"] is None
    assert not Policy.objects.exists()


def test_a_file_that_no_longer_fits_when_it_is_confirmed_changes_nothing(admin_client: Client) -> None:
    api = Resource.objects.create(name="api")
    rows = [{**SOUND, "resource": None, "limits": CALLS}, {**SOUND, "limits": CALLS}]
    shown = upload(admin_client, "policy", rows)
    api.delete()
    done = confirm(admin_client, "policy", shown)
    assert said(done) == ["Nothing was imported, because rows have changed since: import the file again."]
    assert not Policy.objects.exists()
    assert events() == []


@pytest.mark.parametrize("content", ["", "nonsense", "[1, 2]", "\ufeff", "[" * 5_000, "name\n\0"])
@pytest.mark.parametrize("kind", [CSV, JSON])
def test_a_file_that_is_none_is_answered_in_words(content: str, kind: str, admin_client: Client) -> None:
    assert upload(admin_client, "resource", content, kind).status_code == 200
    assert not Resource.objects.exists()


def test_lists_are_exported_as_they_are_filtered_in_two_formats(admin_client: Client) -> None:
    configure()
    rows = json.loads(exported(admin_client, "entity", query="?q=acme"))
    assert [row["identifier"] for row in rows] == ["tenant:acme"]
    page = admin_client.get(address("entity_changelist") + "?q=acme").content.decode()
    assert f"{address('entity_export', 'csv')}?q=acme" in page
    assert admin_client.get(address("entity_export", "exe")).status_code == 404


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_an_export_of_many_rows_takes_as_much_memory_as_one_of_fewer(kind: str, admin_client: Client) -> None:
    entity, peaks = limits.set_entity("tenant:0"), []
    for count in (500, 2_000):
        copy_row(entity, count, identifier=f"'user:' || ({count} * 10000 + number)")
        response = admin_client.get(address("entity_export", kind))
        tracemalloc.start()
        written = sum(map(len, response))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert written > 20 * count
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("query", ["?zzz=1", "?id__exact=abc", "?id__exact=abc&e=1"])
def test_invalid_filter_of_an_export_is_answered_as_by_the_list(query: str, admin_client: Client) -> None:
    answered = admin_client.get(address("policy_export", "csv") + query, follow=True)
    listed = changelist(admin_client, "policy", query)
    assert answered.redirect_chain == [(address("policy_changelist") + query, 302), *listed.redirect_chain]
    assert (answered.status_code, answered.request["PATH_INFO"]) == (200, address("policy_changelist"))


def test_a_file_without_identifying_columns_is_rejected_without_a_traceback(admin_client: Client) -> None:
    page = upload(admin_client, "policy", "foo,bar\r\n1,2\r\n", CSV).content.decode()
    assert "The file must have the columns that identify rows: resource, entity, valid_from, weekly_hours." in page
    assert "Traceback" not in page
    assert "traceback" not in page
