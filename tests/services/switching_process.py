"""One process of a site: changes the emergency switch, a candidate or a plan, or acquires and checks that it counts.

A file that all processes map has the number of the last committed change in its first byte, which is written in one
piece; an odd number means that nothing is limited (switch), or that the limit is that of the candidate or the plan.
`traffic` acquires as often as it is asked.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
django.setup()

from django.core.management import call_command  # noqa: E402 - only once Django is set up

from limits_app import limits  # noqa: E402 - the same
from limits_app.core.limits import CallLimit  # noqa: E402 - the same
from limits_app.models import Entity, Plan, Policy  # noqa: E402 - the same
from limits_app.usage.evaluation_counter import evaluations  # noqa: E402 - the same

FEW, MANY, CANDIDATE = 10**9, 2 * 10**9, 300
SWITCHED, ENDED = 1, 4
CHANGING = 255
"""In place of the number while a change is made."""


def prepare() -> str:
    """Set limits on two resources; the candidate of one of them is evaluated for all traffic."""
    call_command("migrate", verbosity=0)
    limits.set_resource_limits("api", [CallLimit(FEW, 86_400)])
    traffic = limits.set_resource_limits("traffic", [CallLimit(400, 86_400)])
    limits.set_candidate(traffic, [CallLimit(CANDIDATE, 86_400)])
    Plan.objects.create(name="pro")
    limits.set_plan_limits("pro", [CallLimit(MANY, 86_400)], resource="api")
    Entity.objects.create(identifier="user:1")
    return "done"


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


def load(shared: mmap.mmap) -> str:
    """Acquire until the changes end; returns the number of decisions, and those by a state that was over."""
    decisions, stale = 0, []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while shared[1] != ENDED:
        number, kind = shared[:2]
        outcome = limits.acquire("api", entity="user:1").outcome
        if shared[0] != number or number == CHANGING:
            continue  # a change was being made
        decisions += 1
        is_odd = bool(number % 2)
        found = [status.capacity for status in outcome.passed]
        if found != ([] if is_odd and kind == SWITCHED else [MANY if is_odd else FEW]):
            stale.append((number, found))
    return json.dumps([decisions, stale])


KINDS = {"switch": (SWITCHED, switch), "candidate": (2, change_candidate), "plan": (3, change_plan)}


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
        make(count)
        shared[0] = count
    shared[1] = ENDED
    return "done"


with Path(sys.argv[3]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    sys.stdout.write(main(sys.argv[1], int(sys.argv[2]), mapped) + "\n")
