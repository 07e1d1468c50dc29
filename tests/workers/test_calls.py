"""Calls of workers, in every mode alike."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from threading import Event, current_thread
from typing import Any

import pytest

from limits_app.workers import ReturnWhen, TaskFuture, Worker, WorkerPool, gather, wait
from tests.workers.people import MODES, Archivist, Caller, Clerk, Gatekeeper, Unborn

SECONDS = 20
WHO: ContextVar[str] = ContextVar("who")
ROOT = Path(__file__).resolve().parents[2]


class Wanderer(Worker):
    async def who(self) -> str:
        return WHO.get()


async def _in_a_loop(call: Callable[[], Any]) -> Any:
    return call()


def test_calls_return_futures_of_results_and_errors_also_of_coroutines(clerk: WorkerPool[Clerk]) -> None:
    async def ask() -> list[Any]:
        return await asyncio.gather(clerk.say_name(), clerk.submit(Clerk.say_name))

    future = clerk.say_name()
    assert isinstance(future, TaskFuture)
    assert future.result(SECONDS) == "Bob"
    with pytest.raises(LookupError, match="no"):
        clerk.fail().result(SECONDS)
    with pytest.raises(LookupError, match="later"):
        clerk.fail_later().result(SECONDS)
    with pytest.raises(TypeError):
        clerk.tell().result(SECONDS)
    assert clerk.has_limits().result(SECONDS) is True
    assert clerk.tell_later(1).result(SECONDS) == [1]
    assert clerk.submit(Clerk.tell_later, 2).result(SECONDS) == [1, 2]
    # The same where an event loop runs already.
    assert asyncio.run(ask()) == ["Bob", "Bob"]
    assert asyncio.run(_in_a_loop(lambda: clerk.tell_later(3).result(SECONDS))) == [1, 2, 3]
    with pytest.raises(LookupError, match="later"):
        asyncio.run(_in_a_loop(lambda: clerk.fail_later().result(SECONDS)))


def test_calls_of_one_worker_meet_the_same_object_in_their_order(clerk: WorkerPool[Clerk]) -> None:
    futures = [clerk.tell(number) for number in range(300)]
    assert gather(futures, timeout=SECONDS) == [list(range(number + 1)) for number in range(300)]


def test_a_coroutine_where_an_event_loop_runs_already_sees_the_context_of_its_caller() -> None:
    async def ask() -> Any:
        WHO.set("Eve")
        with Wanderer.options().init() as wanderer:
            return wanderer.who().result()

    assert asyncio.run(ask()) == "Eve"


@pytest.mark.parametrize("name", ["unknown", "_secret", "__len__", "limits", "options"])
def test_only_public_methods_can_be_called(name: str) -> None:
    with Clerk.options().init() as clerk, pytest.raises(AttributeError, match=f"'{name}'"):
        getattr(clerk, name)


def test_without_options_a_worker_is_an_object_like_any_other() -> None:
    clerk = Clerk("Eve")
    assert clerk.say_name() == "Eve"
    assert clerk.has_limits()
    with pytest.raises(TypeError):
        Worker("what for?")  # type: ignore[call-arg]


def test_workers_run_in_the_place_of_their_mode() -> None:
    here = (os.getpid(), current_thread().name)
    with Clerk.options(mode="sync").init() as clerk:
        assert clerk.where().result(SECONDS) == here
    for mode in ("thread", "asyncio"):
        with Clerk.options(mode=mode).init() as clerk:
            pid, thread = clerk.where().result(SECONDS)
            assert pid == here[0]
            assert thread.startswith("Clerk-0")
    with Clerk.options(mode="process").init() as clerk:
        assert clerk.where().result(SECONDS)[0] != here[0]


def test_blocking_workers_return_results(mode: str) -> None:
    with Clerk.options(mode=mode, blocking=True).init() as clerk:
        assert clerk.tell(1) == [1]
        assert clerk.submit(Clerk.tell, 2).result(SECONDS) == [1, 2]
        with pytest.raises(LookupError):
            clerk.fail()
        assert clerk.get_pool_stats()["max_queued_tasks"] is None


def test_exception_of_init_is_raised_when_a_worker_is_made(mode: str) -> None:
    with pytest.raises(LookupError, match="unborn"):
        Unborn.options(mode=mode, max_workers=2).init()


def test_a_worker_on_demand_that_cannot_be_made_is_an_error_of_the_call(mode: str) -> None:
    with Unborn.options(mode=mode, on_demand=True).init() as unborn, pytest.raises(LookupError, match="unborn"):
        unborn.work().result(SECONDS)


def test_every_call_on_demand_has_a_worker_of_its_own(mode: str) -> None:
    with Clerk.options(mode=mode, on_demand=True, max_workers=2).init("Bob") as clerk:
        assert gather([clerk.tell(0), clerk.tell(1), clerk.tell_later(2)], timeout=SECONDS) == [[0], [1], [2]]


@pytest.mark.parametrize(("most", "working"), [(3, 3), (None, 10)], ids=["bounded", "as_many_as_calls"])
def test_workers_on_demand_are_bounded(gate: Event, most: int | None, working: int) -> None:
    with Gatekeeper.options(mode="thread", on_demand=True, max_workers=most).init(gate, Event()) as keeper:
        futures = [keeper.pass_through(number) for number in range(10)]
        assert keeper.get_pool_stats() == {
            "total_workers": working,
            "max_queued_tasks": None,
            "submission_queues": [
                {"index": 0, "worker_idx": 0, "capacity": most, "waiting": 10 - working, "in_flight": working}
            ],
        }
        gate.set()
        assert gather(futures, timeout=SECONDS) == list(range(10))


def test_a_worker_on_demand_may_call_another_one() -> None:
    with Caller.options(mode="thread", on_demand=True).init() as caller:
        assert caller.ask(caller, 5).result(SECONDS) == 5
    with Caller.options(mode="thread", on_demand=True, max_workers=1, blocking=True).init() as caller:
        assert caller.ask(caller, 5) == 5


def test_several_workers_take_turns(mode: str) -> None:
    with Clerk.options(mode=mode, max_workers=3).init() as clerks:
        told = gather([clerks.tell(number) for number in range(6)], timeout=SECONDS)
    assert told == [[0], [1], [2], [0, 3], [1, 4], [2, 5]]
    assert repr(clerks) == "<WorkerPool of 3 Clerk>"


def test_the_least_loaded_worker_gets_the_next_call(gate: Event) -> None:
    options = Gatekeeper.options(mode="thread", max_workers=2, load_balancing="least_loaded", max_queued_tasks=1)
    with options.init(gate, Event()) as keepers:
        for number in range(5):
            keepers.pass_through(number)
        assert keepers.get_pool_stats() == {
            "total_workers": 2,
            "max_queued_tasks": 1,
            "submission_queues": [
                {"index": 0, "worker_idx": 0, "capacity": 1, "waiting": 2, "in_flight": 1},
                {"index": 1, "worker_idx": 1, "capacity": 1, "waiting": 1, "in_flight": 1},
            ],
        }
        gate.set()


def test_a_random_choice_uses_every_worker() -> None:
    with Clerk.options(max_workers=2, load_balancing="random").init() as clerks:
        longest = max(len(told) for told in gather([clerks.tell(number) for number in range(200)]))
    assert 100 <= longest < 200


def test_modes_and_options_bound_the_calls_of_a_worker() -> None:
    by_mode = {mode: Clerk.options(mode=mode).capacity for mode in [*MODES, "celery", "ray"]}
    assert by_mode == {"sync": None, "thread": None, "process": 100, "asyncio": None, "celery": 3, "ray": 3}
    assert Clerk.options(mode="thread", max_queued_tasks=7).capacity == 7
    assert Clerk.options(mode="process", max_queued_tasks=None).capacity is None
    assert Clerk.options(mode="sync", max_queued_tasks=7).capacity is None  # where nothing can wait


def test_a_worker_that_calls_a_worker_in_the_same_thread_gets_its_answer() -> None:
    class Boss(Worker):
        def __init__(self, clerk: WorkerPool[Clerk]) -> None:
            self.clerk = clerk

        def ask(self) -> Any:
            return self.clerk.say_name().result(SECONDS)

    with Clerk.options().init("Bob") as clerk, Boss.options().init(clerk) as boss:
        assert boss.ask().result(SECONDS) == "Bob"


def test_interruption_of_a_call_is_raised_in_its_thread() -> None:
    with Clerk.options().init() as clerk:
        with pytest.raises(KeyboardInterrupt):
            clerk.stop_now()
        assert clerk.get_pool_stats()["submission_queues"][0]["in_flight"] == 0


@pytest.mark.parametrize("mode", ["thread", "asyncio", "process"])
def test_an_interruption_elsewhere_is_an_error_of_its_call(mode: str) -> None:
    with Clerk.options(mode=mode).init() as clerk:
        with pytest.raises(KeyboardInterrupt):
            clerk.stop_now().result(SECONDS)
        assert clerk.tell(1).result(SECONDS) == [1]


@pytest.mark.parametrize("mode", ["thread", "asyncio"])
def test_database_connections_are_looked_after_around_each_call(mode: str) -> None:
    with Archivist.options(mode=mode).init() as archivist:
        archivist.open().result(SECONDS)
        assert archivist.looked_at().result(SECONDS) == 2
        assert archivist.looked_at().result(SECONDS) == 4


def test_workers_need_no_django() -> None:
    script = (
        "import sys\n"
        "from limits_app.workers import Worker\n"
        "class One(Worker):\n"
        "    def work(self):\n"
        "        return 1\n"
        "with One.options(mode='thread').init() as one:\n"
        "    assert one.work().result() == 1\n"
        "assert 'django' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=ROOT, timeout=SECONDS, check=True)


def test_gathering_raises_the_first_error_immediately() -> None:
    never: Future[int] = Future()
    failed: Future[int] = Future()
    failed.set_exception(LookupError("one"))
    with pytest.raises(LookupError):
        gather([never, failed])


def test_gathering_respects_its_timeout() -> None:
    done: Future[int] = Future()
    done.set_result(1)
    with pytest.raises(TimeoutError, match="1 of 2 calls were not done after 0 seconds"):
        gather([done, Future()], timeout=0)
    assert gather([], timeout=0) == []


def test_finished_calls_are_separated_from_running_ones() -> None:
    never: Future[int] = Future()
    done: Future[int] = Future()
    done.set_result(1)
    assert wait([never, done], timeout=0) == ({done}, {never})
    assert wait(iter([never, done]), return_when=ReturnWhen.FIRST_COMPLETED) == ({done}, {never})
