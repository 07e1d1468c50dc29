"""Workers in processes: what may happen to a process, and what does not get there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from threading import Lock

import pytest

from limits_app.workers import gather
from limits_app.workers.futures import Call, Task
from tests.forking import exit_code_of_child
from tests.replacing import without_package
from tests.servers.redis import until
from tests.workers.people import MODES, Clerk, Homebody, Mortal, Unborn, back_end_of

SECONDS = 60
ROOT = Path(__file__).resolve().parents[2]


def finished(script: str) -> subprocess.CompletedProcess[bytes]:
    """A program that has ended, and whose output is at an end."""
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, timeout=SECONDS, check=False
    )


def test_only_the_call_during_which_a_process_dies_is_lost() -> None:
    with Mortal.options(mode="process").init() as mortal:
        before = mortal.pid()
        killed = mortal.die()
        after = [mortal.pid() for _ in range(150)]
        with pytest.raises(BrokenProcessPool):
            killed.result(SECONDS)
        pids = set(gather(after, timeout=SECONDS))
        assert len(pids) == 1
        assert before.result() not in pids
        assert mortal.get_pool_stats()["submission_queues"][0]["in_flight"] == 0


def test_calls_during_the_deaths_of_a_process_are_all_answered() -> None:
    with Mortal.options(mode="process", max_queued_tasks=None).init() as mortal:
        calls = [mortal.die() if number % 50 == 0 else mortal.pid() for number in range(400)]
        lost = [number for number, call in enumerate(calls) if call.exception(SECONDS) is not None]
    assert lost == list(range(0, 400, 50))


def test_exception_says_where_it_was_raised_in_the_process() -> None:
    with Clerk.options(mode="process").init() as clerk, pytest.raises(LookupError, match="broken") as error:
        clerk.fail("broken").result(SECONDS)
    assert "in fail" in error.value.__notes__[0]


def test_processes_of_a_pool_that_is_not_stopped_end_with_the_program() -> None:
    script = (
        "from tests.workers.people import Mortal\n"
        "if __name__ == '__main__':\n"
        "    mortal = Mortal.options(mode='process').init()\n"
        "    print(mortal.pid().result() > 0)\n"
    )
    done = finished(script)
    assert (done.returncode, done.stdout) == (0, b"True\n")


def test_each_death_costs_one_call() -> None:
    with Mortal.options(mode="process", max_queued_tasks=10).init() as mortal:
        calls = [mortal.die() if number % 2 else mortal.pid() for number in range(5)]
        failed = [call.exception(SECONDS) is not None for call in calls]
    assert failed == [False, True, False, True, False]


def test_a_process_that_dies_with_nothing_to_do_is_replaced() -> None:
    with Mortal.options(mode="process").init() as mortal:
        before = mortal.pid().result(SECONDS)
        mortal.die_after_this().exception(SECONDS)
        back_end_of(mortal)._process._process.join(SECONDS)
        assert mortal.pid().result(SECONDS) != before


def test_calls_fail_when_a_dead_process_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError("no more processes")

    with Mortal.options(mode="process").init() as mortal:
        with monkeypatch.context() as patch:
            patch.setattr("multiprocessing.util.spawnv_passfds", refuse)
            killed, behind, later = mortal.die(), mortal.pid(), mortal.pid()
            assert isinstance(killed.exception(SECONDS), BrokenProcessPool)
            for call in (behind, later):
                with pytest.raises(OSError, match="no more processes"):
                    call.result(SECONDS)
        back_end_of(mortal).interrupt()
        assert mortal.get_pool_stats()["submission_queues"][0]["in_flight"] == 0


def test_a_call_that_is_cancelled_on_its_way_is_not_made() -> None:
    with Clerk.options(mode="process").init() as clerk:
        ended: list[Task] = []
        task = Task(Call("tell", ("never",), {}), lambda: None, ended.append)
        assert task.future.cancel()
        back_end_of(clerk).run(task)
        assert clerk.tell("first").result(SECONDS) == ["first"]
        assert ended == [task]


def test_a_worker_that_dies_when_it_is_made_is_an_error_when_it_is_made() -> None:
    with pytest.raises(BrokenProcessPool):
        Mortal.options(mode="process").init(dies=True)


def test_on_demand_a_worker_that_dies_when_it_is_made_loses_its_call_only() -> None:
    with Mortal.options(mode="process", on_demand=True).init(dies=True) as mortal, pytest.raises(BrokenProcessPool):
        mortal.pid().result(SECONDS)


def test_a_process_sets_django_up_where_it_is_set_up_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with Mortal.options(mode="process").init() as mortal:
        assert mortal.has_django().result(SECONDS) is False
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "project.settings")
    with Mortal.options(mode="process").init() as mortal:
        assert mortal.has_django().result(SECONDS) is True


def test_unpicklable_value_is_an_error_of_its_call_and_not_the_end_of_the_worker() -> None:
    with Mortal.options(mode="process").init() as mortal:
        before = mortal.pid().result(SECONDS)
        for call, error, text in (
            (mortal.raise_what_cannot_travel(), RuntimeError, "Untravelled: one and two"),
            (mortal.give(Lock()), TypeError, "pickle"),
            (mortal.give(Homebody()), LookupError, "far from home"),
            (mortal.give_unreadable(), TypeError, "two"),
            (mortal.give_lock(), TypeError, "pickle"),
        ):
            with pytest.raises(error, match=text):
                call.result(SECONDS)
        assert mortal.give([1]).result(SECONDS) == [1]
        assert mortal.pid().result(SECONDS) == before
    with pytest.raises(RuntimeError, match="Untravelled: one and two"):
        Unborn.options(mode="process").init(travels=False)


def local_class() -> type[Clerk]:
    class Local(Clerk):
        """Can be imported from nowhere."""

    return Local


def test_a_local_class_needs_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    without_package(monkeypatch, "cloudpickle")
    for options in (local_class().options(mode="process"), Clerk.options(mode="process", retry_on=lambda **_: True)):
        with pytest.raises(ValueError, match=r"cannot send the worker to another process: .*cloudpickle"):
            options.init()


def test_a_local_class_is_sent_by_cloudpickle() -> None:
    with local_class().options(mode="process").init() as local:
        assert local.take(3).result(SECONDS) == 3


def test_a_lock_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match=r"cannot send the worker to another process: .*lock"):
        Clerk.options(mode="process").init(Lock())


def test_stopping_in_a_hurry_terminates_the_process() -> None:
    mortal = Mortal.options(mode="process", max_queued_tasks=1).init()
    running, waiting = mortal.wait_for_ever(), mortal.pid()
    until(running.running, "the call does not begin")
    mortal.stop(timeout=0)
    assert isinstance(running.exception(SECONDS), BrokenProcessPool)
    assert waiting.cancelled()


def test_a_worker_ends_with_the_process_that_it_works_for() -> None:
    script = (
        "import os\n"
        "from tests.workers.people import Mortal\n"
        "if __name__ == '__main__':\n"
        "    mortal = Mortal.options(mode='process').init()\n"
        "    mortal.wait_for_ever()\n"
        "    os._exit(7)\n"
    )
    # Its output is at an end when nobody has it open any more: neither the parent nor its worker.
    done = finished(script)
    assert done.returncode == 7


def test_the_end_of_a_forked_child_does_not_end_the_workers_of_its_parent() -> None:
    script = (
        "import os, sys\n"
        "from tests.workers.people import Mortal\n"
        "if __name__ == '__main__':\n"
        "    mortal = Mortal.options(mode='process').init()\n"
        "    before = mortal.pid().result()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        sys.exit()\n"
        "    os.waitpid(child, 0)\n"
        "    print([mortal.pid().result() == before for _ in range(3)])\n"
        "    mortal.stop()\n"
    )
    done = finished(script)
    assert (done.returncode, done.stdout) == (0, b"[True, True, True]\n")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_can_call_only_workers_that_run_in_its_threads(mode: str) -> None:
    pool = Clerk.options(mode=mode).init()

    def act() -> int:
        try:
            return pool.take(3).result(SECONDS) == 3
        except RuntimeError as error:
            return 2 if "the workers belong to the process that forked this one" in str(error) else 3
        finally:
            pool.stop()

    assert exit_code_of_child(act) == (1 if mode == "sync" else 2)
    assert pool.take(4).result(SECONDS) == 4
    pool.stop()


@pytest.mark.parametrize("end", ["dies", "is terminated"])
def test_the_end_of_a_process_is_noticed_while_a_child_of_it_lives(end: str) -> None:
    with Mortal.options(mode="process").init() as mortal:
        child = mortal.fork().result(SECONDS)
        try:
            call = mortal.die() if end == "dies" else mortal.wait_for_ever()
            if end == "is terminated":
                until(call.running, "the call does not begin")
                back_end_of(mortal).interrupt()
            assert isinstance(call.exception(SECONDS), BrokenProcessPool)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_is_replaced_where_the_program_ignores_the_ends_of_its_children() -> None:
    script = (
        "import signal\n"
        "from tests.workers.people import Mortal\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "    with Mortal.options(mode='process').init() as mortal:\n"
        "        print([mortal.die().exception() is None for _ in range(2)], mortal.pid().result() > 0)\n"
    )
    done = finished(script)
    assert (done.returncode, done.stdout) == (0, b"[False, False] True\n")
