"""Limits as a file: read or refused line by line, planned, applied as a whole, and written again."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from django.db import IntegrityError, connection
from django.db.models import QuerySet
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from limits_app import limits
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.models import (
    AlertRule,
    AuditEvent,
    Endpoint,
    Entity,
    Limit,
    Manifest,
    Policy,
    Pool,
    PoolMember,
    Resource,
)
from limits_app.services import limits_file
from limits_app.services.limits_file import InvalidFile, PlannedChange, planning
from limits_app.services.limits_file.reading import read_document
from tests.commands.running import Ran, migrated_database, run, run_words
from tests.docs.pages import DOCS, ROOT, blocks
from tests.replacing import type_in, without_package

EXAMPLE: Final = blocks(DOCS / "limits-as-a-file.md", "yaml")[0].text
DATED: Final = "{resource: a, valid_from: 2026-01-01T00:00:00Z, valid_until: 2026-01-09T00:00:00Z, limits: [x=1/s]}"

# What is wrong with a single object is in tests/services/test_definitions.py.
WRONG: Final = [
    ("policies: [", "line 2: this is not YAML: did not find expected node content"),
    ("a:\n\t- b", "line 2: this is not YAML: found character that cannot start any token"),
    ("a: \x01", "this is not YAML: unacceptable character #x0001: control characters are not allowed"),
    ("- a", "line 1: Must be an object with fields, not ['a']."),
    ("policy: []", "line 1: policy: Unknown field: did you mean “policies”?"),
    ("version: 2", "line 1: version: The version of this format is 1."),
    (f"name: {'a' * 65}", "line 1: name: Write at most 64 characters."),
    ("name: ''", "line 1: name: Write at least 1 character."),
    ("resources:\n  a: {}\n  a: {}", "line 3: duplicate key 'a'"),
    ("resources: {a: &x {}, b: *x}", "line 1: YAML anchors and aliases are not supported"),
    ("version: 1\n---\nversion: 1", "line 2: a limits file must be one YAML document"),
    ("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "line 1: nest at most 32 levels deep"),
    ("? [a]\n: b", "line 1: a key is a text: write it in one line"),
    ("name: !!python/none x", "line 1: 'x' cannot be read: put it in quotes"),
    (
        "name: !!binary aGk=",
        "line 1: tag:yaml.org,2002:binary is not allowed here: write text, numbers, lists and mappings",
    ),
    (f"version: {'9' * 5000}", "is too long for a number or a date: put it in quotes"),
    (f"version: {':'.join(['59'] * 200_000)}", "is too long for a number or a date: put it in quotes"),
    ("policies:\n- valid_from: 2026-02-30", "line 2: '2026-02-30' cannot be read"),
    ("resources: [a]", "line 1: resources: Must be an object with fields, not ['a']."),
    ("policies: {a: b}", "line 1: policies: Write a list, not {'a': 'b'}."),
    ("resources:\n  'a b': {}", "line 2: resources.a b: resource 'a b' must be a letter"),
    ("policies: [{resource: 'a b', limits: [x=1/s]}]", "line 1: policies[0].resource: resource 'a b' must be a letter"),
    ("entities:\n  u: {parnt: v}", "line 2: entities.u.parnt: Unknown field: did you mean “parent”?"),
    (
        "policies: [{limits: [k=1/s], enforcement: off}]",
        "line 1: policies[0].enforcement: Write it in quotes: without them on, off, yes and no are ",
    ),
    ("pools: {p: {members: {m: {config: {api_key: abc}}}}}", "pools.p.members.m.config: Do not store secrets"),
    ("policies:\n- limits:\n  - x=1/mn", "line 3: policies[0].limits[0]: 'x=1/mn': time 'mn' must look"),
    (
        "policies: [{valid_until: 2026-01-01T00:00:00Z, limits: [x=1/s]}]",
        "line 1: policies[0]: Write “valid_from” too, so that applying the file again changes nothing.",
    ),
    (
        "policies: [{valid_from: '2026-02-30T00:00:00Z', limits: [x=1/s]}]",
        "line 1: policies[0].valid_from: Write a date and time with its time zone, such as 2026-03-",
    ),
    (
        "policies: [{valid_from: 2026-01-02 00:00:00, limits: [x=1/s]}]",
        "line 1: policies[0].valid_from: Write a date and time with its time zone, such as 2026-03-",
    ),
    (
        "policies:\n- limits: [x=1/s]\n- limits: [y=1/s]",
        "line 3: policies[1]: duplicate policy system: the first one is in line 2",
    ),
    ("resources: {a: {pool: p}}", "resource a refers to p, which is not in pools"),
    ("entities: {a: {parent: b}, b: {parent: a}}", "entity a is its own ancestor: choose another parent"),
    (
        "entities: {" + ", ".join(f"e{n}: {{parent: e{n + 1}}}" for n in range(9)) + "}",
        "entity e0 is more than 8 levels deep",
    ),
    (f"policies: [{DATED}, {DATED.replace('01-01T', '01-05T')}]", "overlaps with policy resource a from"),
    (
        "policies: [{weekly_hours: mon, limits: [x=1/s]}, {weekly_hours: 'mon,tue', limits: [x=1/s]}]",
        "only one policy of a scope can apply",
    ),
]


def test_errors_in_a_file_name_the_line_and_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    for text, said in WRONG:
        file.write_text(text)
        ran = run(f"apply {file}")
        assert (ran.code, ran.out) == (2, ""), said
        assert ran.err.startswith(f"{file}: "), said
        assert said in ran.err
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize(
    "text",
    [
        "policies: [{limits: [k=1/s], enforcement: off}]",
        "policies: [{limits: [k=1/s]}, {limits: [k=1/s], resource: on}]",
        "policies: [{effect: no}]",
        "name: off",
        "policies: [{limits: [5]}]",
        "endpoints: [{name: off, path: /, resource: api}]",
        "endpoints: [{name: all, path: /, resource: 5}]",
    ],
)
def test_one_value_that_is_no_text_is_one_problem(text: str) -> None:
    with pytest.raises(InvalidFile, match="in quotes") as caught:
        limits_file.read_content(text)
    assert len(caught.value.problems) == 1


def test_files_that_cannot_be_read_end_the_command(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"name: \xe9")
    for line, code, said in [
        (f"apply {tmp_path / 'none'}", 1, "cannot be read: No such file"),
        (f"apply {tmp_path}", 1, "cannot be read: Is a directory"),
        (f"apply {tmp_path / 'latin'}", 2, "must be UTF-8 text"),
    ]:
        ran = run(line)
        assert ran.code == code, line
        assert said in ran.err


def test_a_file_that_is_too_long_is_not_read() -> None:
    with pytest.raises(InvalidFile, match=f"at most {limits_file.MAX_CHARACTERS} characters"):
        read_document("name: x #".ljust(limits_file.MAX_CHARACTERS + 1, "#"), "f")


def test_of_very_many_problems_some_are_reported() -> None:
    with pytest.raises(InvalidFile) as caught:
        limits_file.read_content("resources: {" + ", ".join(f"{n}: {{}}" for n in range(200)) + "}")
    assert len(caught.value.problems) == 200
    assert str(caught.value).endswith("and 180 more")


def test_file_is_read_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, io.StringIO("resources: {api: {}}"))
    assert run("apply - --dry-run").out == "+ resource api\n"


def test_without_yaml_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_package(monkeypatch, "yaml")
    (tmp_path / "limits.yaml").write_text("{}")
    for line in (f"apply {tmp_path / 'limits.yaml'}", "export"):
        ran = run(line)
        assert (ran.code, "pip install 'limits-app[yaml]'" in ran.err) == (1, True)
    assert run("export --format json").code == 0


def test_hours_that_cannot_be_read_are_ignored() -> None:
    for hours in ("sometimes", "never"):
        policy = Policy.objects.create(weekly_hours="sat", time_zone="UTC")
        QuerySet.update(Policy.objects.filter(pk=policy.pk), weekly_hours=hours)
    applied("policies: [{weekly_hours: mon, limits: [x=1/s]}, {weekly_hours: tue, limits: [x=1/s]}]")
    assert Policy.objects.count() == 4


def test_omitted_fields_have_the_defaults_of_new_objects() -> None:
    applied("resources: {a: }\nentities: {u: {metadata: {since: 2026-01-01}, parent: , name: }}")
    assert Entity.objects.get().metadata == {"since": "2026-01-01"}
    applied("policies: [{limits: [x=1/s], valid_from: , resource: }]")
    assert str(Policy.objects.get()) == "system"


def test_an_empty_file_is_a_file_without_anything() -> None:
    for text in ("", "policies:", "# nothing", "entities: {}"):
        assert limits_file.read_content(text).entries == {}


def test_yaml_reads_as_its_own_loader_does() -> None:
    text = "a: [1, 0x1f, true, no, null, ~, 2.5, '2.5', x, 2026-01-01, 2026-01-01T00:00:00Z, {b: c}]"
    assert read_document(text, "f").data == yaml.safe_load(text)


def applied(text: str, **options: Any) -> limits_file.FilePlan:
    return limits_file.apply(limits_file.read_content(text), **options)


def given_file(tmp_path: Path, text: str, *words: str) -> Ran:
    (tmp_path / "limits.yaml").write_text(text)
    return run(" ".join(["apply", str(tmp_path / "limits.yaml"), *words]))


def test_file_is_applied_in_one_audited_step_and_changes_nothing_again(tmp_path: Path) -> None:
    dry = given_file(tmp_path, EXAMPLE, "--dry-run")
    assert (dry.code, Policy.objects.count(), Resource.objects.count()) == (0, 0, 0)
    assert given_file(tmp_path, EXAMPLE, "--check").code == 3
    ran = given_file(tmp_path, EXAMPLE, "--reason contract")
    assert (ran.code, ran.out) == (0, dry.out)
    assert {*AuditEvent.objects.values_list("source", "reason")} == {("apply", "contract")}
    assert AuditEvent.objects.count() == 11
    assert "entity tenant:acme on chat" in map(str, Policy.objects.all())
    assert str(Policy.objects.get(weekly_hours__gt="").time_zone) == "Europe/Berlin"
    assert Entity.objects.get(identifier="user:42").parent == Entity.objects.get(identifier="tenant:acme")
    assert [limit.key for limit in Limit.objects.filter(shared=True)] == ["connections"]
    assert PoolMember.objects.get(name="us-east-1").weight == 3
    again = given_file(tmp_path, EXAMPLE, "--check", "--format json")
    assert (again.code, json.loads(again.out)["changes"]) == (0, [])
    assert limits.check("chat", entity="user:1", requested={"tpm": 1}).allowed


def test_different_objects_are_changed_and_the_rest_stays() -> None:
    applied(EXAMPLE)
    kept = {*Limit.objects.values_list("pk", "text")}
    changed = (
        EXAMPLE.replace("weight: 3, ", "")
        .replace("limits: [tpm=200k/min]", "limits: [tpm=300k/min]")
        .replace("tpm=100k/min, calls=60/min", "tpm=200k/min, calls=60/min")
        .replace("parent: tenant:acme, ", "")
        .replace("methods: POST", "methods: 'post, GET'")
        .replace("27T00", "28T00")
        .replace("cascade: true", "cascade: false")
    )
    planned = applied(changed)
    assert planned.counts() == {"create": 0, "change": 5, "delete": 0, "unchanged": 6}
    differences = {step.entry.label: [*step.differences()] for step in planned.of(PlannedChange.UPDATE)}
    assert differences["policy resource chat"] == [("limit tpm", "100k/min", "200k/min")]
    assert differences["endpoint Chat"] == [("methods", "POST", "GET,POST")]
    assert differences["pool claude"] == [
        ("member us-east-1: weight", 3, 1),
        ("member eu-west-1: limit tpm", "200k/min", "300k/min"),
    ]
    assert len(kept & {*Limit.objects.values_list("pk", "text")}) == len(kept) - 2
    assert Entity.objects.get(identifier="user:42").parent is None
    assert not limits_file.plan(limits_file.read_content(changed)).drift


def test_file_adds_and_removes_members() -> None:
    applied(EXAMPLE)
    lines = EXAMPLE.replace("      eu-west-1:", "      eu-north-1:").splitlines()
    applied("\n".join(lines))
    assert {*PoolMember.objects.values_list("name", flat=True)} == {"us-east-1", "eu-north-1"}


def test_only_objects_that_the_file_made_or_took_over_are_deleted(tmp_path: Path) -> None:
    limits.set_resource_limits("own", [CallLimit.per_minute(5)])
    limits.set_resource_limits("chat", [CallLimit.per_minute(60), RateLimit.per_minute("tpm", 100_000)])
    assert given_file(tmp_path, EXAMPLE).code == 0
    refused = given_file(tmp_path, "name: shop")
    assert (refused.code, "Delete 11 and apply the rest?" in refused.err) == (2, True)
    assert Policy.objects.count() == 6
    assert given_file(tmp_path, "name: shop", "--yes").code == 0
    assert [str(policy) for policy in Policy.objects.all()] == ["resource own"]
    assert [resource.name for resource in Resource.objects.all()] == ["own"]
    assert not any(model.objects.exists() for model in (Pool, Entity, Endpoint))


def test_apply_executes_exactly_the_plan_that_was_shown() -> None:
    content = limits_file.read_content("policies: [{limits: [calls=1/s]}]")
    seen = limits_file.plan(content)
    limits.set_system_limits([CallLimit.per_second(2)])
    with pytest.raises(InvalidFile, match="the configuration changed after the plan was shown"):
        limits_file.apply(content, expected=seen)
    assert limits_file.apply(content, expected=limits_file.plan(content)).counts()["change"] == 1


def test_objects_stay_while_others_refer_to_them() -> None:
    applied("resources: {api: {}}\nentities: {a: {}}")
    limits.set_resource_limits("api", [CallLimit.per_minute(5)])
    with pytest.raises(InvalidFile, match="api is no longer in the file, but policy resource api refers to it"):
        applied("entities: {a: {}}")
    limits.delete_resource_limits("api")
    applied("entities: {a: {}}")
    assert not Resource.objects.exists()


def test_an_object_belongs_to_one_file() -> None:
    applied("name: one\nresources: {api: {}}")
    with pytest.raises(InvalidFile, match="line 3: resource api belongs to the file named 'one'"):
        applied("name: two\nresources:\n  api: {}")
    applied("name: two\npolicies: [{resource: api, limits: [calls=1/s]}]")
    assert Manifest.objects.get(pk="two").objects_of.keys() == {"policy"}
    applied("name: two")
    assert [resource.name for resource in Resource.objects.all()] == ["api"]


def test_referenced_objects_are_made_and_stay_while_referenced() -> None:
    text = "policies: [{resource: api, entity: user:1, limits: [calls=1/s]}]"
    assert applied(text).counts()["create"] == 3
    assert applied(text).counts() == {"create": 0, "change": 0, "delete": 0, "unchanged": 3}
    assert applied("").counts()["delete"] == 3
    assert not Resource.objects.exists()


@pytest.mark.parametrize("orders", [(5, 0), (0, 5), (3, 3)])
def test_endpoints_of_one_name_are_distinguished_by_their_order_wherever_they_stand(orders: tuple[int, int]) -> None:
    first, second = (
        f"{{name: e, path: /{n}/, resource: api, order: {order}}}" for n, order in enumerate(orders, start=1)
    )
    applied("endpoints: [{name: e, path: /0/, resource: api, order: 2}]")
    both = f"endpoints: [{first}, {second}]"
    labels = [step.entry.label for step in applied(both).of(PlannedChange.CREATE, "endpoints")]
    assert labels[0] == f"endpoint e of order {orders[0]}"
    assert not limits_file.plan(limits_file.read_content(both)).drift
    assert not limits_file.plan(limits_file.read_content("".join(limits_file.export()))).drift
    applied("")
    assert not Endpoint.objects.exists()


def test_endpoints_of_one_name_and_order_are_distinguished_by_their_place() -> None:
    rows = ["{name: e, path: /a/, resource: api}", "{name: e, path: /b/, resource: api}"]
    applied(f"endpoints: [{', '.join(rows)}]")
    assert limits_file.plan(limits_file.read_content(f"endpoints: [{', '.join(rows)}]")).drift is False
    planned = applied(f"endpoints: [{rows[0]}]")
    assert [step.entry.label for step in planned.of(PlannedChange.DELETE)] == ["endpoint e (2)"]


def test_a_database_that_refuses_is_reported_and_nothing_is_left() -> None:
    def refuse(execute: Callable[..., Any], sql: str, *details: Any) -> Any:
        if sql.startswith("INSERT") and Policy._meta.db_table in sql:
            raise IntegrityError("a constraint failed")
        return execute(sql, *details)

    Entity.objects.create(identifier="x")
    long = "entities: {a: {parent: b}, b: {}}\npolicies: [{resource: a, limits: [x=1/s]}]"
    content = limits_file.read_content(long)
    with connection.execute_wrapper(refuse), pytest.raises(InvalidFile, match="the database rejected the file"):
        limits_file.apply(content)
    assert Entity.objects.count() == 1


def test_a_plan_lists_policies_that_would_no_longer_be_enforced() -> None:
    limits_file.apply(limits_file.read_content("policies: [{limits: [calls=5/s]}]"))
    weaker = "policies: [{rollout_percent: 10, limits: [calls=5/s]}]"
    [warning] = limits_file.plan(limits_file.read_content(weaker)).warnings
    words = "Saving reduces the rollout from 100 % to 10 % of entities"
    assert warning == f"policy system: {words}"


def test_many_warnings_are_summed_up(tmp_path: Path) -> None:
    many = "\n".join(f"- {{resource: r{n}, limits: [b=1/s]}}" for n in range(25))
    ran = given_file(tmp_path, f"policies:\n- limits: [a=1/s]\n{many}")
    assert ran.err.count("warning: ") == 21
    assert "and 5 more; --format json has all of them" in ran.err


NAMES: Final = st.sampled_from(["a", "b/c", "user:1", "über mensch", "no", "1", "a: b", "- x", "null", "'"])
RESOURCES: Final = st.sampled_from(["a", "b/c", "no", "null", "x-1"])
LIMITS: Final = st.lists(
    st.sampled_from(
        [
            "calls=30/10s:gcra",
            "rpm=60/min:burst=10:soft",
            "t=2.5/250ms",
            "b=5M/month@Europe/Berlin",
            "c=10:hold=90s",
            "s=2/5h:session",
        ]
    ),
    min_size=1,
    unique=True,
)
TEXT: Final = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
JSON: Final = st.dictionaries(st.sampled_from(["k", "yes", "2"]), st.one_of(TEXT, st.integers(-9, 9), st.booleans()))


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Limits files as plain data."""
    members = st.dictionaries(
        NAMES,
        st.fixed_dictionaries({}, optional={"limits": LIMITS, "weight": st.integers(1, 9), "enabled": st.booleans()}),
        max_size=2,
    )
    pools = draw(
        st.dictionaries(
            RESOURCES, st.fixed_dictionaries({"members": members}, optional={"failover": st.booleans()}), max_size=2
        )
    )
    resource = {"description": TEXT} | ({"pool": st.sampled_from([*pools])} if pools else {})
    dates = st.sampled_from([None, "2026-01-31T06:00:00+00:00"])
    entity = {"name": TEXT, "cascade": st.booleans(), "billing_from": dates, "metadata": JSON}
    policy = st.fixed_dictionaries(
        {"limits": LIMITS},
        optional={
            "resource": RESOURCES,
            "entity": NAMES,
            "extends": st.booleans(),
            "rollout_percent": st.integers(0, 100),
            "reason": TEXT,
            "on_unavailable": st.sampled_from(["", "allow"]),
            "weekly_hours": st.just("mon 09:00-10:00"),
            "enforcement": st.sampled_from(["enforce", "off"]),
        },
    )
    endpoint = st.fixed_dictionaries(
        {"name": st.just("e"), "path": st.just("/a/"), "resource": RESOURCES},
        optional={"amounts": st.just({"rpm": 2}), "order": st.integers(0, 3)},
    )
    scope = lambda one: (one.get("resource"), one.get("entity"), one.get("weekly_hours"))  # noqa: E731
    return {
        "pools": pools,
        "resources": draw(st.dictionaries(RESOURCES, st.fixed_dictionaries({}, optional=resource), max_size=3)),
        "entities": draw(st.dictionaries(NAMES, st.fixed_dictionaries({}, optional=entity), max_size=3)),
        "policies": draw(st.lists(policy, max_size=4, unique_by=scope)),
        "endpoints": draw(st.lists(endpoint, max_size=2)),
    }


