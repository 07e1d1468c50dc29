"""A store whose calls are timed; there is one only where somebody wants to know, so that nobody else pays for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, Protocol, cast

from limits_app.core.errors import StoreUnavailable
from limits_app.core.store import Store

__all__ = ["TIMERS", "Timer", "timed"]

_IN_THREADS: Final = frozenset({
    *("acquire", "acquire_first", "settle", "renew", "peek", "reset"),
    *("version", "advance_version", "collect_counts", "forget_counts"),
})  # fmt: skip
_IN_TASKS: Final = {"aacquire": "acquire", "aacquire_first": "acquire_first", "asettle": "settle", "apeek": "peek"}
"""The verbs for asyncio, and what they are called: whoever waits, it is the same that is asked."""


class Timer(Protocol):
    """Is told of every call; must neither wait nor fail."""

    def __call__(self, alias: str, verb: str, seconds: float, *, failed: bool) -> None: ...


TIMERS: Final[list[Timer]] = []
"""Whoever is in this list before a store is opened is told of every call to it."""


def timed(store: Store, alias: str) -> Store:
    """The store itself where nobody wants to know how long its calls take; else one that asks it, and tells."""
    return cast("Store", _TimedStore(store, alias)) if TIMERS else store


class _TimedStore:
    """Another store, which it is in everything but its verbs."""

    def __init__(self, store: Store, alias: str) -> None:
        self._store = store
        self._alias = alias

    def __reduce__(self) -> tuple[object, ...]:
        return _itself, (self._store,)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _IN_THREADS:
            found = self.__dict__[name] = _timed_in_thread(found, self._alias, name)
        elif name in _IN_TASKS:
            found = self.__dict__[name] = _timed_in_task(found, self._alias, _IN_TASKS[name])
        return found


def _itself(store: Store) -> Store:
    """A store that arrives in another process is timed there, if anybody wants to know."""
    return store


def _timed_in_thread(verb: Callable[..., Any], *call: str) -> Callable[..., Any]:
    def ask(*arguments: Any, **options: Any) -> Any:
        with _told(*call):
            return verb(*arguments, **options)

    return ask


def _timed_in_task(verb: Callable[..., Awaitable[Any]], *call: str) -> Callable[..., Awaitable[Any]]:
    async def ask(*arguments: Any, **options: Any) -> Any:
        with _told(*call):
            return await verb(*arguments, **options)

    return ask


@contextmanager
def _told(alias: str, verb: str) -> Iterator[None]:
    """Tell how long the block took, and whether the store could not do it: a refusal is an answer like any other."""
    started, failed = perf_counter(), False
    try:
        yield
    except StoreUnavailable:
        failed = True
        raise
    finally:
        seconds = perf_counter() - started
        for tell in TIMERS:
            tell(alias, verb, seconds, failed=failed)
