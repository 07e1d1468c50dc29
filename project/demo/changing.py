"""Changes a limit while requests are sent, and many times in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from project.demo.client import Client, client_of_each_process
from project.demo.report import Changed, Crowded
from project.demo.server import WORKERS
from project.demo.stage import Stage
from project.demo.traffic import ADMITTED, REFUSED, Flow, Request, Response, crowd
from project.demo.visitors import CHANGING, PING

__all__ = ["change_many_times", "change_while_flowing"]

_PLENTY: Final = 10_000
_EACH: Final = 20
"""Number of responses of each process before and after a change."""
_MORE: Final = 25


@dataclass(frozen=True, slots=True)
class Change:
    """A saved change, and the expected status of requests that were sent after `since` and answered before `until`."""

    words: str
    expected: int
    since: float
    until: float

    def seen_by(self, process: int, responses: Sequence[Response]) -> Changed:
        """Return how one process applied the change."""
        # Requests that overlap with the next change may be decided before or after it.
        clear = [one for one in responses if self.since <= one.started and one.ended <= self.until]
        mine = [one for one in clear if one.process == process]
        mine.sort(key=lambda one: one.started)
        right = [one.status == self.expected for one in mine]
        first = right.index(True) if True in right else -1
        after_ms = (mine[first].ended - self.since) * 1000 if mine else 0.0
        return Changed(self.words, process, first + 1, after_ms, sum(right), len(right))


@contextmanager
def _clients(site: Stage) -> Iterator[dict[int, Client]]:
    """Return an open connection to each server process, until the block ends; opening them is not limited."""
    with ExitStack() as stack:
        cookies = site.cookies[CHANGING.name]
        clients = client_of_each_process(site.address, WORKERS, path="/login/", cookies=cookies)
        for client in clients.values():
            stack.callback(client.close)
        yield clients


def change_while_flowing(site: Stage) -> tuple[list[Changed], Crowded]:
    """Raise and lower an exhausted limit while its visitor sends requests; then raise it by a known amount."""
    name, used = CHANGING.name, CHANGING.calls
    changes = []
    with _clients(site) as clients, Flow(clients.values(), name, PING) as flow:
        flow.wait_for(_EACH)
        for before, after, expected in ((used, _PLENTY, ADMITTED), (_PLENTY, used, REFUSED)):
            site.administrator.change_capacity(site.policy, after)
            since = perf_counter()
            flow.wait_for(_EACH, since)
            changes.append(Change(f"{name}: {before} to {after} calls", expected, since, perf_counter()))
    seen = [change.seen_by(process, flow.responses) for change in changes for process in sorted(clients)]
    used += sum(response.status == ADMITTED for response in flow.responses)
    return seen, _send_after(site, used)


def _send_after(site: Stage, used: int) -> Crowded:
    """Raise the limit slightly above its usage, and send twice as many requests: earlier usage still counts."""
    name = CHANGING.name
    site.administrator.change_capacity(site.policy, used + _MORE)
    requests = [Request(name, PING, site.cookies[name])] * (2 * _MORE)
    statuses = [one.status for one in crowd(site.address, requests)]
    words = f"{_MORE} more than the {used} used"
    return Crowded(name, words, len(requests), _MORE, statuses.count(ADMITTED), statuses.count(REFUSED))


def change_many_times(site: Stage, number: int) -> Iterator[bool]:
    """Change a limit repeatedly; return for each change whether it applied to the first request of every process.

    The limit is above and at its usage alternately, so a process with the previous limit decides differently.
    """
    used = 0
    with _clients(site) as clients:
        for turn in range(number):
            more = turn % 2 == 0
            site.administrator.change_capacity(site.policy, used + 2 * len(clients) if more else used)
            in_turn = list(clients.values()) if turn % 4 < 2 else list(reversed(clients.values()))
            statuses = [client.ask(PING).status for client in in_turn]
            used += statuses.count(ADMITTED)
            yield statuses == [ADMITTED if more else REFUSED] * len(clients)
