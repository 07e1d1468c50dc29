"""Futures of calls, and how to wait for many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future
from concurrent.futures import wait as wait_for
from time import monotonic
from typing import TypeVar

__all__ = ["TaskFuture", "gather", "wait"]

T = TypeVar("T")


class TaskFuture(Future[T]):
    """The result of a call, for threads (`result()`) and for tasks of an event loop (`await`) alike."""

    def __await__(self) -> Generator[object, None, T]:
        """Wait without blocking the event loop."""
        return asyncio.wrap_future(self).__await__()


def gather(futures: Iterable[Future[T]], *, timeout: float | None = None) -> list[T]:
    """The results of calls, in the order of the futures.

    As soon as one of them fails its exception is raised, and the others go on.
    Raises TimeoutError when they are not done after `timeout` seconds.
    """
    wanted = list(futures)
    deadline = None if timeout is None else monotonic() + timeout
    done, pending = wait_for(wanted, timeout, FIRST_EXCEPTION)
    for call in wanted:
        if call in done and (call.cancelled() or call.exception() is not None):
            call.result()
    # A call that is cancelled ends no wait for exceptions, but its result is one.
    left = None if deadline is None else max(0.0, deadline - monotonic())
    if pending and wait_for(pending, left).not_done:
        raise TimeoutError(f"{len(pending)} of {len(wanted)} calls were not done after {timeout} seconds")
    return [call.result() for call in wanted]


def wait(
    futures: Iterable[Future[T]], *, return_when: str = ALL_COMPLETED, timeout: float | None = None
) -> tuple[set[Future[T]], set[Future[T]]]:
    """The calls that are done and those that are not, after `timeout` seconds at the latest.

    `return_when` is one of `ALL_COMPLETED`, `FIRST_COMPLETED` and `FIRST_EXCEPTION` of `concurrent.futures`.
    """
    done, pending = wait_for(set(futures), timeout, return_when)
    return done, pending
