"""Every pair of levels, and random configurations: all that show, warn, preview or simulate agree with requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any, NamedTuple

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connection

from limits_app import limits
from limits_app.engine.limits import CallLimit, QuotaLimit, ResourceLimit
from limits_app.models import MAX_LEVELS, CodeLimits, Entity, Limit, Plan, PlanGroup, Policy, Resource
from limits_app.policies import Subject, dropped_keys
from limits_app.policies.precedence import CODE
from limits_app.policies.proposed import proposed_collector
from limits_app.policies.query import policies_for
from limits_app.services.limits_file.proposed import dropped_limits, proposed_rows
from limits_app.services.simulation.events import SimulatedRequest
from limits_app.services.simulation.proposal import Proposal, ProposedPlaces
from limits_app.services.simulation.replay import replay
from limits_app.testing import fresh_limits
from tests.policies.entries import stored_content

pytestmark = pytest.mark.slow

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
CALLS = CallLimit.per_day(3)
SLOTS = ResourceLimit("slots", 1000)
API, PLAN, TENANT, NETWORK = "api", "pro", "tenant:t", "ip:10.0.0.0/8"
TRIES = 5


class Site(NamedTuple):
    """A client with everything that policies can be for."""

    client: str
    pattern: str

    def put(self, level: str, limit: CallLimit | ResourceLimit) -> Policy | None:
        """Set the limit of a level; None for that of code, which has no row."""
        if level == CODE:
            CodeLimits.objects.create(resource=API, limits="calls=3/d")
            return None
        subject, _, rest = level.partition("_")
        name = {"entity": self.client, "pattern": self.pattern, "parent": TENANT}.get(subject)
        policy = Policy.objects.create(
            resource=Resource.objects.get(name=API) if subject == "resource" or rest == "on_resource" else None,
            entity=name and Entity.objects.get_or_create(identifier=name)[0],
            plan=Plan.objects.get(name=PLAN) if subject == "plan" else None,
            counted="total" if rest == "total" else "each",
        )
        Limit.from_definition(policy, limit).save()
        return policy


def user_on_a_plan() -> Site:
    parent = Entity.objects.create(identifier=TENANT)
    plan = Plan.objects.create(name=PLAN)
    Entity.objects.create(identifier="user:eu-1", plan=plan, parent=parent, cascade=True)
    return Site("user:eu-1", "user:eu-*")


def user_in_a_group_with_a_plan() -> Site:
    group = Group.objects.create(name="customers")
    PlanGroup.objects.create(group=group, plan=Plan.objects.create(name=PLAN))
    user = get_user_model().objects.create(username="ada")
    user.groups.add(group)
    parent = Entity.objects.create(identifier=TENANT)
    Entity.objects.create(identifier=f"user:{user.pk}", parent=parent)
    return Site(f"user:{user.pk}", "user:*")


def address_on_the_plan_of_its_parent() -> Site:
    parent = Entity.objects.create(identifier=TENANT, plan=Plan.objects.create(name=PLAN))
    Entity.objects.create(identifier="ip:10.1.2.3", parent=parent)
    return Site("ip:10.1.2.3", NETWORK)


SITES = (user_on_a_plan, user_in_a_group_with_a_plan, address_on_the_plan_of_its_parent)
LEVELS = (
    "entity_on_resource",
    "entity",
    "plan_on_resource",
    "plan",
    "pattern_on_resource",
    "pattern",
    "parent_on_resource",
    "parent",
    "resource",
    "system",
    "entity_total",
    "plan_total",
    "pattern_total",
    "system_total",
    CODE,
)


def allowed(client: str) -> int:
    """How many of some requests of a client are allowed, of limits that were not used before."""
    code = [CALLS] if CodeLimits.objects.exists() else []
    with fresh_limits():
        return sum(bool(limits.try_acquire(API, entity=client, default_limits=code)) for _ in range(TRIES))


def simulated(client: str) -> int:
    """How many of the same requests the simulation of the stored policies allows."""
    decided: list[bool] = []
    events = [SimulatedRequest(round(NOW.timestamp() * 1e6), API, client, ()) for _ in range(TRIES)]
    replay(events, Proposal.of_site(), decided=lambda _event, admitted: decided.append(admitted))
    return sum(decided)


def warned(policy: Policy) -> bool:
    """Whether the warning about a saved policy names the limit on calls; that of a limits file must agree."""
    stored = stored_content("default")
    [entry] = [one for (section, _), one in stored.items() if section == "policies" and one.pk == policy.pk]
    warnings = list(dropped_limits(stored.values(), [entry], "default"))
    dropped = [one.key for one in dropped_keys(policy)]
    assert len(warnings) == len(dropped)
    return CALLS.key in dropped


def pairs() -> Iterator[Any]:
    """Each level with all others; where only the way to the plan or the kind of pattern differs, with these."""
    differing = [level for level in LEVELS if level.startswith(("plan", "pattern"))]
    for site in SITES:
        levels = LEVELS if site is user_on_a_plan else differing
        for limited in levels:
            others = [level for level in levels if level not in (limited, CODE)]
            yield pytest.param(site, limited, others, id=f"{site.__name__}-{limited}")


@pytest.mark.parametrize(("make_rows", "limited", "levels"), list(pairs()))
def test_a_limit_is_dropped_by_a_level_for_requests_as_for_warnings(
    make_rows: Callable[[], Site], limited: str, levels: list[str]
) -> None:
    Resource.objects.create(name=API)
    site = make_rows()
    limiting = site.put(limited, CALLS)
    of_parent = [level for level in levels if level.startswith("parent")]
    if of_parent:
        check_each(site, TENANT, limited, limiting, of_parent)
    if not limited.startswith("parent"):
        site.put("parent", SLOTS)  # otherwise it is limited as its children are
    check_each(site, site.client, limited, limiting, [level for level in levels if level not in of_parent])


def applies_to(client: str, policy: Policy) -> bool:
    """Whether a preview has a policy apply to a client, whether it reads the rows of all clients or of some."""
    [applies] = {bool(ProposedPlaces(policy, most=most).among([(API, client)])) for most in (0, 1_000)}
    return applies


def check_each(site: Site, client: str, limited: str, limiting: Policy | None, levels: list[str]) -> None:
    """Everything agrees on whether a policy of each level drops the limit."""
    before = allowed(client)
    assert simulated(client) == before
    for level in levels:
        policy = site.put(level, SLOTS)
        assert policy is not None
        after = allowed(client)
        assert simulated(client) == after, level
        is_dropped = after > before
        assert warned(policy) == is_dropped, level
        explanation = limits.explain(API, entity=client)
        assert (CALLS.key in explanation.dropped) == is_dropped, level
        [own, *_above] = explanation.chain
        applies = any(limit.effective.policy.policy_id == policy.pk for limit in own.limits)
        assert applies_to(client, policy) == applies, level
        if limiting is not None and not limited.startswith("parent"):
            assert applies_to(client, limiting) == (after == CALLS.capacity), level
        policy.delete()


NAMES = ["tenant:t", "team:a", "user:1", "user:2", "user:03", "ip:10.1.2.3", "ip:2001:db8::/64", "ip:2001:db8::2"]
BILLING_DATES = [datetime(2026, 1, 31, 6, tzinfo=UTC), datetime(2025, 7, 3, 22, 30, tzinfo=UTC)]
PATTERNS = ["user:*", "ip:*", "ip:10.*", "ip:10.0.0.0/8", "ip:10.1.0.0/16", "ip:2001:db8::/32", "team:*"]


def make_site(drawn: random.Random) -> None:
    """A random configuration: some of all kinds of rows that policies can be for."""
    plans = [None, *[Plan.objects.create(name=name, priority=drawn.randrange(2)) for name in ("free", "pro")]]
    users = [get_user_model().objects.create(pk=number, username=f"u{number}") for number in (1, 2, 3)]
    for plan in plans[1:]:
        group = Group.objects.create(name=f"on {plan}")
        PlanGroup.objects.create(group=group, plan=plan)
        users[0].groups.add(group)
        drawn.choice(users[1:]).groups.add(group)
    entities: list[Entity | None] = [None]
    for name in drawn.sample(NAMES, 5):
        fields = {"parent": drawn.choice(entities), "plan": drawn.choice(plans), "cascade": drawn.random() < 0.6}
        fields["billing_from"] = drawn.choice([None, None, *BILLING_DATES])
        entities.append(Entity.objects.create(identifier=name, **fields, blocked=drawn.random() < 0.2))
    entities += [Entity.objects.create(identifier=name) for name in drawn.sample(PATTERNS, 5)]
    resources = [None, *[Resource.objects.create(name=name) for name in ("api", "mail")]]
    subjects = [*[(one, None) for one in entities], *[(None, one) for one in plans[1:]]]
    scopes = [(resource, *subject) for resource in resources for subject in subjects]
    for resource, entity, plan in drawn.sample(scopes, len(scopes) * 2 // 3):
        policy = Policy.objects.create(resource=resource, entity=entity, plan=plan, extends=drawn.random() < 0.5)
        starts = drawn.choice(["", "15", "client"])
        Limit.from_definition(policy, CallLimit.per_day(drawn.randint(1, 9))).save()
        Limit.from_definition(policy, QuotaLimit.per_month("tokens", drawn.randint(1, 9), starts=starts)).save()


@pytest.mark.parametrize("seed", range(8))
def test_rows_in_memory_give_the_chains_of_the_query(seed: int) -> None:
    make_site(random.Random(seed))
    content = list(stored_content("default").values())
    collector, keys = (
        proposed_collector(proposed_rows(content), "default"),
        {number: one.pk for number, one in enumerate(content, 1)},
    )
    clients = (
        *NAMES,
        None,
        "user:3",
        "user:99",
        "ip:10.1.9.9",
        "ip:2001:db8::1",
        "user:01",
        "user:*",
        "ip:10.0.0.0/8",
        "ip:10.*",
    )
    for resource, client, plan in product(("api", "mail", "unknown"), clients, (None, "pro")):
        stored = policies_for(Subject(resource, client, plan), "default", NOW).links
        found = list(collector.links(resource, client, plan))
        assert [link.entity for link in found] == [link.entity for link in stored], (resource, client)
        assert [link.billing_from for link in found] == [link.billing_from for link in stored], (resource, client)
        for link, of_query in zip(found, stored, strict=True):
            policies = [replace(one, policy_id=keys.get(one.policy_id or 0)) for one in link.policies]
            assert sorted(policies, key=repr) == sorted(of_query.policies, key=repr), (resource, client, plan)


def test_parents_that_were_written_as_a_cycle_past_the_models_end_at_the_highest_level() -> None:
    Resource.objects.create(name="api")
    team = Entity.objects.create(identifier="team:1", cascade=True)
    user = Entity.objects.create(identifier="user:1", parent=team, cascade=True)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE limits_app_entity SET parent_id = %s WHERE id = %s", [user.pk, team.pk])
    collector = proposed_collector(proposed_rows(list(stored_content("default").values())), "default")
    links = [link.entity for link in collector.links("api", "user:1")]
    assert links == ["user:1", "team:1"] * (MAX_LEVELS // 2)
    assert links == [link.entity for link in policies_for(Subject("api", "user:1"), "default", NOW).links]
