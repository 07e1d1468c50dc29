"""One process of a site: makes changes of one kind, or acquires and checks that the last committed change counts.

The first byte of a file that all processes map has the number of the last committed change, and the second byte its
kind. A byte is written in one piece. `traffic` acquires as often as it is asked. Variables of the environment name
other stores and another database than those of the site.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import sys
from pathlib import Path
from time import sleep

import django

from project import settings

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
settings.LIMITS["STORES"] = json.loads(os.environ.get("LIMITS_TEST_STORES", '{"default": {"KIND": "process"}}'))
if "LIMITS_TEST_DATABASE" in os.environ:
    settings.DATABASES["default"] = json.loads(os.environ["LIMITS_TEST_DATABASE"])
django.setup()

from django.contrib.auth.models import Group, User  # noqa: E402 - only once Django is set up
from django.core.management import call_command  # noqa: E402 - only once Django is set up

from limits_app import limits  # noqa: E402 - the same
from limits_app.engine.limits import CallLimit  # noqa: E402 - the same
from limits_app.models import Entity, Limit, Plan, Policy, Pool, PoolMember, Resource  # noqa: E402 - the same
from limits_app.policies import configuration  # noqa: E402 - the same
from limits_app.usage.evaluation_counter import evaluations  # noqa: E402 - the same

FEW, MANY, CANDIDATE = 10**9, 2 * 10**9, 300
EDIT, MEMBER, SWITCH, OTHER, CLIENT, GROUP, PATTERN, SYSTEM, ENDED = range(9)
CHANGING = 255
"""In place of the number while a change is made."""


def prepare() -> str:
    """Set limits on three resources; a pool serves one, and the candidate of another is evaluated for all traffic."""
    call_command("migrate", verbosity=0)
    limits.set_resource_limits("api", [CallLimit(FEW, 86_400)])
    traffic = limits.set_resource_limits("traffic", [CallLimit(400, 86_400)])
    limits.set_candidate(traffic, [CallLimit(CANDIDATE, 86_400)])
    Plan.objects.create(name="pro")
    limits.set_plan_limits("pro", [CallLimit(MANY, 86_400)], resource="api")
    Entity.objects.create(identifier="user:1")
    pool = Pool.objects.create(name="bedrock")
    Limit.from_definition(PoolMember.objects.create(pool=pool, name="a"), CallLimit(FEW, 86_400)).save()
    Resource.objects.create(name="chat", pool=pool)
    group = Group.objects.create(name="paying")
    Plan.objects.get().groups.create(group=group)
    for number in range(3):
        User.objects.create(username=f"user {number}")
    return "done"


def edit(number: int) -> None:
    """Change the limit of a resource in one way or another."""
    if random.random() < 0.25:
        limits.set_resource_limits("api", [CallLimit(FEW + number, 86_400)])
    else:
        edit_row(Limit.objects.get(policy__resource__name="api", policy__plan=None), number)


def edit_member(number: int) -> None:
    """Change the limit of the member of the pool in one way or another."""
    edit_row(Limit.objects.get(member__pool__name="bedrock"), number)


def edit_row(row: Limit, number: int) -> None:
    row.text = f"{FEW + number}/d"
    match random.randrange(3):
        case 0:
            Limit.objects.filter(pk=row.pk).update(text=row.text)
        case 1:
            row.save()
        case _:
            Limit.objects.bulk_update([row], ["text"])


def change_candidate(number: int) -> None:
    """Promote a candidate, or revert it."""
    policy = Policy.objects.get(resource__name="api", plan=None)
    if number % 2:
        limits.set_candidate(policy, [CallLimit(MANY, 86_400)])
        limits.promote_candidate(policy)
    else:
        limits.revert_candidate(policy)


def switch(number: int) -> None:
    """Set the emergency switch."""
    limits.set_emergency("off" if number % 2 else "enforce", reason="a test")


def change_plan(number: int) -> None:
    """Give the entity the plan, or take it away."""
    entity = Entity.objects.get(identifier="user:1")
    entity.plan = Plan.objects.get() if number % 2 else None
    entity.save()


def change_client(number: int) -> None:
    """Set the limit of a client, which has no row at first."""
    limits.set_entity_limits("user:2", [CallLimit(FEW + number, 86_400)], resource="api")


def change_membership(number: int) -> None:
    """Add a user to a group with a plan, or remove it."""
    groups = User.objects.get(pk=3).groups
    groups.set([Group.objects.get()] if number % 2 else [])


def change_pattern(number: int) -> None:
    """Set the limit of a pattern, which has no row at first."""
    limits.set_entity_limits("key:*", [CallLimit(FEW + number, 86_400)], resource="api")


def change_system(number: int) -> None:
    """Set the limit of the system."""
    limits.set_system_limits([CallLimit(FEW + number, 86_400)])


CLIENTS = {CLIENT: "user:2", GROUP: "user:3", PATTERN: "key:1"}
"""Who acquires after a change; `user:1` after others."""
RESOURCES = {MEMBER: "chat", SYSTEM: "other"}
"""Of what; `api` after other changes."""

KINDS = {
    "client": (CLIENT, change_client),
    "group": (GROUP, change_membership),
    "pattern": (PATTERN, change_pattern),
    "system": (SYSTEM, change_system),
    "edit": (EDIT, edit),
    "member": (MEMBER, edit_member),
    "switch": (SWITCH, switch),
    "candidate": (OTHER, change_candidate),
    "plan": (OTHER, change_plan),
}


def capacities(number: int, kind: int) -> list[int]:
    """The limits that apply after a change; an odd switch lifts all of them."""
    if kind in {EDIT, MEMBER, CLIENT, PATTERN, SYSTEM}:
        return [FEW + number]
    return [] if number % 2 and kind == SWITCH else [MANY if number % 2 else FEW]


def load(shared: mmap.mmap) -> str:
    """Acquire until the changes end; returns the number of decisions, of changes, and the decisions that were stale."""
    decisions, seen, stale = 0, set[int](), []
    while not configuration.current().known.is_complete:  # a background thread reads which identifiers have rows
        limits.acquire("api", entity="user:9")
        sleep(0.05)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while shared[1] != ENDED:
        number, kind = shared[:2]
        entity, resource = CLIENTS.get(kind, "user:1"), RESOURCES.get(kind, "api")
        outcome = limits.acquire(resource, entity=entity).outcome
        if shared[0] != number or number == CHANGING:
            continue  # a change was being made
        decisions += 1
        seen.add(number)
        found = [status.capacity for status in outcome.passed]
        if found != capacities(number, kind):
            stale.append((number, found))
    return json.dumps([decisions, len(seen), stale])


def main(verb: str, number: int, shared: mmap.mmap) -> str:
    """Follow one command."""
    if verb == "prepare":
        return prepare()
    if verb == "load":
        return load(shared)
    if verb == "traffic":
        for _ in range(number):
            limits.try_acquire("traffic", entity="user:1")
        evaluations.flush()
        return "done"
    kind, make = KINDS[verb]
    for count in range(1, number + 1):
        shared[0] = CHANGING
        shared[1] = kind
        make(count % 250)
        shared[0] = count % 250
        sleep(0.02)  # in which the other processes decide by this change
    shared[1] = ENDED
    return "done"


with Path(sys.argv[3]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    sys.stdout.write(main(sys.argv[1], int(sys.argv[2]), mapped) + "\n")
