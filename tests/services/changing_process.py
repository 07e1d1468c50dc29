"""One process of a site: makes changes of one kind, or acquires and checks that the last committed change counts.

All processes map one file, whose bytes are written in one piece each: see `Shared`. `traffic` acquires as often as it
is asked. Variables of the environment have other settings and another database than those of the site.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from struct import pack_into, unpack_from
from time import monotonic, sleep
from typing import Final

import django

from project import settings

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
settings.LIMITS |= {"STORES": {"default": {"KIND": "process"}}, "RESOLVER_TTL_SECONDS": 3600}
settings.LIMITS |= json.loads(os.environ.get("LIMITS_TEST_LIMITS", "{}"))
if "LIMITS_TEST_DATABASE" in os.environ:
    settings.DATABASES["default"] = json.loads(os.environ["LIMITS_TEST_DATABASE"])
django.setup()

from django.contrib.auth.models import Group, User  # noqa: E402 - only once Django is set up
from django.core.management import call_command  # noqa: E402 - only once Django is set up
from django.db import connection, transaction  # noqa: E402 - only once Django is set up

from limits_app import limits  # noqa: E402 - the same
from limits_app.engine.limits import CallLimit  # noqa: E402 - the same
from limits_app.models import Entity, Limit, Plan, Policy, Pool, PoolMember, Resource  # noqa: E402 - the same
from limits_app.policies import configuration  # noqa: E402 - the same
from limits_app.usage.evaluation_counter import evaluations  # noqa: E402 - the same

FEW, MANY, CANDIDATE = 10**9, 2 * 10**9, 300
EDIT, MEMBER, SWITCH, OTHER, CLIENT, GROUP, PATTERN, SYSTEM, ENDED = range(9)
CHANGING = 255
"""In place of the number while a change is made."""
SLICE_SECONDS: Final = int(os.environ.get("LIMITS_TEST_SLICE_SECONDS", "0"))
PATIENCE_SECONDS: Final = 120
OTHERS: Final = [f"user:{number}" for number in range(100, 105)]
"""Clients without rows, whom no change concerns."""


class Shared:
    """What the processes share.

    These are the number of the last committed change, its kind, since when it is committed, and of each process the
    number of the change by which it has decided last.
    """

    SIZE: Final = 32
    _TIME: Final = 8
    _DECIDED: Final = 16

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped

    @property
    def number(self) -> int:
        return self._mapped[0]

    @property
    def kind(self) -> int:
        return self._mapped[1]

    @property
    def committed_at(self) -> float:
        """By the monotonic clock, which all processes of a machine share."""
        return float(unpack_from("d", self._mapped, self._TIME)[0])

    def begin(self, kind: int) -> None:
        """A change is being made from now on."""
        self._mapped[0] = CHANGING
        self._mapped[1] = kind

    def commit(self, number: int) -> None:
        """A change is committed, and its announcement has returned."""
        pack_into("d", self._mapped, self._TIME, monotonic())
        self._mapped[0] = number

    def decided(self, process: int, number: int) -> None:
        """A process has decided by a change."""
        self._mapped[self._DECIDED + process] = number

    def wait(self, processes: int, number: int) -> None:
        """Wait until all processes have decided by a change."""
        started = monotonic()
        while any(self._mapped[self._DECIDED + process] != number for process in range(processes)):
            assert monotonic() - started < PATIENCE_SECONDS, f"a process does not decide by change {number}"
            sleep(0.001)


def prepare() -> str:
    """Set limits on three resources; a pool serves one, and the candidate of another is evaluated for all traffic."""
    call_command("migrate", verbosity=0)
    limits.set_resource_limits("api", [CallLimit(FEW, 86_400)], slice_seconds=SLICE_SECONDS)
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
        limits.set_resource_limits("api", [CallLimit(FEW + number, 86_400)], slice_seconds=SLICE_SECONDS)
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


def queries_of_others() -> int:
    """How many queries the requests of all clients make whom a change does not concern."""
    count = 0

    def counted(execute: Callable[..., object], *arguments: object) -> object:
        nonlocal count
        count += 1
        return execute(*arguments)

    with connection.execute_wrapper(counted):
        for entity in OTHERS:
            limits.acquire("api", entity=entity)
    return count


def load(process: int, shared: Shared) -> str:
    """Acquire until the changes end.

    Returns the number of decisions, and of changes by which it has decided; the first decisions that were stale, and
    for how many seconds the last one was; and the most queries that clients made after a change of others.
    """
    decisions, changes, stale, longest, queries = 0, 0, [], 0.0, 0
    while not configuration.current().known.is_complete:  # a background thread reads which identifiers have rows
        limits.acquire("api", entity="user:9")
        sleep(0.05)
    queries_of_others()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    last = shared.number
    while (kind := shared.kind) != ENDED:
        sleep(0.0005)  # in which the process that makes the changes gets on
        number, began = shared.number, monotonic()
        outcome = limits.acquire(RESOURCES.get(kind, "api"), entity=CLIENTS.get(kind, "user:1")).outcome
        if number == CHANGING or (shared.number, shared.kind) != (number, kind):
            continue  # a change was being made
        decisions += 1
        allowed = [status.limit for status in outcome.passed]  # whose capacity is smaller with slices
        if allowed != capacities(number, kind):
            stale = [*stale[:9], (number, allowed)]
            longest = max(longest, began - shared.committed_at)
        elif number != last:
            queries = max(queries, queries_of_others())
            changes, last = changes + 1, number
            shared.decided(process, number)
    return json.dumps([decisions, changes, stale, longest, queries])


def make(verb: str, number: int) -> None:
    """Make a change."""
    KINDS[verb][1](number)


def make_unannounced(verb: str, number: int) -> None:
    """Have a process make a change that is killed once it is committed, before it announces that."""
    killed = subprocess.run([sys.executable, __file__, "killed", verb, str(number), sys.argv[-1]], check=False)
    assert killed.returncode == -signal.SIGKILL


def be_killed(verb: str, number: int) -> None:
    """Make a change, and kill this process between the commit and the announcement."""
    with transaction.atomic():
        transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
        make(verb, number)


def change(make: Callable[[str, int], None], verb: str, number: int, processes: int, shared: Shared) -> str:
    """Make so many changes, each once all processes have decided by the one before."""
    for count in range(1, number + 1):
        shared.begin(KINDS[verb][0])
        make(verb, count % 250)
        shared.commit(count % 250)
        shared.wait(processes, count % 250)
    shared.begin(ENDED)
    return "done"


def main(command: str, arguments: list[str], shared: Shared) -> str:
    """Follow one command."""
    match command, arguments:
        case "prepare", []:
            return prepare()
        case "load", [process]:
            return load(int(process), shared)
        case "traffic", [requests]:
            for _ in range(int(requests)):
                limits.try_acquire("traffic", entity="user:1")
            evaluations.flush()
            return "done"
        case "killed", [verb, number]:
            be_killed(verb, int(number))
        case (("change" | "change-unannounced"), [verb, number, processes]):
            makes = make if command == "change" else make_unannounced
            return change(makes, verb, int(number), int(processes), shared)
    raise ValueError(f"unknown command {command} {arguments}")


if __name__ == "__main__":
    with Path(sys.argv[-1]).open("r+b") as file, mmap.mmap(file.fileno(), Shared.SIZE) as mapped:
        sys.stdout.write(main(sys.argv[1], sys.argv[2:-1], Shared(mapped)) + "\n")
