"""Rows of real traffic: gunicorn with 2 sync workers and a site with 100 URL rules, under load from this machine.

Each turn has users of its own: 50 who were seen by both workers before, or 20,000 of whom few are seen twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final, NamedTuple

from benchmarks.harness import Effort, Figure, Samples, Turn, absolute, in_turns
from benchmarks.load import Outcome, Target, send, visit
from benchmarks.references import redis_server
from benchmarks.rows import Bar, Line, Row, Skipped, at_least, at_most
from benchmarks.site import PATH, PROCESS_HEADER, ROOT, USER_HEADER, Site
from benchmarks.subjects import OURS
from project.demo.server import listen

__all__ = ["ROWS", "served", "traffic"]

Load = Callable[[Target, float], Outcome]

_WARM: Final = 50
_MANY: Final = 20_000
_WORKERS: Final = 2
_ROUNDS: Final = 5
_PROCESSES: Final = Path("/proc")
_TURN: Final = 40
"""A turn of a server is as many times as long as one of a function: 2 seconds."""
_PATIENCE_SECONDS: Final = 60
_VISITOR: Final = 1_000_000_000
"""The user whose requests start the workers, and who is in no turn."""
_TIMES_BEFORE: Final = 2

_PLAIN: Final = "no limits"
_PLAIN_API: Final = "no throttle"
_RATELIMIT: Final = "@ratelimit, local memory cache"
_RATELIMIT_REDIS: Final = "@ratelimit, Redis cache"
_THEIRS: Final = "DRF's own throttle, local memory cache"
_THEIRS_REDIS: Final = "DRF's own throttle, Redis cache"
_PLENTY: Final = 1_000_000_000
_READY_SECONDS: Final = 240
_MEMORY: Final = {"KIND": "memory"}

Compared = Mapping[str, tuple[str, str, Mapping[int, Bar]]]
"""For each of our contenders: which other it is compared with, the unit, and the bar by number of users."""

_MIDDLEWARE_BARS: Final[Compared] = {
    f"{OURS}, process store": (_PLAIN, "x no limits", {_WARM: at_least(0.72), _MANY: at_least(0.68)}),
    f"{OURS}, memory": (_PLAIN, "x no limits", {_WARM: at_least(0.83), _MANY: at_least(0.77)}),
    f"{OURS}, Redis": (_RATELIMIT_REDIS, "x @ratelimit", {_WARM: at_least(1.1), _MANY: at_least(1.0)}),
}
_THROTTLE_BARS: Final[Compared] = {
    f"{OURS}, process store": (_THEIRS, "x DRF's own", {}),
    f"{OURS}, memory": (_THEIRS, "x DRF's own", {_WARM: at_least(0.95), _MANY: at_least(0.9)}),
    f"{OURS}, Redis": (_THEIRS_REDIS, "x DRF's own", {_WARM: at_least(0.95), _MANY: at_least(0.9)}),
}


def _middleware(effort: Effort) -> Iterable[Line]:
    _need("gunicorn", "django_ratelimit")
    with Site.on_sqlite() as site, redis_server() as port:
        contenders = {
            _PLAIN: site,
            _RATELIMIT: replace(site, view="ratelimit"),
            _RATELIMIT_REDIS: replace(site, view="ratelimit", cache=_cache(port)),
            f"{OURS}, process store": site.limited(),
            f"{OURS}, memory": site.limited(_MEMORY),
            f"{OURS}, Redis": site.limited(_store(port)),
        }
        yield from _compared(contenders, _PLAIN, _MIDDLEWARE_BARS, effort)


def _throttle(effort: Effort) -> Iterable[Line]:
    _need("gunicorn", "rest_framework")
    with Site.on_sqlite() as site, redis_server() as port:
        contenders = {
            _PLAIN_API: replace(site, view="api"),
            _THEIRS: replace(site, view="their throttle"),
            _THEIRS_REDIS: replace(site, view="their throttle", cache=_cache(port)),
            f"{OURS}, process store": site.limited(view="our throttle", middleware=()),
            f"{OURS}, memory": site.limited(_MEMORY, view="our throttle", middleware=()),
            f"{OURS}, Redis": site.limited(_store(port), view="our throttle", middleware=()),
        }
        yield from _compared(contenders, _PLAIN_API, _THROTTLE_BARS, effort)


def _compared(contenders: Mapping[str, Site], plain: str, compared: Compared, effort: Effort) -> Iterable[Line]:
    rounds, seconds = effort.long_rounds(_ROUNDS), _TURN * effort.turn_seconds
    samples = traffic(contenders, (_WARM, _MANY), rounds=rounds, seconds=seconds)
    for users, turns in samples.items():
        for name, (peer, unit, bars) in compared.items():
            yield Line(f"{name}, {users:,} users", turns.speed(name, peer), unit, bars.get(users))
        for name in contenders:
            if name != plain and compared.get(name, ("",))[0] != plain:
                yield Line(f"  {name}, {users:,} users", turns.speed(name, plain), f"x {plain}")
        for name in contenders if _PROCESSES.exists() else ():
            if name != plain:
                yield Line(f"  {_workers(name)}", turns.ratio(_workers(name), _workers(plain)), f"x {plain}")
        rates = [1 / seconds for seconds in turns.figures(plain)]
        yield Line(f"  {plain}, {users:,} users", Figure(median(rates), max(rates)), "requests/s")


def traffic(
    contenders: Mapping[str, Site], users: Iterable[int], *, rounds: int, seconds: float, load: Load = send
) -> dict[int, Samples]:
    """Serve all contenders, and load them in turns with so many users; gives the turns by number of users.

    The name of a contender has its seconds per request, and `_workers` of it the processor time of its workers.
    """
    first_users = count(1, _MANY)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(served(site)) for name, site in contenders.items()}

        def turn(name: str, users: int, spent: Samples) -> Turn:
            target = Target(servers[name].port, PATH, USER_HEADER, next(first_users), users)
            if users == _WARM:
                visit(target, _TIMES_BEFORE)
            before = servers[name].processor_seconds()
            outcome = load(target, seconds)
            used = servers[name].processor_seconds() - before
            spent.turns.setdefault(_workers(name), []).append(Turn(used / outcome.requests))
            return Turn(outcome.seconds / outcome.requests, outcome.p99)

        def measured(users: int) -> Samples:
            spent = Samples()
            samples = in_turns({name: partial(turn, name, users, spent) for name in servers}, rounds)
            return Samples(samples.turns | spent.turns)

        return {number: measured(number) for number in users}


def _workers(name: str) -> str:
    return f"{name}, processor time"


class Server(NamedTuple):
    """A server of two workers, and its port."""

    process: subprocess.Popen[bytes]
    port: int

    def processor_seconds(self) -> float:
        """What the workers have used of the processors; 0 where the system does not tell."""
        children = _PROCESSES / str(self.process.pid) / "task" / str(self.process.pid) / "children"
        if not children.exists():
            return 0
        stats = [
            (_PROCESSES / pid / "stat").read_text().rpartition(")")[2].split() for pid in children.read_text().split()
        ]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(site: Site) -> Iterator[Server]:
    """Serve a site by gunicorn until the end of the block."""
    with TemporaryDirectory(prefix="benchmark-server-") as directory, listen() as listener:
        log = Path(directory) / "log"
        options = [f"--bind=fd://{listener.fileno()}", f"--workers={_WORKERS}", "--worker-class=sync", "--timeout=60"]
        command = [sys.executable, "-m", "gunicorn", *options, "--no-control-socket"]
        command += ["django.core.wsgi:get_wsgi_application()"]
        with log.open("wb") as output:
            server = subprocess.Popen(
                command,
                cwd=ROOT,
                env=site.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        try:
            port = listener.getsockname()[1]
            listener.close()  # so that connections fail where the server has ended
            _await_workers(Target(port, PATH, USER_HEADER, _VISITOR, 1))
            yield Server(server, port)
        except Exception as error:
            error.add_note(log.read_text(errors="replace")[-2000:])
            raise
        finally:
            _stop(server)


def _await_workers(target: Target) -> None:
    """Send requests until all workers have answered."""
    processes: set[bytes] = set()
    deadline = monotonic() + _PATIENCE_SECONDS
    header = f"\r\n{PROCESS_HEADER}: ".encode()
    while len(processes) < _WORKERS:
        assert monotonic() < deadline, f"only {len(processes)} of {_WORKERS} workers answer"
        processes.update(response.partition(header)[2].split(b"\r\n")[0] for response in visit(target, _TIMES_BEFORE))


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Stop a server and its workers."""
    server.terminate()
    try:
        server.wait(timeout=_PATIENCE_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _first_request(effort: Effort) -> Iterable[Line]:
    with Site.on_sqlite() as site:
        figures = site.limited(_MEMORY).run("first_requests", effort.sized(500, 50))
    for label, kind, bar in (("", "request", at_most(1.5)), (", limits.acquire", "acquire", None)):
        firsts, seconds = figures[kind]["first"], figures[kind]["second"]
        ratios = [first / second for first, second in zip(firsts, seconds, strict=True)]
        figure = Figure(median(ratios), ratios[seconds.index(min(seconds))])
        yield Line(f"{OURS}{label}, the first against the second", figure, "x", bar)
        queries = absolute([figures[kind]["queries"]])
        yield Line(f"{OURS}{label}, the first", queries, "queries", at_most(0))
        yield Line(f"  {OURS}{label}, the first", absolute(firsts, tail=True), "us")
        yield Line(f"  {OURS}{label}, the second", absolute(seconds, tail=True), "us")


def _first_of_client_with_row(effort: Effort) -> Iterable[Line]:
    from tests.servers.postgres import postgres_server

    clients = effort.sized(100, 20)
    try:
        started = postgres_server()
    except AssertionError as reason:
        raise Skipped(str(reason)) from reason
    with started as server, TemporaryDirectory(prefix="benchmark-site-") as directory:
        site = Site(server.settings, limits={"STATE_DIR": directory})
        site.run("prepare")
        site.run("rows_of_users", clients, _PLENTY)
        figures = site.run("first_acquires", 1, clients)
    yield Line(f"{OURS}, limits.acquire", absolute(figures["python"], tail=True), "us of Python", at_most(600))
    yield Line(f"{OURS}, limits.acquire", absolute(figures["queries"]), "queries", at_most(1))
    yield Line(f"  {OURS}, limits.acquire, in all", absolute(figures["whole"], tail=True), "us")


def _unmatched(effort: Effort) -> Iterable[Line]:
    with Site.on_sqlite() as site, redis_server() as port:
        stores = {"process store": None, "memory": _MEMORY, "Redis": _store(port)}
        for where, store in stores.items():
            limited, laps = site.limited(store), effort.sized(2_000, 200)
            figures = [limited.run("unmatched", laps) for _ in range(effort.sized(5, 1))]
            bar = None if where == "Redis" else at_most(15)
            yield Line(f"{OURS}, {where}, added to the request", absolute([one["added"] for one in figures]), "us", bar)
            if figures[0]["calls"] is not None:
                calls = [one["calls"] for one in figures]
                yield Line(f"{OURS}, {where}", absolute(calls), "calls each", at_most(0.05))


def _memory(effort: Effort) -> Iterable[Line]:
    if not Path("/proc/self/smaps_rollup").exists():
        raise Skipped("the memory of a process is read from /proc")
    entities = effort.sized(1_000_000, 20_000)
    with Site.on_sqlite() as few, Site.on_sqlite() as many:
        many.run("entities", entities)
        sites = few.limited(), many.limited()
        figures = [[site.run("memory", _READY_SECONDS) for site in sites] for _ in range(effort.sized(3, 1))]
    grown = [(more["bytes"] - less["bytes"]) / 2**20 for less, more in figures]
    yield Line(f"{OURS}, with {entities:,} rows more than with none", absolute(grown), "MB", at_most(4))
    for label, index in (("without rows", 0), (f"with {entities:,} rows", 1)):
        seconds = [pair[index]["first_seconds"] for pair in figures]
        yield Line(f"  {OURS}, {label}, until the first response", absolute(seconds), "s")


def _others(effort: Effort) -> Iterable[Line]:
    with Site.on_sqlite() as site:
        figures = site.run("others", effort.sized(20, 5), effort.sized(1_000, 100))
    changed, rolled_back = figures["changed"], figures["rolled back"]
    for label, kind, bar in (("the first of the process", "first", 3), ("the rest", "rest", 1.2)):
        ratios = [after / before for after, before in zip(changed[kind], rolled_back[kind], strict=True)]
        quietest = ratios[rolled_back[kind].index(min(rolled_back[kind]))]
        yield Line(f"{OURS}, {label}", Figure(median(ratios), quietest), "x after a rollback", at_most(bar))
    yield Line(f"{OURS}, all others together", absolute(figures["queries"]), "queries", at_most(0))
    for label, kind in (("the first of the process", "first"), ("the rest", "rest")):
        yield Line(f"  {OURS}, {label}, after a rollback", absolute(rolled_back[kind]), "us")


def _need(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise Skipped(f"not installed: {', '.join(missing)}")


def _cache(port: int) -> Mapping[str, Any]:
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://127.0.0.1:{port}/1"}


def _store(port: int) -> Mapping[str, Any]:
    """A store that a busy machine may keep waiting, as it may the caches, which have no timeouts."""
    timeouts = {"CONNECT_TIMEOUT_SECONDS": 5, "REPLY_TIMEOUT_SECONDS": 5}
    return {"KIND": "redis", "URL": f"redis://127.0.0.1:{port}/0", **timeouts}


ROWS: Final = (
    Row("server: middleware, requests per second", _middleware),
    Row("server: DRF throttle, requests per second", _throttle),
    Row("server: the first request of a client without rows", _first_request),
    Row("server: the first request of a client with a row, PostgreSQL", _first_of_client_with_row),
    Row("server: a request that no URL rule matches", _unmatched),
    Row("server: memory of a process with 1,000,000 entity rows", _memory),
    Row("server: requests of others after a change of one client", _others),
)