def written(content: dict[str, Any]) -> str:
    """Plain data as YAML without aliases, which are what is written where one object stands in two places."""
    return yaml.safe_dump(json.loads(json.dumps(content)), allow_unicode=True)


@hypothesis_settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=files(), second=files())
def test_export_has_the_stored_rows_after_any_apply(first: dict[str, Any], second: dict[str, Any]) -> None:
    schema = jsonschema.Draft202012Validator(limits_file.schema())
    schema.validate(first)
    applied("")
    applied(written(first))
    applied(written(second))
    text = "".join(limits_file.export())
    schema.validate(yaml.safe_load(text))
    assert not limits_file.plan(limits_file.read_content(text)).drift
    applied("")
    assert not Policy.objects.exists()
    assert not Pool.objects.exists()
    applied(text)
    assert "".join(limits_file.export()) == text


def test_each_file_is_exported_by_its_name_and_unmanaged_objects_with_each(tmp_path: Path) -> None:
    applied("name: team-a\nresources: {alpha: {}}\nendpoints: [{name: e, path: /a/, resource: alpha}]")
    applied("name: team b\npolicies: [{resource: beta, limits: [calls=1/s]}, {resource: alpha, limits: [calls=2/s]}]")
    limits.set_entity_limits("user:1", [CallLimit.per_minute(5)], resource="alpha")
    left = {
        "team-a": "Omitted: 2 objects of the file 'team-a'; export them with --name team-a.",
        "team b": "Omitted: 3 objects of the file 'team b'; export them with --name 'team b'.",
    }
    for name in ("team-a", "team b", "limits"):
        ran = run_words("export", *(() if name == "limits" else ("--name", name)))
        assert ran.err.splitlines() == [line for other, line in sorted(left.items()) if other != name]
        checked = given_file(tmp_path, ran.out, "--check")
        assert (checked.code, checked.out) == (0, ""), checked.err
        content = limits_file.read_content(ran.out)
        own = {"team-a": {"resource alpha", "endpoint e"}, "team b": {"resource beta"}}.get(name, set())
        own |= {"policy resource beta", "policy resource alpha"} if name == "team b" else set()
        assert {entry.label for entry in content.entries.values()} == own | {
            "entity user:1",
            "policy entity user:1 on alpha",
        }
        written = run_words("export", "--name", name, "--format", "json").out
        assert yaml.safe_load("".join(limits_file.export(name=name))) == json.loads(written)


