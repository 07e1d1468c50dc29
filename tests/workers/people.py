"""Workers to test with; in a module of their own, so that other processes find them."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from threading import Event, Thread
from typing import Any

from django.apps import apps
from django.db import connections

from limits_app.acquiring.limit_set import LimitSet
from limits_app.workers import Worker, WorkerPool

MODES = ["sync", "thread", "process", "asyncio"]


class Clerk(Worker):
    """Remembers what it is told."""

    def __init__(self, name: str = "Ann", *, limits_needed: int = 0) -> None:
        self.name = name
        self.told: list[Any] = []
        self.limits_at_first = self.limits
        if limits_needed:
            self.limits.acquire({"desk": limits_needed}).release()

    def say_name(self) -> str:
        return self.name

    def tell(self, something: Any) -> list[Any]:
        self.told.append(something)
        return list(self.told)

    async def tell_later(self, something: Any) -> list[Any]:
        await asyncio.sleep(0)
        return self.tell(something)

    def fail(self, message: str = "no") -> None:
        raise LookupError(message)

    async def fail_later(self) -> None:
        raise LookupError("later")

    def fail_times(self, times: int) -> int:
        """Fail so many times, then say how often it was called."""
        self.told.append("called")
        if len(self.told) <= times:
            raise LookupError(len(self.told))
        return len(self.told)

    async def fail_times_later(self, times: int) -> int:
        return self.fail_times(times)

    def where(self) -> tuple[int, str]:
        return os.getpid(), threading.current_thread().name

    def has_limits(self) -> bool:
        return self.limits is self.limits_at_first and bool(self.limits.try_acquire())

    def region(self) -> object:
        """From where the limits come that served a call."""
        with self.limits.acquire() as acquisition:
            return acquisition.config["region"]

    def take(self, tries: int) -> int:
        """How many of so many tries were admitted."""
        return sum(bool(self.limits.try_acquire()) for _ in range(tries))

    def stop_now(self) -> None:
        raise KeyboardInterrupt

    def _secret(self) -> None:
        """Not to be called from outside."""


class Gatekeeper(Worker):
    """Waits until the gate is opened; only where it shares memory with its callers."""

    def __init__(self, gate: Event, entered: Event) -> None:
        self.gate = gate
        self.entered = entered

    def pass_through(self, number: int) -> int:
        self.entered.set()
        assert self.gate.wait(20)
        return number

    async def wait_for_ever(self) -> None:
        self.entered.set()
        await asyncio.Event().wait()

    async def hold_the_loop(self) -> bool:
        self.entered.set()
        return self.gate.wait(20)


class Caller(Worker):
    """Has others work for it."""

    def ask(self, other: Any, depth: int) -> int:
        """How many workers were asked, one by the other."""
        if not depth:
            return 0
        answer = other.ask(other, depth - 1)
        return 1 + (answer.result(20) if isinstance(answer, Future) else answer)


class Mortal(Worker):
    """Lives in a process that may end."""

    def __init__(self, dies: bool = False) -> None:
        if dies:
            os._exit(1)

    def pid(self) -> int:
        return os.getpid()

    def die(self) -> None:
        os._exit(1)

    def die_after_this(self) -> None:
        """The process ends when it has nothing to do."""
        Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        os._exit(1)

    def wait_for_ever(self) -> None:
        Event().wait()

    def fork(self) -> int:
        """Fork a child that does not end by itself; return its pid."""
        child = os.fork()
        if child == 0:
            Event().wait()
        return child

    def raise_what_cannot_travel(self) -> None:
        raise Untravelled("one", "two")

    def give(self, something: Any) -> Any:
        return something

    def give_unreadable(self) -> Any:
        return [Untravelled("one", "two")]

    def give_lock(self) -> Any:
        return threading.Lock()

    def has_django(self) -> bool:
        return apps.ready


class Unborn(Worker):
    """Cannot be made."""

    def __init__(self, travels: bool = True) -> None:
        raise LookupError("unborn") if travels else Untravelled("one", "two")

    def work(self) -> None:
        """Never called."""


class Untravelled(Exception):
    """Pickles, but cannot be made again from what it pickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Homebody:
    """Can be read only where it was written."""

    def __init__(self, home: int = 0) -> None:
        self.home = home or os.getpid()
        if self.home != os.getpid():
            raise LookupError("far from home")

    def __reduce__(self) -> tuple[object, ...]:
        return Homebody, (self.home,)


class Recorder:
    """Stands in for a database connection of a thread."""

    def __init__(self) -> None:
        self.looked_at = 0

    def close_if_unusable_or_obsolete(self) -> None:
        self.looked_at += 1

    def close(self) -> None:
        """Nothing is open."""


class Archivist(Worker):
    """Uses a database."""

    def open(self) -> None:
        connections["default"] = Recorder()

    def looked_at(self) -> int:
        return connections["default"].looked_at  # type: ignore[attr-defined]  # a Recorder


def memory_set() -> LimitSet:
    """A set that cannot leave its process."""
    return LimitSet(shared=True, mode="thread")


def back_end_of(pool: WorkerPool[Any]) -> Any:
    """What runs the calls of the first worker of a pool."""
    return pool._back_ends[0]
