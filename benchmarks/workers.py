"""Rows of the workers: what it takes to submit many calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import Final

from benchmarks.harness import Effort, Turn, absolute, in_turns
from benchmarks.rows import Line, Row, at_most
from benchmarks.subjects import OURS
from limits_app.workers import Worker

__all__ = ["ROWS", "Summer"]

_CALLS: Final = 10_000
_REF: Final = "ThreadPoolExecutor"
_MODES: Final = ("sync", "thread", "process", "asyncio")

Submit = Callable[[int], Future[int]]


class Summer(Worker):
    """Does next to nothing, so that submitting is what takes time."""

    def add(self, number: int) -> int:
        """One more."""
        return number + 1


def _submitting(effort: Effort) -> Iterable[Line]:
    with _contenders() as submits:
        measures = {name: partial(_seconds_to_submit, submit) for name, submit in submits.items()}
        samples = in_turns(measures, effort.sized(7, 3))
    for mode in _MODES:
        yield Line(f"{OURS}, {mode}", absolute(samples.figures(mode)), "s", at_most(0.5))
    yield Line(f"  {_REF} itself", absolute(samples.figures(_REF)), "s")


def _seconds_to_submit(submit: Submit) -> Turn:
    started = perf_counter()
    futures = [submit(number) for number in range(_CALLS)]
    spent = perf_counter() - started
    wait(futures)
    return Turn(spent)


@contextmanager
def _contenders() -> Iterator[dict[str, Submit]]:
    with ExitStack() as stack:
        submits: dict[str, Submit] = {
            mode: stack.enter_context(Summer.options(mode=mode).init()).add for mode in _MODES
        }
        executor, add = stack.enter_context(ThreadPoolExecutor(1)), Summer().add
        yield submits | {_REF: lambda number: executor.submit(add, number)}


ROWS: Final = (Row(f"workers: {_CALLS:,} submissions", _submitting),)
