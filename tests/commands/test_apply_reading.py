"""Applying a limits file reads the rows that it names, and those that its rules compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models.sql.compiler import SQLCompiler

from limits_app import audit, limits
from limits_app.models import AuditEvent, Endpoint, Entity, Plan, Policy, Pool, Resource
from limits_app.services import limits_file
from limits_app.services.limits_file import InvalidFile
from limits_app.services.limits_file.content import SECTIONS, stored_pages
from limits_app.services.limits_file.proposed import dropped_limits

pytestmark = pytest.mark.django_db

FILE = """
name: mine
resources:
  api: {}
entities:
  user:1: {name: One, parent: "tenant:a"}
  user:2: {}
policies:
- resource: api
  entity: user:1
  limits: [rpm=10/min]
- entity: user:2
  limits: [rpm=20/min]
endpoints:
- {name: Mine, path: /mine/, limits: 5/min}
"""


def plan(text: str) -> limits_file.FilePlan:
    return limits_file.plan(limits_file.read_content(text))


def apply(text: str) -> limits_file.FilePlan:
    return limits_file.apply(limits_file.read_content(text))


@contextmanager
def counted_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of rows that queries return."""
    counted, read = [0], SQLCompiler.results_iter

    def counting(self: Any, *args: Any, **options: Any) -> Iterator[Any]:
        for row in read(self, *args, **options):
            counted[0] += 1
            yield row

    with monkeypatch.context() as patched:
        patched.setattr(SQLCompiler, "results_iter", counting)
        yield counted


def add_others(count: int) -> None:
    """Rows that the file does not name."""
    other = Resource.objects.create(name="other")
    rows = [Entity(identifier=f"other:{number}") for number in range(count)]
    Entity.objects.bulk_create(rows)
    Policy.objects.bulk_create([Policy(resource=other, entity=row, effect="blocked") for row in rows])
    for number in range(20):
        Endpoint.objects.create(name=f"Other {number}", path=f"/{number}/", resource=other)


