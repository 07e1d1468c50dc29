"""One process of a site under edits: `edit COUNT` changes limits at random, `load` asks all the time until it is told.

What was committed last stands in a file that all of them map: for each resource the number of its last edit,
which is the capacity of its limit too, and whether the edits have ended.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import sys
from collections import Counter
from pathlib import Path

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
django.setup()

from django.core.management import call_command  # noqa: E402 - only once Django is set up

from limits_app import limits  # noqa: E402 - the same
from limits_app.core.limits import CallLimit  # noqa: E402 - the same
from limits_app.models import Limit, Pool, PoolMember, Resource  # noqa: E402 - the same

FIRST = 1_000_000
"""The capacity before all edits, which nobody uses up."""
RESOURCES = ("api", "chat")
ENDED = len(RESOURCES)


def edit(resource: str, capacity: int) -> None:
    """Change the limit of a resource, or of the member of its pool, in one way or another."""
    rows = Limit.objects.filter(policy__resource__name="api")
    if resource == "chat":
        rows = Limit.objects.filter(member__pool__name="bedrock")
    match random.randrange(3 if resource == "chat" else 4):
        case 0:
            rows.update(capacity=capacity)
        case 1:
            row = rows.get()
            row.capacity = capacity  # type: ignore[assignment]  # as the form of the admin does
            row.save()
        case 2:
            row = rows.get()
            row.capacity = capacity  # type: ignore[assignment]
            Limit.objects.bulk_update([row], ["capacity"])
        case _:
            limits.set_resource_limits("api", [CallLimit(capacity, 86_400)])


def prepare() -> None:
    """The site before all edits."""
    call_command("migrate", verbosity=0)
    limits.set_resource_limits("api", [CallLimit(FIRST, 86_400)])
    pool = Pool.objects.create(name="bedrock")
    member = PoolMember.objects.create(pool=pool, name="a")
    Limit.from_definition(member, CallLimit(FIRST, 86_400)).save()
    Resource.objects.create(name="chat", pool=pool)


def main(verb: str, number: int, shared: mmap.mmap) -> str:
    """Follow one command."""
    slot = struct.Struct("<q")
    if verb == "prepare":
        prepare()
        return "done"
    if verb == "edit":
        for count in range(1, number + 1):
            place = random.randrange(ENDED)
            edit(RESOURCES[place], FIRST + count)
            slot.pack_into(shared, place * 8, FIRST + count)
        slot.pack_into(shared, ENDED * 8, 1)
        return "done"
    seen: Counter[str] = Counter()
    while not slot.unpack_from(shared, ENDED * 8)[0]:
        place = seen["decisions"] % ENDED
        [committed] = slot.unpack_from(shared, place * 8)
        outcome = limits.acquire(RESOURCES[place], entity=f"user:{number}").outcome
        [capacity] = [status.capacity for status in outcome.passed]
        seen["decisions"] += 1
        seen["stale"] += capacity < committed
        seen["changes"] += capacity != seen[RESOURCES[place]]
        seen[RESOURCES[place]] = int(capacity)
    return f"{seen['decisions']} {seen['stale']} {seen['changes']}"


with Path(sys.argv[3]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    sys.stdout.write(main(sys.argv[1], int(sys.argv[2]), mapped) + "\n")
