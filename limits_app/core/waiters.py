"""Threads and tasks that wait, and what wakes them."""

from __future__ import annotations

from itertools import count
from threading import Lock
from typing import Final, Protocol

_next_number: Final = count(1).__next__


class Waiter(Protocol):
    """A thread or task that sleeps until it is woken."""

    number: int
    """Unique in the process; the lowest number of a queue is its first waiter."""

    def wake(self) -> None:
        """End the current sleep, or the next one; called from any thread."""

    def is_waiting(self) -> bool:
        """Whether it still takes its turn; if not, the waiting line ignores and removes it."""


class ThreadWaiter:
    """A waiting thread."""

    def __init__(self) -> None:
        self.number = _next_number()
        self.active = True
        """Set to False by the end of the wait, however it ends."""
        # A lock that is released to wake the thread: `threading.Event` can stay locked when a handler raises in it.
        self._woken = Lock()
        self._woken.acquire()

    def wake(self) -> None:
        try:
            self._woken.release()
        except RuntimeError:
            return  # it has been woken already

    def is_waiting(self) -> bool:
        """Whether the wait goes on."""
        return self.active

    def sleep(self, seconds: float | None) -> None:
        """Sleep for at most `seconds` (None: until woken)."""
        self._woken.acquire(timeout=-1 if seconds is None else seconds)


class TaskWaiter:
    """A waiting task of the running event loop."""

    def __init__(self) -> None:
        import asyncio  # only programs that use it pay for its import

        self.number = _next_number()
        self.active = True
        """Set to False by the end of the wait, however it ends."""
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            return  # the loop was closed while the task waited

    def is_waiting(self) -> bool:
        """Whether the wait goes on; a closed loop does not run its tasks any more."""
        return self.active and not self._loop.is_closed()

    async def sleep(self, seconds: float | None) -> None:
        """Sleep for at most `seconds` (None: until woken) without blocking the loop."""
        timer = None if seconds is None else self._loop.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._woken.clear()
