"""Opening connections in time: drivers know whole seconds only, and look names up without an end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeVar

from limits_app.core.threads import started

__all__ = ["in_time"]


class Closable(Protocol):
    """What is of no use to anybody when it comes too late."""

    def close(self) -> None:
        """Close it."""


T = TypeVar("T", bound=Closable)


def in_time(connect: Callable[[], T], seconds: float) -> T:
    """What a thread of its own has opened; raises what it raised, and TimeoutError after so many seconds.

    What is opened after that is closed at once.
    """
    opened = Future[T]()
    if started(partial(_open, connect, opened), "limits-connect") is None:
        _open(connect, opened)
    try:
        return opened.result(seconds)
    except BaseException:
        opened.add_done_callback(_close)
        raise


def _open(connect: Callable[[], T], opened: Future[T]) -> None:
    try:
        opened.set_result(connect())
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        opened.set_exception(error)


def _close(late: Future[T]) -> None:
    if late.exception() is None:
        late.result().close()
