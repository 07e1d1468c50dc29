"""Two workers of four processes against one limit, while one is killed every few seconds in the middle of a task.

A process that is killed between what a task does and the note that it is done leaves a task that is run again, which no
queue can avoid: `repeated` says how often that was, and `twice` how often it was to be seen, since what the task does
has the id of the task as its idempotency key.
"""

from __future__ import annotations

import os
import signal
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Final

import pytest

from tests.celery.site import CelerySite, celery_site

pytestmark = pytest.mark.product

PER_SECOND: Final = 20
WINDOW_US: Final = 1_000_000
VISIBILITY_SECONDS: Final = 10
BACKLOG: Final = 100


@dataclass(frozen=True, slots=True)
class Endured:
    """What came of a run: times in microseconds of the server's clock, from the first full second on."""

    sent: int
    lost: int
    twice: int
    repeated: int
    begun_again: int
    fullest_window: int
    share: float
    kills: int


def endure(seconds: float, kill_every: float) -> Endured:
    """Keep tasks coming for so long, kill a process again and again, and wait until all tasks are done."""
    with celery_site(visibility_seconds=VISIBILITY_SECONDS) as site:
        site.prepare()
        site.start_worker()
        site.start_worker()
        site.until_ready()
        started, sent, kills, pause = monotonic(), 0, 0, Event()
        while (elapsed := monotonic() - started) < seconds:
            while sent < elapsed * PER_SECOND + BACKLOG:
                site.send("endure", sent)
                sent += 1
            if (kills + 1) * kill_every < elapsed < seconds - 1:
                kills += _kill_a_process(site)
            pause.wait(0.01)
        _until_done(site, sent)
        return _judged(site, sent, kills, seconds)


def _kill_a_process(site: CelerySite) -> bool:
    """Kill the process that has begun the latest task, if it is in the middle of it."""
    begun = site.lines("begun")
    if not begun:
        return False
    number, pid = begun[-1][0].split("/")
    os.kill(int(pid), signal.SIGSTOP)  # so that it stays where it is while we look
    in_the_middle = number not in {text for text, _ in site.lines("done")}
    os.kill(int(pid), signal.SIGKILL if in_the_middle else signal.SIGCONT)
    return in_the_middle


def _until_done(site: CelerySite, sent: int) -> None:
    deadline, pause = monotonic() + 60, Event()
    while len({text for text, _ in site.lines("done")}) < sent and monotonic() < deadline:
        pause.wait(0.2)
    pause.wait(VISIBILITY_SECONDS)  # whatever would run twice has its chance


def _judged(site: CelerySite, sent: int, kills: int, seconds: float) -> Endured:
    done = Counter(text for text, _ in site.lines("done"))
    ended = Counter(text for text, _ in site.lines("ended"))
    begun = Counter(text.split("/")[0] for text, _ in site.lines("begun"))
    moments = sorted(moment for _, moment in site.lines("begun"))
    fullest = max(place - bisect_left(moments, moment - WINDOW_US + 1) + 1 for place, moment in enumerate(moments))
    within = bisect_left(moments, moments[0] + int(seconds * 1_000_000))
    return Endured(
        sent=sent,
        lost=sent - len(done),
        twice=sum(done.values()) - len(done),
        repeated=sum(ended.values()) - len(ended),
        begun_again=sum(begun.values()) - len(begun),
        fullest_window=fullest,
        share=within / (PER_SECOND * seconds),
        kills=kills,
    )


@pytest.mark.slow
@pytest.mark.release
def test_killed_processes_lose_no_task_and_none_is_done_twice() -> None:
    found = endure(10, kill_every=4)
    assert (found.lost, found.twice) == (0, 0)
    assert found.begun_again == found.kills > 0
    assert found.fullest_window <= PER_SECOND
    assert found.share > 0.5  # a machine that does nothing else uses more