def test_candidates_are_not_in_files_and_are_named() -> None:
    policy = "policies: [{resource: alpha, limits: [%s]}]"
    applied(f"resources: {{alpha: {{}}}}\n{policy % 'calls=5/h'}")
    limits.set_candidate(Policy.objects.get(), "calls=3/h")
    assert run("export").err == "Omitted: the candidates of policies; `limits candidates list` shows them.\n"
    for text, says in (
        (policy % "calls=5/h", []),
        (policy % "calls=6/h", ["its candidate calls=3/h stays, and is compared with the changed policy"]),
        ("", ["its candidate calls=3/h is deleted with it"]),
    ):
        plan = limits_file.plan(limits_file.read_content(f"version: 1\nresources: {{alpha: {{}}}}\n{text}"))
        assert [*plan.warnings] == [f"policy resource alpha: {one}" for one in says]


def test_secrets_of_alert_rules_are_not_in_files_and_are_named() -> None:
    rule = AlertRule.objects.create(name="a", kind="store", channel="webhook", target="https://example.com/")
    assert run("export").err == ""
    rule.secret = "geheim"
    rule.save()
    ran = run("export")
    assert ran.err == "Omitted: the secrets of webhooks of alert rules; enter them in the admin of another site.\n"
    assert "geheim" not in ran.out


