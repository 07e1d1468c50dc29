"""Modes: how a limit set is going to be shared, and which store that needs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from typing import Final, cast

from limits_app.core.store import Store

__all__ = ["Mode", "store_for"]


class Mode(StrEnum):
    """Who uses a limit set at the same time."""

    SYNC = "sync"
    THREAD = "thread"
    ASYNCIO = "asyncio"
    PROCESS = "process"
    CELERY = "celery"
    DISTRIBUTED = "distributed"
    RAY = "ray"


# By name, since stores stand above the core and one that is not used is not imported.
_OPENERS: Final[Mapping[Mode, str]] = {
    Mode.SYNC: "limits_app.stores.memory:MemoryStore",
    Mode.THREAD: "limits_app.stores.memory:MemoryStore",
    Mode.ASYNCIO: "limits_app.stores.memory:MemoryStore",
    Mode.PROCESS: "limits_app.stores.process:default_process_store",
    Mode.CELERY: "limits_app.stores.redis:default_redis_store",
    Mode.DISTRIBUTED: "limits_app.stores.redis:default_redis_store",
    Mode.RAY: "limits_app.stores.redis:default_redis_store",
}


def store_for(mode: str, *, shared: bool) -> Store:
    """Open the store that a mode needs; ValueError says what to pass instead of a combination that cannot be."""
    try:
        chosen = Mode(mode)
    except ValueError:
        raise ValueError(f"mode {mode!r} must be one of {', '.join(Mode)}") from None
    if not shared and chosen is not Mode.SYNC:
        raise ValueError(f"mode {mode!r} shares its state: pass shared=True, or mode='sync' for private state")
    module, name = _OPENERS[chosen].split(":")
    return cast("Store", getattr(import_module(module), name)())
