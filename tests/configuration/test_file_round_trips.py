"""Random configurations on each database: exported, applied on an empty site and exported again, all is the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from limits_app import limits
from limits_app.engine.notation import parse_limit
from limits_app.models import (
    AlertRule,
    AuditEvent,
    AuditHead,
    Endpoint,
    Entity,
    Limit,
    Manifest,
    Plan,
    PlanGroup,
    Policy,
    Pool,
    PoolMember,
    Price,
    Resource,
)
from limits_app.policies import Subject, policy_source
from limits_app.policies.precedence import judge
from limits_app.services import limits_file
from limits_app.services.limits_file import InvalidFile
from limits_app.services.simulation.events import SimulatedRequest
from limits_app.services.simulation.proposal import Proposal
from limits_app.services.simulation.replay import replay
from tests.stores.database.databases import ALIAS, VENDORS, There, migrated, served

NOW = datetime(2026, 3, 4, 12, 0, 0, 250_000, tzinfo=UTC)
HOUR = timedelta(hours=1)
RESOURCES = ["api", "Api", "chat", "b/c", None]
CLIENTS = ["user:1", "user:2", "user:3", "key:a", "Key:a", "tenant:acme", "ip:10.1.2.3", None]
PATTERNS = ["user:*", "key:*", "ip:10.0.0.0/8"]
GROUPS = ["staff", "Staff abroad", "customers"]
LIMITS = ["calls=30/10s:gcra", "rpm=60/min:burst=10:soft", "t=2.5/250ms", "b=5M/month@Europe/Berlin", "c=10:hold=90s"]
TIMES: list[dict[str, Any]] = [
    {},
    {},
    {"weekly_hours": "wed 09:00-17:00", "time_zone": "Europe/Berlin"},
    {"valid_from": NOW - HOUR, "valid_until": NOW + HOUR},
    {"valid_from": NOW + HOUR},
]
DOCUMENTS: list[Any] = [{}, {"since": "2026-01-01", "b": [1, {"z": True, "a": None}], "a": "ä"}]


@pytest.fixture(scope="module", params=VENDORS)
def vendor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """Each database in turn, with all tables, users and groups."""
    with (
        django_db_blocker.unblock(),
        served(request.param, tmp_path_factory.mktemp("database")) as settings,
        migrated(settings) as vendor,
        override_settings(DATABASE_ROUTERS=[There()]),
    ):
        groups = {name: Group.objects.create(name=name) for name in GROUPS}
        for number, names in enumerate([GROUPS[:1], GROUPS[:2], GROUPS[2:]], 1):
            user = get_user_model().objects.create(username=f"user{number}", pk=number)
            user.groups.set([groups[name] for name in names])
        yield vendor


@pytest.fixture(autouse=True)
def nothing_yet(vendor: str) -> None:
    empty()


def empty() -> None:
    """Make the site one that never had any configuration."""
    Entity.objects.update(parent=None)
    for model in (Endpoint, AlertRule, PlanGroup, Policy, Entity, Plan, Price, Resource, Pool):
        model.objects.all().delete()
    Manifest.objects.all().delete()
    for model in (AuditEvent, AuditHead):
        QuerySet(model, using=ALIAS).delete()


def make_site(drawn: Random) -> None:
    """Rows of all models that are in files, with fields at random."""
    pools = [make_pool(drawn, name) for name in some(drawn, ["claude", "Claude"])]
    resources = [
        Resource.objects.create(name=name, pool=drawn.choice([None, *pools])) for name in some(drawn, RESOURCES) if name
    ]
    plans = [Plan.objects.create(name=n, priority=drawn.randint(0, 3)) for n in some(drawn, ["pro", "Pro", "free"])]
    for group in Group.objects.filter(name__in=some(drawn, GROUPS)) if plans else ():
        PlanGroup.objects.create(group=group, plan=drawn.choice(plans))
    entities: list[Any] = [None]
    for name in some(drawn, CLIENTS):
        if name:
            entities.append(make_entity(drawn, name, entities, plans))
    entities += [Entity.objects.create(identifier=name) for name in some(drawn, PATTERNS)]
    for _ in range(20):
        make_policy(drawn, resources, entities, plans)
    for number in range(3):
        make_rule(drawn, f"/{number}/", drawn.choice([None, *resources]))
    make_prices(drawn)
    for name in some(drawn, ["busy", "Busy!", "many"]):
        of, enabled = drawn.choice(["", "user:1"]), drawn.random() < 0.5
        fields = {"kind": "rejections", "rejections": drawn.randint(1, 9), "entity": of, "enabled": enabled}
        AlertRule.objects.create(name=name, channel="webhook", target="https://example.com/hook", **fields)


def make_prices(drawn: Random) -> None:
    """Prices that begin in some years."""
    for name in some(drawn, ["api", "Api", "b/*", "claude"]):
        member = drawn.choice(["", "a"]) if name == "claude" else ""
        for year in range(2100, 2100 + drawn.randint(1, 3)):
            price = Price(resource=name, member=member, unit=drawn.choice(["t", "T"]), currency="usd")
            price.amount, price.per = Decimal(drawn.choice(["0.15", "0", "12", "0.000000001"])), drawn.choice([1, 1000])
            price.valid_from = datetime(year, 1, 1, tzinfo=UTC)
            price.save()


def some(drawn: Random, values: list[Any]) -> list[Any]:
    return drawn.sample(values, drawn.randint(0, len(values)))


def put_limits(drawn: Random, owner: Policy | PoolMember, *, shared: bool) -> None:
    for text in drawn.sample(LIMITS, drawn.randint(1, 3)):
        is_shared = shared and drawn.random() < 0.3
        Limit.from_definition(owner, parse_limit(text).limit, shared=is_shared).save()


def make_pool(drawn: Random, name: str) -> Pool:
    pool = Pool.objects.create(name=name, failover=drawn.random() < 0.5)
    for member in drawn.sample(["b", "a", "B"], 2):
        config, weight = drawn.choice(DOCUMENTS), drawn.randint(1, 9)
        put_limits(drawn, PoolMember.objects.create(pool=pool, name=member, config=config, weight=weight), shared=False)
    return pool


def make_entity(drawn: Random, name: str, parents: list[Any], plans: list[Plan]) -> Entity:
    flag = drawn.choice(["", "", "", "blocked", "unlimited"])
    return Entity.objects.create(
        identifier=name,
        parent=drawn.choice(parents),
        plan=drawn.choice([None, *plans]),
        cascade=drawn.random() < 0.6,
        metadata=drawn.choice(DOCUMENTS),
        **({flag: True} if flag else {}),
    )


def make_policy(drawn: Random, resources: list[Resource], entities: list[Any], plans: list[Plan]) -> None:
    """Make a policy at random, unless the models reject it."""
    entity, resource = drawn.choice(entities), drawn.choice([None, *resources])
    policy = Policy(
        entity=entity,
        resource=resource,
        plan=None if entity else drawn.choice([None, *plans]),
        counted="each" if resource else drawn.choice(["each", "total"]),
        effect=drawn.choice(["limits", "limits", "limits", "blocked", "unlimited"]),
        extends=drawn.random() < 0.5,
        enforcement=drawn.choice(["enforce", "enforce", "shadow", "off"]),
        rollout_percent=drawn.choice([100, 50]),
        on_unavailable=drawn.choice(["", "allow"]),
        reason=drawn.choice(["", "contract: “März”"]),
        **drawn.choice(TIMES),
    )
    try:
        policy.full_clean()
    except ValidationError:
        return
    policy.save()
    if policy.effect == "limits":
        put_limits(drawn, policy, shared=policy.is_for_all_entities)


def make_rule(drawn: Random, path: str, resource: Resource | None) -> None:
    """Make a URL rule, of which some are renamed, and some have limits of a client on the resource made for them."""
    rule = Endpoint.objects.create(
        name=drawn.choice(["Log in", "Chat"]),
        path=path,
        order=drawn.choice([1, 100]),
        resource=resource,
        limits="" if resource else drawn.choice(["5/min", "9/h tokens=1M/day"]),
        amounts=drawn.choice([{}, {"z": 2, "call_count": 3}]),
    )
    rule.refresh_from_db()
    if drawn.random() < 0.5:
        rule.name = "Renamed"
        rule.save()
    if not resource and drawn.random() < 0.5:
        limits.set_entity_limits("user:1", [parse_limit("1/s").limit], resource=rule.resource_name, reason="x")


def decisions() -> dict[Any, Any]:
    """What decides on each request: policies with their status, effective limits, pool and store, and URL rules."""
    found: dict[Any, Any] = {}
    rules = [(rule.name, rule.path, rule.amounts, rule.resource_name) for rule in Endpoint.objects.all()]
    for resource in {*RESOURCES, *(name for *_, name in rules)}:
        for client in CLIENTS:
            chain = policy_source.read(Subject(resource, client), ALIAS, NOW)
            choices = [judge(link, NOW) for link in chain.links]
            found[resource, client] = (chain.pool, chain.store, [_described(choice) for choice in choices])
    return found | {"rules": rules}


def _described(choice: Any) -> Any:
    """A choice without primary keys."""

    def policy(value: Any) -> Any:
        return (value.level, value.effect, value.subject, value.enforcement, value.limits, sorted(value.shared))

    verdicts = sorted((repr(policy(one.policy)), one.status, one.policy.slice_seconds) for one in choice.verdicts)
    effective = [(one.limit, policy(one.policy), one.shared) for one in (*choice.limits, *choice.totals)]
    return choice.entity, verdicts, effective, choice.on_unavailable


def applied(text: str) -> None:
    limits_file.apply(limits_file.read_content(text))


@pytest.mark.parametrize("seed", [0, 1, *[pytest.param(seed, marks=pytest.mark.release) for seed in range(2, 8)]])
def test_an_exported_site_decides_alike_and_is_exported_alike(seed: int) -> None:
    make_site(Random(seed))
    before, text = decisions(), "".join(limits_file.export())
    assert not limits_file.plan(limits_file.read_content(text)).drift
    empty()
    applied(text)
    assert decisions() == before
    assert "".join(limits_file.export()) == text


SITE = """\
version: 1
name: limits
resources:
  api: {}