def test_a_confirmed_file_is_compared_with_the_site_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    plan_of = planning.plan_of

    def note(*args: Any, **options: Any) -> limits_file.FilePlan:
        compared.append(plan_of(*args, **options))
        return compared[-1]

    monkeypatch.setattr("limits_app.services.limits_file.applying.plan_of", note)
    ran = given_file(tmp_path, "policies: [{limits: [calls=1/s]}]", "--yes")
    assert (ran.code, ran.err, len(compared)) == (0, "1 create, 0 change, 0 delete, 0 unchanged\n", 1)
    assert given_file(tmp_path, "policies: []", "--yes").code == 0
    assert (len(compared), Policy.objects.count()) == (2, 0)


def test_deleted_rows_are_not_left_out() -> None:
    applied("name: team-a\nresources: {alpha: {}}")
    Resource.objects.all().delete()
    assert limits_file.left_out() == {}
    assert run("export --schema").err == ""


def test_the_schema_is_one_and_the_example_obeys_it() -> None:
    schema = json.loads(run("export --schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    example = yaml.load(EXAMPLE, yaml.BaseLoader)  # noqa: S506 - texts only
    assert {*schema["properties"]} >= {*example}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"policies": [{"limit": []}]}, schema)


def test_json_is_exported_too_and_read_as_a_file(tmp_path: Path) -> None:
    applied(EXAMPLE)
    text = run("export --name shop --format json").out
    assert given_file(tmp_path, text, "--check").code == 0
    assert run("export --name shop").out == "".join(limits_file.export(name="shop"))


