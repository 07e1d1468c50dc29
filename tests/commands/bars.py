"""Measures the bars of files and simulation: `python -m tests.commands.bars`; takes a minute, and is no test."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

import django


def main(directory: Path) -> None:
    """Set up a site of its own, and measure there."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    os.environ["LIMITS_DEMO_DATABASE"] = str(directory / "db.sqlite3")
    os.environ["LIMITS_DEMO_STATE_DIR"] = str(directory / "state")
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    files()
    simulation()


def files() -> None:
    """10,000 policies of three limits each."""
    from limits_app.services import limits_file

    rows = (
        f"- {{resource: api, entity: 'user:{n}', limits: [rpm={1000 + n % 50}/min, tpm={400 + n % 7}k/min, c=10]}}"
        for n in range(10_000)
    )
    text = "policies:\n- limits: [calls=5/s]\n" + "\n".join(rows)
    measured("plan of 10,000 policies", lambda: limits_file.plan(limits_file.read_content(text)))
    measured("apply of 10,000 policies", lambda: limits_file.apply(limits_file.read_content(text)))
    measured("check of 10,000 policies", lambda: limits_file.plan(limits_file.read_content(text)))


def simulation() -> None:
    """A million events; and of every hundredth, whether a store decides alike."""
    from limits_app.core.notation import parse_limit
    from limits_app.services.simulation.events import csv_events
    from limits_app.services.simulation.proposal import Proposal
    from limits_app.services.simulation.replay import replay
    from limits_app.services.simulation.report import EVENTS

    lines = list(events(1_000_000))
    noted = [parse_limit(text) for text in ("calls=60/min", "tpm=100k/min:gcra")]
    report = measured("replay of 1,000,000 events", lambda: replay(csv_events(lines), Proposal.of_limits(noted)))
    write(f"refused: {report.totals[EVENTS].share:.1%} of the events, {report.entities} entities")
    sampled = [lines[0], *lines[1::100]]
    told: list[Any] = []
    replay(csv_events(sampled), Proposal.of_limits(noted), decided=lambda *one: told.append(one))
    write(f"same decisions as the memory store: {same(told, [one.limit for one in noted])} of {len(told)}")


def events(count: int) -> Iterator[str]:
    """Lines of a CSV."""
    random, now = Random(1), 1_760_000_000.0
    yield "time,entity,resource,tpm\n"
    for _ in range(count):
        now += random.expovariate(100)
        who = int(random.paretovariate(0.5)) % 5000
        yield f"{now:.3f},user:{who},api,{random.choice((100, 500, 1000, 20_000))}\n"


def same(told: list[Any], limits: list[Any]) -> int:
    """How many decisions a memory store takes too."""
    from limits_app import LimitSet
    from limits_app.stores.memory import MemoryStore
    from limits_app.testing import FakeClock

    clock = FakeClock(0)
    store, sets, alike = MemoryStore(clock=clock), {}, 0
    for event, admitted in told:
        clock.move(event.now_us - clock.now_us)
        limit_set = sets.get(event.entity) or sets.setdefault(event.entity, LimitSet(limits, store=store))
        wanted = {key: milli // 1000 for key, milli in event.wanted}
        with limit_set.try_acquire(wanted) as acquisition:
            if acquisition:
                acquisition.update(wanted)
        alike += bool(acquisition) is admitted
    return alike


def measured(what: str, act: Callable[[], Any]) -> Any:
    """Do something and tell how long it took."""
    wall, cpu = perf_counter(), process_time()
    result = act()
    write(f"{what}: {perf_counter() - wall:.1f} s ({process_time() - cpu:.1f} s of CPU)")
    return result


def write(line: str) -> None:
    """Tell the person who measures."""
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
