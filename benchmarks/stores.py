"""Our stores, opened for a while."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from benchmarks.references import redis_server
from limits_app.acquiring.store import Store
from limits_app.engine.clock import system_us
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore, open_process_store
from limits_app.stores.redis import RedisStore

__all__ = ["STORES", "Opener", "memory_store", "process_store", "redis_store", "redis_store_at"]

_MEGABYTES: Final = 16


class Opener(Protocol):
    """Opens an empty store, which is gone after the block; a clock returns microseconds."""

    def __call__(
        self, clock: Callable[[], int] | None = None, *, map_megabytes: int = _MEGABYTES
    ) -> AbstractContextManager[Store]:
        """Open it."""


@contextmanager
def memory_store(
    clock: Callable[[], int] | None = None,
    *,
    map_megabytes: int = _MEGABYTES,  # noqa: ARG001 - memory needs no map
) -> Iterator[MemoryStore]:
    """A store in memory."""
    yield MemoryStore(clock=clock or system_us, max_scopes=10_000_000)


@contextmanager
def process_store(clock: Callable[[], int] | None = None, *, map_megabytes: int = _MEGABYTES) -> Iterator[ProcessStore]:
    """A process store in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="process-store-") as directory:
        clocked = {} if clock is None else {"clock": clock}
        store = open_process_store(directory, map_megabytes=map_megabytes, **clocked)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def redis_store(
    clock: Callable[[], int] | None = None,
    *,
    map_megabytes: int = _MEGABYTES,  # noqa: ARG001 - a server takes what it needs
) -> Iterator[RedisStore]:
    """A Redis store on a server of its own."""
    with redis_server() as port, redis_store_at(port, clock) as store:
        yield store


@contextmanager
def redis_store_at(port: int, clock: Callable[[], int] | None = None) -> Iterator[RedisStore]:
    """A Redis store on a server that is there; a busy machine may keep it waiting."""
    store = RedisStore(url=f"redis://127.0.0.1:{port}/0", clock=clock, connect_seconds=5, reply_seconds=5)
    try:
        yield store
    finally:
        store.close()


STORES: Final[Mapping[str, Opener]] = {"memory": memory_store, "process store": process_store, "Redis": redis_store}
"""By the name that rows give them."""