plans:
  Pro:
    priority: 2
  free: {}
plan_groups:
  Staff abroad:
    plan: Pro
  staff:
    plan: free
entities:
  Key:a:
    plan: free
    metadata:
      a: null
      b:
      - y: 2
        z: 1
      longer: x
  key:a: {}
policies:
- plan: Pro
  limits:
  - a=2/h
  - calls=1/min
- resource: api
  weekly_hours: mon
  time_zone: UTC
  limits:
  - calls=1/min
endpoints:
- name: Renamed
  path: /a/
  limits: 5/min
  limits_resource: rule-log-in
alert_rules:
  Busy:
    kind: threshold
    percent: 80
    entity: key:a
    target: ops@example.com
  store:
    enabled: false
    kind: store
    channel: webhook
    target: https://example.com/hook
"""


def test_a_file_is_the_same_from_every_database() -> None:
    applied(SITE)
    assert "".join(limits_file.export()) == SITE
    assert Endpoint.objects.get().resource_name == "rule-log-in"


def refused(text: str) -> str:
    with pytest.raises(InvalidFile) as caught:
        applied(text)
    return str(caught.value)


def test_groups_that_a_site_does_not_have_are_named_and_lose_nothing() -> None:
    applied("plan_groups:\n  staff: {plan: pro}")
    text = "plan_groups:\n  customers: {plan: pro}\n  Staff: {plan: pro}\n  nobody: {plan: pro}"
    found = refused(text).splitlines()
    assert found == [
        "limits.yaml: line 3: this site has no group Staff: create it first, or remove it here",
        "limits.yaml: line 4: this site has no group nobody: create it first, or remove it here",
    ]
    assert [str(row) for row in PlanGroup.objects.all()] == ["staff"]
    assert "plan_groups.staff.plan: This field cannot be null." in refused("plan_groups: {staff: {}}")


def test_a_group_changes_its_plan_and_belongs_to_the_file_that_has_it() -> None:
    applied("plans: {a: {}, b: {}}\nplan_groups: {staff: {plan: a}, customers: {plan: b}}")
    applied("plans: {a: {}, b: {}}\nplan_groups: {staff: {plan: b}, customers: {plan: a}}")
    assert {(row.group.name, row.plan.name) for row in PlanGroup.objects.all()} == {("staff", "b"), ("customers", "a")}
    last = AuditEvent.objects.filter(object_type="plan", object_label="b").order_by("number").last()
    assert last is not None
    assert (last.verb, last.after["groups"]) == ("update", [{"group": "staff"}])
    assert "belongs to the file named 'limits'" in refused("name: two\nplans: {a: {}}\nplan_groups: {staff: {plan: a}}")
    applied("name: two\nplans: {c: {}}")
    assert PlanGroup.objects.count() == 2
    applied("plans: {a: {}}")
    assert not PlanGroup.objects.exists()
    assert [plan.name for plan in Plan.objects.all()] == ["a", "c"]


def test_sections_that_a_file_does_not_have_stay_as_they_are() -> None:
    plan = Plan.objects.create(name="pro")
    PlanGroup.objects.create(plan=plan, group=Group.objects.get(name="staff"))
    AlertRule.objects.create(name="a", kind="store", target="a@example.com")
    for text in ("plans: {pro: {priority: 3}}", "plans: {pro: {priority: 3}}", "name: other"):
        applied(text)
    assert (PlanGroup.objects.count(), AlertRule.objects.count()) == (1, 1)


def test_secrets_of_alert_rules_stay_and_are_in_no_file() -> None:
    text = "alert_rules: {a: {kind: store, channel: webhook, target: 'https://%s.com/'}}"
    applied(text % "example")
    AlertRule.objects.update(secret="geheim")
    applied(text % "example")
    applied(text % "other")
    assert AlertRule.objects.values_list("target", "secret").get() == ("https://other.com/", "geheim")
    assert "geheim" not in "".join(limits_file.export())
    assert not AuditEvent.objects.exists()
    assert "alert_rules.a.percent: Enter one of 80" in refused("alert_rules: {a: {kind: threshold, target: a@b.com}}")
    applied("")
    assert not AlertRule.objects.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{name: e, path: /, resource: api, limits_resource: x}", "Only a rule with limits has this"),
        ("{name: e, path: /, limits: 1/s, limits_resource: 'a b'}", "must be a letter"),
        ("{name: e, path: /, limits: 1/s, limits_resource: own}", "because policy resource own has"),
        ("{name: e, path: /, limits: 1/s, limits_resource: rule-b}", "because endpoint b has"),
        (
            "{name: e, path: /, limits: 1/s, limits_resource: y}, {name: f, path: /, limits: 2/s, limits_resource: y}",
            "e has",
        ),
    ],
)
def test_a_rule_takes_the_limits_of_no_other(text: str, said: str) -> None:
    limits.set_resource_limits("own", [parse_limit("2/s").limit], reason="x")
    Endpoint.objects.create(name="b", path="/b/", limits="3/s")
    assert said in refused(f"endpoints: [{text}]")


def test_a_rule_keeps_the_resource_under_which_it_is_counted() -> None:
    applied("endpoints: [{name: e, path: /, limits: 1/s}]")
    text = "endpoints: [{name: e, path: /, limits: 2/s, limits_resource: other}]"
    assert limits_file.plan(limits_file.read_content(text)).warnings == (
        "endpoint e keeps the limits_resource rule-e, since it cannot be changed to other",
    )
    applied(text)
    assert Endpoint.objects.get().resource_name == "rule-e"
    assert not limits_file.plan(limits_file.read_content(text)).drift


def test_a_file_is_simulated_with_the_groups_in_it() -> None:
    text = """
plans: {pro: {}}
plan_groups: {staff: {plan: pro}}
policies: [{plan: pro, limits: [calls=2/d]}, {limits: [calls=9/d]}]
"""
    events = [
        SimulatedRequest(round(NOW.timestamp() * 1e6), "api", client, ())
        for client in ("user:1", "user:3")
        for _ in range(5)
    ]
    decided: list[bool] = []
    proposal = Proposal.of_content(limits_file.read_content(text))
    replay(events, proposal, decided=lambda _event, admitted: decided.append(admitted))
    assert decided == [True, True, False, False, False] + [True] * 5
