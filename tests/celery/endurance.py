"""Two workers of four processes against one limit, while one is killed every few seconds in the middle of a task.

`python -m tests.celery.endurance --seconds 60` prints the result, and ends with 1 where that is not good enough.
A process that is killed between what a task does and the note that it is done leaves a task that is run again, which no
queue can avoid: `repeated` says how often that was, and `twice` how often it was to be seen, since what the task does
has the id of the task as its idempotency key.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Final

from tests.celery.site import CelerySite, celery_site

PER_SECOND: Final = 20
WINDOW_US: Final = 1_000_000
VISIBILITY_SECONDS: Final = 10
GOOD_SHARE: Final = 0.97
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

    @property
    def good(self) -> bool:
        """Whether nothing was lost, run twice or let through too much, and enough was let through."""
        return self.lost == self.twice == 0 and self.fullest_window <= PER_SECOND and self.share >= GOOD_SHARE


def endure(seconds: float, kill_every: float) -> Endured:
    """Keep tasks coming for so long, kill a process again and again, and wait until all tasks are done."""
    with celery_site(visibility_seconds=VISIBILITY_SECONDS) as site:
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


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kill-every", type=float, default=10)
    options = parser.parse_args()
    found = endure(options.seconds, options.kill_every)
    print(found)  # noqa: T201 - it is what a command is for
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