def test_interrupted_half_way_it_leaves_nothing_half_done(tmp_path: Path) -> None:
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "LIMITS_DEMO_DATABASE": str(migrated_database(tmp_path / "db.sqlite3")),
        "LIMITS_DEMO_STATE_DIR": str(tmp_path / "state"),
    }
    rows = "\n".join(f"- {{entity: 'user:{n}', limits: [calls={n + 1}/min, tpm=5k/min]}}" for n in range(60))
    file = tmp_path / "limits.yaml"
    file.write_text(f"policies:\n{rows}\n")

    def command(*words: str, check: bool) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, *words]
        return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=check)

    for name, code in (("SIGINT", 130), ("SIGKILL", -signal.SIGKILL)):
        stopped = command("-m", "tests.commands.interrupted", str(file), name, check=False)
        assert stopped.returncode == code, stopped.stderr
        with closing(sqlite3.connect(environment["LIMITS_DEMO_DATABASE"])) as database:
            for table in ("policy", "limit", "entity", "auditevent", "manifest"):
                rows_left = database.execute(f"SELECT COUNT(*) FROM limits_app_{table}").fetchone()  # noqa: S608 - above
                assert rows_left == (0,), (name, table)
    again = command("manage.py", "limits", "apply", str(file), check=True)
    assert "120 create, 0 change" in again.stderr
