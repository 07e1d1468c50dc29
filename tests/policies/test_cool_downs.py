"""Cool-downs of members that several processes share."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Any

import pytest
import time_machine
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connection, transaction
from pytest_django import DjangoAssertNumQueries

from limits_app import CallLimit, LimitSet, conf, limits
from limits_app.acquiring.balancing import Balancer, Cooling
from limits_app.engine.errors import InvalidLimit, InvalidRequest, LimitExceeded, UnknownPool, Unresolved
from limits_app.models import CoolDown
from limits_app.models.pool import keep_cool_down
from limits_app.outbound import LimitedClient, Request, Response
from limits_app.policies import balancers, balancing, resolver
from limits_app.policies.balancing import Balancers
from limits_app.testing import FakeClock
from tests.replacing import at_next_call
from tests.seconds import Seconds
from tests.servers.redis import redis_server
from tests.services.pool_rows import CALLS, NAME, make_pool, serve
from tests.services.wall import Wall

ROOT = Path(__file__).parents[2]
PROCESSES = 4


@pytest.fixture(autouse=True)
def seconds() -> Iterator[Seconds]:
    """Cool-downs are shared, and are read again when the test says so."""
    seconds = Seconds()
    with balancers.sharing(shares_cool_downs=True, clock=seconds):
        balancers.clear()
        yield seconds


def cooling(now: int) -> Cooling:
    """A cool-down of half a minute that begins now."""
    return Cooling(now + 30_000_000, 30_000_000)


def serving() -> str:
    return str(limits.pool(NAME).try_acquire().config["member"])


def test_cool_down_of_another_process_applies_to_the_next_acquire(clock: FakeClock) -> None:
    another = Balancers()
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    assert serving() == "a"
    another.report(NAME, "a", cooling(clock()))
    assert serving() == "b"
    assert limits.pool(NAME).cooling_seconds(0) == 30
    another.report(NAME, "a", Cooling(0, 0))
    assert serving() == "a"


def test_a_resource_with_a_pool_skips_a_member_that_another_process_has_reported(clock: FakeClock) -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover"))
    assert limits.try_acquire("chat").config["member"] == "a"
    Balancers().report(NAME, "a", cooling(clock()))
    assert limits.try_acquire("chat").config["member"] == "b"


def test_cool_downs_are_not_read_while_none_has_changed(
    seconds: Seconds, django_assert_num_queries: DjangoAssertNumQueries, clock: FakeClock
) -> None:
    serve("chat", make_pool({"a": [CallLimit(99, 3600)], "b": [CALLS]}, load_balancing="failover"))
    assert limits.try_acquire("chat")
    with django_assert_num_queries(0):
        for _ in range(5):
            seconds.now += 5
            assert limits.try_acquire("chat")
    Balancers().report(NAME, "a", cooling(clock()))
    with django_assert_num_queries(1):
        for _ in range(3):
            assert limits.try_acquire("chat").config["member"] == "b"


def test_without_an_announcement_they_are_read_when_limits_are(clock: FakeClock, seconds: Seconds) -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    assert serving() == "a"
    keep_cool_down(NAME, "a", cooling(clock()))
    assert serving() == "a"
    seconds.now += conf.get(conf.RESOLVER_TTL_SECONDS)
    assert serving() == "b"


def test_reports_of_many_rejected_requests_of_a_member_are_one_change(clock: FakeClock) -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    limits.report_upstream(NAME, "a", retry_after=29.5)
    version = limits.pool(NAME)[0].store.version()
    for _ in range(9):
        clock.advance(0.05)
        limits.report_upstream(NAME, "a", retry_after=29.5)
    assert limits.pool(NAME)[0].store.version() == version
    assert limits.pool(NAME).cooling_seconds(0) == pytest.approx(29.55)


def test_a_report_counts_immediately_in_its_process_and_another_one_reads_it(
    clock: FakeClock, seconds: Seconds
) -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover"))
    other = Balancers(clock=seconds)
    balancer = other.find(NAME, "failover", (1, 1))
    limits.report_upstream(NAME, "a", retry_after=30)
    assert limits.try_acquire("chat").config["member"] == "b"
    assert not balancer.cooling
    assert not other.must_read(NAME)
    other.drop_cool_downs()
    assert other.must_read(NAME)
    other.read_cool_downs(NAME)
    assert not other.must_read(NAME)
    assert balancer.cooling == {"a": cooling(clock())}
    limits.report_upstream(NAME, 0, retry_after=0)
    assert serving() == "a"
    assert not CoolDown.objects.exists()


@pytest.mark.parametrize("back", [30.001, 3600])
def test_a_cool_down_from_before_the_clock_was_set_back_is_over(clock: FakeClock, back: float) -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    limits.report_upstream(NAME, "a", retry_after=30)
    assert serving() == "b"
    clock.advance(-30)
    assert serving() == "b", "it would begin a cool-down later than now"
    clock.advance(30 - back)
    assert serving() == "a"
    limits.report_upstream(NAME, "a", retry_after=10)
    assert serving() == "b", "a new one counts, though it ends earlier"
    assert limits.pool(NAME).cooling_seconds(0) == pytest.approx(10, abs=0.01), "it ends at a whole second"


def test_a_cool_down_of_a_resource_from_before_the_clock_was_set_back_is_over() -> None:
    now = datetime.now(UTC)
    limits.set_resource_limits("chat", [CALLS])
    with time_machine.travel(now + timedelta(days=9), tick=False):
        limits.report_upstream("chat", retry_after=60)
        assert not limits.try_acquire("chat")
    resolver.clear()
    assert limits.try_acquire("chat")
    limits.report_upstream("chat", retry_after=60)
    assert not limits.try_acquire("chat")


@pytest.mark.parametrize("reported", [(30, 10), (10, 30)], ids=str)
def test_of_several_reports_the_one_that_ends_last_counts(reported: tuple[int, int]) -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    for retry_after in reported:
        limits.report_upstream(NAME, "a", retry_after=retry_after)
        assert serving() == "b"
    assert limits.pool(NAME).cooling_seconds(0) == 30
    assert [str(one) for one in CoolDown.objects.all()] == [f"a of {NAME}"]


@pytest.mark.parametrize(("remaining", "member"), [(None, "b"), (0, "b"), (1, "a"), (0.5, "a")])
def test_a_member_with_something_left_is_used(remaining: float | None, member: str) -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    limits.report_upstream(NAME, "a", retry_after=30, remaining=remaining)
    assert serving() == member


@pytest.mark.parametrize(
    ("pool", "member", "retry_after", "error"),
    [
        (NAME, "c", 1, InvalidRequest),
        (NAME, 2, 1, IndexError),
        (NAME, "a", -1, InvalidRequest),
        (NAME, "a", None, InvalidRequest),
        ("other", "a", 1, UnknownPool),
        (NAME, None, -1, InvalidRequest),
        (NAME, None, None, InvalidRequest),
        ("no resource", None, 1, InvalidLimit),
    ],
)
def test_an_invalid_report_changes_nothing(pool: str, member: Any, retry_after: Any, error: type[Exception]) -> None:
    make_pool({"a": [CALLS]})
    with pytest.raises(error):
        limits.report_upstream(pool, member, retry_after=retry_after)
    assert not CoolDown.objects.exists()


def test_a_resource_without_a_pool_cools_down(wall: Wall) -> None:
    limits.set_resource_limits("chat", [CALLS])
    assert limits.try_acquire("chat", entity="user:1")
    limits.report_upstream("chat", retry_after=29.2)
    limits.report_upstream("chat", retry_after=10, remaining=3)
    outcome = limits.try_acquire("chat", entity="user:1").outcome
    assert outcome == limits.check("chat", entity="user:1") == limits.explain("chat", entity="user:1").outcome
    assert (outcome.allowed, outcome.blocked, outcome.retry_after) == (False, False, 30)
    assert outcome.summary() == "the upstream of chat cools down: retry in 30 s"
    assert "Its upstream cools down for 30 s." in str(limits.explain("chat", entity="user:1"))
    assert limits.status("chat", entity="user:1").limits["call_count"]["used"] == 1
    with pytest.raises(LimitExceeded):
        limits.acquire("chat", timeout=29)
    assert limits.try_acquire("other")
    limits.set_emergency("off", reason="a test")
    assert limits.try_acquire("chat")
    limits.set_emergency("enforce")
    assert not limits.try_acquire("chat")
    limits.report_upstream("chat", retry_after=0)
    assert limits.try_acquire("chat")


def test_a_cool_down_of_a_resource_ends_by_itself(clock: FakeClock, wall: Wall) -> None:
    limits.report_upstream("chat", retry_after=30)
    held = limits.limit_set("chat")
    assert not held.try_acquire()
    wall.advance(seconds=30)
    clock.advance(30)
    assert held.try_acquire()
    assert limits.acquire("chat")
    assert limits.acquire("chat", timeout=None)


def test_reports_of_many_rejected_requests_are_one_change(wall: Wall) -> None:
    store = limits.limit_set("chat").store
    limits.report_upstream("chat", retry_after=30)
    version = store.version()
    for _ in range(9):
        wall.advance(milliseconds=1)
        limits.report_upstream("chat", retry_after=29.9)
    limits.report_upstream("chat", retry_after=20)
    assert store.version() == version


def test_a_failing_database_cools_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> bool:
        raise DatabaseError("down")

    with connection.execute_wrapper(fail):
        limits.report_upstream("chat", retry_after=30)
    assert "chat does not cool down, because the database is unavailable: down" in caplog.text
    assert limits.try_acquire("chat")


def test_a_client_without_a_pool_reports_by_itself() -> None:
    answers = [Response(status=200), Response(status=429, headers={"Retry-After": "30"})]

    class Model:
        async def send(self, request: Request) -> Response:
            return answers.pop(0)

        async def aclose(self) -> None: ...

    async def follow() -> None:
        report = partial(limits.areport_upstream, "chat")
        client = LimitedClient(Model(), LimitSet([CALLS]), report=lambda seconds: report(retry_after=seconds))
        assert (await client.send(Request(path="/"))).ok
        assert await limits.atry_acquire("chat")
        assert (await client.send(Request(path="/"))).refused
        assert not await limits.atry_acquire("chat")

    asyncio.run(follow())


def test_the_longest_cool_down_is_kept() -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    limits.report_upstream(NAME, "a", retry_after=9e9)
    assert serving() == "b"


def test_while_the_database_fails_the_last_cool_downs_stay(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise DatabaseError("down")

    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    assert serving() == "a"
    with connection.execute_wrapper(fail):
        limits.report_upstream(NAME, "a", retry_after=30)
        assert f"other processes were not notified that a of the pool {NAME} cools down: down" in caplog.text
        balancers.drop_cool_downs()
        assert serving() == "b"


def test_a_report_during_a_read_is_not_lost() -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    assert serving() == "a"

    reports = iter([30])

    def report_after_read(execute: Callable[..., Any], sql: str, *details: Any) -> Any:
        read = execute(sql, *details)
        if CoolDown._meta.db_table in sql and (seconds := next(reports, None)):
            limits.report_upstream(NAME, "a", retry_after=seconds)
        return read

    balancers.drop_cool_downs()
    with connection.execute_wrapper(report_after_read):
        assert serving() == "b"


class SlowReads:
    """Reads cool-downs that the test changes; each read waits for the test, from `began` until `may_end`."""

    def __init__(self) -> None:
        self.rows: dict[str, Cooling] = {}
        self.began, self.may_end = Semaphore(0), Semaphore(0)
        self.count = 0

    def __call__(self, pool: str) -> dict[str, Cooling]:
        self.count += 1
        rows = self.rows
        self.began.release()
        assert self.may_end.acquire(timeout=20)
        return rows

    def let_end(self, reads: int = 1) -> None:
        self.may_end.release(reads)


def seen_by_a_thread(used: Balancers, pool: ThreadPoolExecutor) -> Future[dict[Hashable, Cooling]]:
    """The cool-downs by which a thread decides."""
    return pool.submit(lambda: {**used.find(NAME, "failover", (1, 1)).cooling})


OLD, NEW = {"a": Cooling(1, 1)}, {"b": Cooling(2, 2)}


def test_rows_that_were_read_before_a_change_do_not_replace_newer_ones() -> None:
    reads = SlowReads()
    used, reads.rows = Balancers(read=reads), OLD
    with ThreadPoolExecutor(2) as pool:
        first = seen_by_a_thread(used, pool)
        assert reads.began.acquire(timeout=20)
        reads.rows = NEW
        used.drop_cool_downs()
        second = seen_by_a_thread(used, pool)
        reads.let_end(4)
        assert (first.result(), second.result()) == (NEW, NEW)
    assert used.find(NAME, "failover", (1, 1)).cooling == NEW
    assert reads.count == 2


def test_a_thread_waits_for_the_read_of_another_one() -> None:
    reads = SlowReads()
    used, reads.rows = Balancers(read=reads), NEW
    with ThreadPoolExecutor(5) as pool:
        decided = [seen_by_a_thread(used, pool) for _ in range(5)]
        assert reads.began.acquire(timeout=20)
        assert not wait(decided, timeout=0.05).done
        reads.let_end()
        assert [thread.result() for thread in decided] == [NEW] * 5
    assert reads.count == 1


def test_a_read_that_hangs_delays_others_only_for_a_while() -> None:
    reads = SlowReads()
    used, reads.rows = Balancers(read=reads, wait_seconds=0.01), OLD
    with ThreadPoolExecutor(2) as pool:
        decided = {seen_by_a_thread(used, pool)}
        assert reads.began.acquire(timeout=20)
        reads.rows = NEW
        used.drop_cool_downs()
        decided.add(seen_by_a_thread(used, pool))
        assert reads.began.acquire(timeout=20)
        reads.let_end(4)
        assert [thread.result() for thread in decided] == [NEW, NEW]


@pytest.mark.slow
def test_each_thread_decides_by_the_last_change_before_it(seconds: Seconds) -> None:
    """The number of a change is the end of the cool-down."""
    changes = {"a": Cooling(0, 1)}

    def read(pool: str) -> dict[str, Cooling]:
        rows = {**changes}
        Event().wait(1e-4)  # other threads run meanwhile
        return rows

    used = Balancers(clock=seconds, read=read)
    used.find(NAME, "failover", (1, 1))
    is_over = False

    def outdated() -> list[tuple[int, int]]:
        decided = []
        while not is_over:
            last = announced
            decided.append((last, used.find(NAME, "failover", (1, 1)).cooling["a"].until))
        return [(last, seen) for last, seen in decided if seen < last]

    announced = 0
    with ThreadPoolExecutor(4) as pool:
        threads = [pool.submit(outdated) for _ in range(4)]
        for number in range(1, 200):
            changes["a"] = Cooling(number, 1)
            used.drop_cool_downs()
            announced = number
            Event().wait(1e-4)
        is_over = True
        assert [thread.result() for thread in threads] == [[]] * 4


def test_cool_downs_that_could_not_be_read_are_read_a_second_later(seconds: Seconds) -> None:
    errors: list[Exception] = [Unresolved("down"), SynchronousOnlyOperation()]

    def read(pool: str) -> dict[str, Cooling]:
        if errors:
            raise errors.pop()
        return NEW

    used = Balancers(clock=seconds, read=read)
    for remaining in (1, 0):
        assert not used.find(NAME, "failover", (1, 1)).cooling
        assert len(errors) == remaining
        seconds.now += 0.9
        assert not used.must_read(NAME)
        seconds.now += 0.1
    assert used.find(NAME, "failover", (1, 1)).cooling == NEW


def test_a_child_process_does_not_wait_for_a_thread_of_its_parent() -> None:
    reads = SlowReads()
    used = Balancers(read=reads)
    with ThreadPoolExecutor(2) as pool:
        decided = [seen_by_a_thread(used, pool)]
        assert reads.began.acquire(timeout=20)
        used.after_fork()  # a child calls it
        decided.append(seen_by_a_thread(used, pool))
        assert reads.began.acquire(timeout=4), "it would wait for 5 seconds"
        reads.let_end(2)
        assert [thread.result() for thread in decided] == [{}, {}]


def test_a_report_that_is_rolled_back_is_known_to_its_process_until_it_reads_again(seconds: Seconds) -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    with transaction.atomic():
        limits.report_upstream(NAME, "a", retry_after=30)
        transaction.set_rollback(True)
    assert serving() == "b"
    seconds.now += conf.get(conf.RESOLVER_TTL_SECONDS)
    assert serving() == "a"


def test_for_asyncio_a_thread_reads_and_writes(clock: FakeClock) -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover"))

    async def follow() -> list[object]:
        found = []
        for report in (0, 30, 0):
            await limits.areport_upstream(NAME, "a", retry_after=report)
            found.append((await limits.atry_acquire("chat")).config["member"])
        await asyncio.to_thread(Balancers().report, NAME, "a", cooling(clock()))
        found.append((await limits.atry_acquire("chat")).config["member"])
        return found

    assert asyncio.run(follow()) == ["a", "b", "a", "b"]


def test_a_call_in_a_coroutine_that_may_not_read_the_database_uses_the_last_cool_downs() -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover"))
    assert limits.try_acquire("chat")
    limits.report_upstream(NAME, "a", retry_after=30)
    balancers.drop_cool_downs()

    async def follow() -> object:
        return limits.try_acquire("chat").config["member"]

    assert asyncio.run(follow()) == "b"


def test_a_report_of_a_pool_that_this_process_does_not_use_is_kept_for_others() -> None:
    unused = Balancers()
    unused.report(NAME, "a", Cooling(1, 1))
    unused.read_cool_downs(NAME)
    assert not unused.must_read(NAME)
    assert CoolDown.objects.get().until == 1_000_000


@pytest.mark.release
def test_all_processes_see_the_member_that_cools_down(tmp_path: Path) -> None:
    with redis_server() as server:
        environment = os.environ | {
            "LIMITS_DEMO_DATABASE": str(tmp_path / "site.sqlite3"),
            "LIMITS_DEMO_STATE_DIR": str(tmp_path / "state"),
            "COOLING_REDIS": server.url,
            "PYTHONPATH": str(ROOT),
        }
        script = [sys.executable, str(Path(__file__).with_name("cooling_process.py"))]
        processes = [
            subprocess.Popen(
                script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT, text=True
            )
            for _ in range(PROCESSES)
        ]
        try:
            assert answers(processes[:1], "prepare") == ["done"]
            assert answers(processes, "acquire") == ["aaa"] * PROCESSES
            assert answers(processes, *[f"report a {number * 100}" for number in (1, 9, 2, 3)]) == ["done"] * PROCESSES
            assert answers(processes, "acquire") == ["bbb"] * PROCESSES
            assert answers(processes[:1], "report a 0") == ["done"]
            assert answers(processes, "acquire") == ["aaa"] * PROCESSES
            for number in range(20):  # the next acquire of another process
                first, second = processes[number % 2 :: 2][:2]
                assert answers([second], "plain") == ["+++"]
                assert answers([first], f"cool {100 + number}") == ["done"]
                assert answers(processes, "plain") == ["---"] * PROCESSES
                assert answers([second], "cool 0") == ["done"]
                assert answers(processes, "plain") == ["+++"] * PROCESSES
        finally:
            for process in processes:
                process.communicate(timeout=20)
    assert [process.returncode for process in processes] == [0] * PROCESSES


def answers(processes: list[subprocess.Popen[str]], *lines: str) -> list[str]:
    """What each process answers to its line, or to the only one; all of them follow theirs at the same time."""
    commands = lines if len(lines) == len(processes) else lines * len(processes)
    for process, line in zip(processes, commands, strict=True):
        assert process.stdin
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return [process.stdout.readline().strip() for process in processes if process.stdout]


def test_pools_may_be_used_by_code_that_interrupts_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer or a signal handler runs in a thread that may hold the lock."""
    used = Balancers()
    used.shares_cool_downs = False

    def interrupted(usual: Callable[[str], type[Balancer]], load_balancing: str) -> type[Balancer]:
        used.report("other", "a", Cooling(1, 1))
        return usual(load_balancing)

    at_next_call(monkeypatch, balancing, "balancer_named", interrupted)
    thread = Thread(target=used.find, args=("pool", "round_robin", (1.0,)), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert used.are_used