@pytest.mark.parametrize("step", [plan, apply])
def test_other_rows_are_not_read(step: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_entity("tenant:a", parent="tenant:b")
    apply(FILE)
    changed = FILE.replace("10/min", "11/min").replace("name: One", "name: Uno").replace("5/min", "6/min")
    with counted_rows(monkeypatch) as alone:
        step(changed)
    apply(FILE)
    add_others(100)
    with counted_rows(monkeypatch) as beside:
        step(changed)
    assert beside == alone
    assert 0 < alone[0] < 100


def test_a_plan_that_changes_no_policy_reads_no_policies_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    apply(FILE)
    with counted_rows(monkeypatch) as alone:
        plan(FILE)
    limits.set_resource_limits("api", ["day=5/day"])
    Plan.objects.create(name="pro")
    limits.set_plan_limits("pro", ["day=5/day"])
    with counted_rows(monkeypatch) as beside:
        plan(FILE)
    assert beside[0] <= alone[0] + 2  # the policy of the resource, which a rule may have made


def test_a_new_entity_is_the_parent_of_a_stored_one() -> None:
    apply("entities: {a: {}}")
    apply("entities: {a: {parent: b}, b: {}, c: {parent: a}}")
    assert dict(Entity.objects.values_list("identifier", "parent__identifier")) == {"a": "b", "b": None, "c": "a"}


def test_many_rows_change_with_few_statements(django_assert_max_num_queries: Any) -> None:
    text = "\n".join(f"  user:{number}: {{name: Old {number}}}" for number in range(200))
    policies = "\n".join(f"- {{entity: 'user:{number}', limits: [rpm={number + 1}/min]}}" for number in range(200))
    file = f"entities:\n{text}\npolicies:\n{policies}"
    done = []
    content = limits_file.read_content(file)
    with django_assert_max_num_queries(60):
        limits_file.apply(content, progress=lambda *steps: done.append(steps))
    assert done == [(200, 400), (400, 400)]
    with django_assert_max_num_queries(60):
        planned = apply(file.replace("Old", "New").replace("rpm=", "rpm=1"))
    assert planned.counts() == {"create": 0, "change": 400, "delete": 0, "unchanged": 0}
    policy = Policy.objects.get(entity__identifier="user:7")
    assert [limit.text for limit in policy.limits.all()] == ["18/min"]
    assert policy.entity is not None
    assert policy.entity.name == "New 7"
    assert AuditEvent.objects.filter(verb="update").count() == 400
    assert not audit.verify().broken
    assert not [*audit.unrecorded()]


def entity_line(*names: str) -> None:
    """Entities of which each is the parent of the next one."""
    for parent, name in zip((None, *names), names, strict=False):
        limits.set_entity(name, parent=parent)


def test_entities_below_those_of_the_file_are_not_too_deep() -> None:
    entity_line(*[f"above:{level}" for level in range(4)])
    entity_line(*[f"below:{level}" for level in range(5)])
    with pytest.raises(InvalidFile, match="entity below:4 is more than 8 levels deep"):
        plan("entities: {'below:0': {parent: 'above:3'}}")
    plan("entities: {'below:0': {parent: 'above:2'}}")


def test_entities_of_the_file_are_not_their_own_ancestors() -> None:
    entity_line("a:1", "b:1", "c:1")
    with pytest.raises(InvalidFile, match="entity a:1 is its own ancestor"):
        plan("entities: {'a:1': {parent: 'c:1'}}")


def test_policies_of_the_file_do_not_overlap_with_others() -> None:
    begins = datetime(2031, 1, 1, tzinfo=UTC)
    limits.set_plan_limits("pro", ["rpm=1/min"], valid_from=begins, valid_until=begins + timedelta(days=9))
    text = "policies: [{plan: pro, valid_from: 2031-01-05T00:00:00+00:00, limits: [rpm=2/min]}]"
    with pytest.raises(InvalidFile, match="overlaps with policy plan pro from 2031-01-01"):
        plan(text)
    plan(text.replace("2031-01-05", "2031-02-05"))


def test_limits_of_a_resource_are_set_once() -> None:
    Endpoint.objects.create(name="First", path="/first/", limits="5/min", limits_resource="shared")
    with pytest.raises(InvalidFile, match="because endpoint First has"):
        plan("endpoints: [{name: Second, path: /second/, limits: 5/min, limits_resource: shared}]")
    with pytest.raises(
        InvalidFile, match="endpoint First cannot have limits on shared, because policy resource shared"
    ):
        plan("policies: [{resource: shared, limits: [rpm=2/min]}]")
    limits.set_resource_limits("own", ["rpm=1/min"])
    with pytest.raises(InvalidFile, match="because policy resource own has"):
        plan("endpoints: [{name: Second, path: /second/, limits: 5/min, limits_resource: own}]")


def test_a_resource_gets_a_pool_that_is_in_no_file() -> None:
    pool = Pool.objects.create(name="west")
    apply("resources: {api: {pool: west}}")
    assert Resource.objects.get(name="api").pool == pool
    with pytest.raises(InvalidFile, match="refers to east, which is not in pools"):
        plan("resources: {api: {pool: east}}")


@pytest.mark.parametrize(
    "policy",
    [
        "{entity: 'user:1', resource: api, limits: [own=1/min]}",
        "{entity: 'user:1', limits: [own=1/min]}",
        "{entity: 'user:9', resource: api, limits: [own=1/min]}",
        "{plan: pro, resource: api, limits: [own=1/min]}",
        "{plan: pro, resource: chat, limits: [own=1/min]}",
        "{plan: free, limits: [own=1/min]}",
        "{entity: 'key:*', limits: [own=1/min]}",
        "{resource: api, limits: [own=1/min]}",
        "{counted: total, entity: 'user:1', limits: [own=1/min]}",
    ],
)
def test_warnings_are_those_of_all_configuration(policy: str) -> None:
    Plan.objects.create(name="pro")
    limits.set_entity("tenant:a", plan="pro")
    limits.set_entity("user:1", parent="tenant:a")
    limits.set_system_limits(["system=1/min"])
    limits.set_system_limits(["all=1/min"], counted="total")
    limits.set_resource_limits("api", ["resource=1/min"])
    limits.set_resource_limits("chat", ["chat=1/min"])
    limits.set_plan_limits("pro", ["plan=1/min"])
    limits.set_entity_limits("user:*", ["pattern=1/min"], resource="api")
    limits.set_entity_limits("tenant:*", ["tenants=1/min"])
    limits.set_entity_limits("user:*", ["total=1/min"], counted="total")
    limits.set_entity_limits("user:1", ["day=1/day"], resource="other")
    planned = apply(f"policies: [{policy}]")
    [name] = [step.entry.name for step in planned.steps if step.entry.section.name == "policies"]
    stored = {entry.name: entry for section in SECTIONS.values() for entry in stored_pages(section, "default")}
    assert planned.warnings == tuple(dropped_limits(stored.values(), [stored[name]], "default"))
    assert planned.warnings


def test_the_audit_log_of_a_file_is_in_order() -> None:
    apply(FILE)
    apply(FILE.replace("10/min", "11/min").replace("name: One", "name: Uno"))
    apply("name: mine")
    assert not audit.verify().broken
    assert not [*audit.unrecorded()]
