"""What is called when a process ends normally, also where that skips `atexit`."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from limits_app.acquiring.runtime import PROCESS, Process, at_end
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE

pytestmark = [pytest.mark.filterwarnings(MULTI_THREADED_FORK), pytest.mark.slow]

METHODS = ["fork", "spawn", "forkserver"]


def write(path: str) -> None:
    """Note the end of this process."""
    with Path(path).open("a", encoding="utf-8") as notes:
        notes.write(f"{os.getpid()}\n")


def fail() -> None:
    raise OSError("the disk is full")


def work(path: str) -> int:
    at_end(partial(write, path))
    at_end(fail)
    return os.getpid()


def work_and_raise(path: str) -> None:
    work(path)
    raise ValueError("the work has failed")


def in_process(method: str, path: str, target: Callable[[str], object] = work) -> int:
    child = multiprocessing.get_context(method).Process(target=target, args=(path,))
    child.start()
    pid = child.pid
    child.join(PATIENCE)
    assert pid is not None
    return pid


def in_pool(method: str, path: str) -> int:
    pool = multiprocessing.get_context(method).Pool(1, maxtasksperchild=1)
    try:
        return pool.apply(work, (path,))
    finally:
        pool.close()
        pool.join()


def in_executor(method: str, path: str) -> int:
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as executor:
        return executor.submit(work, path).result(PATIENCE)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("run", [in_process, in_pool, in_executor])
def test_children_of_multiprocessing(run: Callable[[str, str], int], method: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    pid = run(method, str(notes))
    assert set(notes.read_text().split()) == {str(pid)}


@pytest.mark.parametrize("method", METHODS)
def test_child_whose_work_raises(method: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    pid = in_process(method, str(notes), work_and_raise)
    assert set(notes.read_text().split()) == {str(pid)}


@pytest.fixture
def _no_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nothing is to be called when it ends."""
    monkeypatch.setattr(PROCESS, "_at_end", {})


@pytest.mark.usefixtures("_no_functions")
def test_function_of_the_parent_is_called_in_a_forked_child(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    at_end(partial(write, str(notes)))
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    child.join(PATIENCE)
    assert notes.read_text().split() == [str(child.pid)]


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "raise SystemExit", "import multiprocessing.util"])
def test_program(end: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    program = f"import sys; from tests.acquiring.test_process_ends import work; work({str(notes)!r}); {end}"
    subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE, stderr=subprocess.DEVNULL)
    assert len({*notes.read_text().split()}) == 1


@pytest.mark.parametrize("before", ["import celery.signals", "import celery.signals, multiprocessing.util"])
def test_child_of_a_celery_worker_which_ends_after_a_signal(before: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    program = (
        f"import os; {before}; from tests.acquiring.test_process_ends import work; work({str(notes)!r});"
        "celery.signals.worker_process_shutdown.send(None, pid=os.getpid(), exitcode=0); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE, stderr=subprocess.DEVNULL)
    assert len(notes.read_text().split()) == 1


@pytest.mark.usefixtures("_no_functions")
def test_equal_functions_are_called_once() -> None:
    calls: list[str] = []

    def first() -> None:
        calls.append("first")

    for _ in range(3):
        at_end(first)
    at_end(partial(calls.append, "last"))
    PROCESS.end()
    assert calls == ["last", "first"]  # the last function is called first


@pytest.mark.parametrize("is_forked", [False, True])
def test_process_that_has_not_loaded_multiprocessing_ends(is_forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("multiprocessing.util", "celery.signals"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    process, calls = Process(), list[str]()
    process.at_end(partial(calls.append, "end"))
    if is_forked:
        process.forked()
    process.end()
    assert (calls, process.forks) == (["end"], int(is_forked))
    assert "multiprocessing.util" not in sys.modules
