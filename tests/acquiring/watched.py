"""A store that tells a test what its waiters do, so that nothing has to be slept for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from threading import Condition, Thread
from typing import Any

from limits_app.acquiring.waiting import Waiter, WaitingLine
from limits_app.engine.claims import Claim
from limits_app.engine.plan import Bucket
from limits_app.stores.memory import MemoryStore

PATIENCE_SECONDS = 20
"""How long a test waits for what must come at once."""


class WatchedLine(WaitingLine):
    """A line that knows how many stand in it."""

    def __init__(self, told: Condition, unwatch: Callable[[str], None] | None = None) -> None:
        self.told = told
        self.waiting: dict[Waiter, set[str]] = {}
        """The waiters, with the keys of the limits for which they queue."""
        self.calls = 0
        super().__init__(unwatch=unwatch)

    def enqueue(self, waiter: Waiter, buckets: Iterable[Bucket]) -> None:
        keys = {key for _, key in buckets}
        super().enqueue(waiter, buckets)
        with self.told:
            self.calls += 1
            self.waiting.pop(waiter, None)
            if keys:
                self.waiting[waiter] = keys
            self.told.notify_all()


class WatchedStore(MemoryStore):
    """A memory store that remembers when it refused."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.told = Condition()
        self.refused: list[int] = []
        self.line = self.watched = WatchedLine(self.told)
        self.clock.attach(self.line)

    def acquire(self, claim: Claim) -> bool:
        admitted = super().acquire(claim)
        if not admitted:
            with self.told:
                self.refused.append(claim.decided_at)
                self.told.notify_all()
        return admitted

    def waiting(self, call: Callable[..., Any], *args: Any, **options: Any) -> Caller:
        """Make a call in a thread of its own, and wait until it waits."""
        number = len(self.watched.waiting) + 1
        caller = Caller(call, *args, **options)
        self.until_waiting(number)
        return caller

    def until_waiting(self, number: int, key: str | None = None) -> None:
        """Wait until so many stand in line, for a limit's key or for any."""
        waiting = self.watched.waiting
        self.until(lambda: sum(key is None or key in keys for keys in waiting.values()) == number)

    def until_refused(self, number: int = 1) -> None:
        """Wait until so many requests were refused at the present moment of a clock that is moved by hand."""
        self.until(lambda: self.refused.count(self.clock()) >= number)

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so that changes with what is told here."""
        with self.told:
            assert self.told.wait_for(reached, PATIENCE_SECONDS)


class Caller(Thread):
    """A call in a thread of its own, whose result or error is asked for later."""

    def __init__(self, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        super().__init__(daemon=True)
        self._call = lambda: call(*args, **options)
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again for whoever asks
            self._error = error

    def result(self) -> Any:
        """The result; its error is raised."""
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._result


def in_a_loop(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(scenario)
    def test(*args: Any, **options: Any) -> None:
        asyncio.run(asyncio.wait_for(scenario(*args, **options), PATIENCE_SECONDS))

    return test


async def settled() -> None:
    """Let all tasks go on until each of them waits."""
    for _ in range(20):
        await asyncio.sleep(0)
