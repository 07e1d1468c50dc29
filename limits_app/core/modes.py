"""Modes: how a limit set is going to be shared, and which store that needs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from typing import Final, cast

from limits_app.core.amounts import shown
from limits_app.core.errors import InvalidRequest
from limits_app.core.store import Store

__all__ = ["Mode", "check_store", "checked_mode", "store_for"]


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
    Mode.CELERY: "limits_app.stores.shared:default_shared_store",
    Mode.DISTRIBUTED: "limits_app.stores.shared:default_shared_store",
    Mode.RAY: "limits_app.stores.shared:default_shared_store",
}


def checked_mode(mode: str, *, shared: bool) -> Mode:
    """The mode of that name; ValueError says what to pass instead of a combination that cannot be."""
    try:
        chosen = Mode(mode)
    except ValueError:
        raise ValueError(f"mode {mode!r} must be one of {', '.join(Mode)}") from None
    if not shared and chosen is not Mode.SYNC:
        raise ValueError(f"mode {mode!r} shares its state: pass shared=True, or mode='sync' for private state")
    return chosen


def check_store(store: object) -> None:
    """Raise InvalidRequest for what is no store, such as the name of one."""
    if isinstance(store, type) or not (hasattr(store, "lease_us") and hasattr(store, "acquire")):
        raise InvalidRequest(f"store must be a store, such as MemoryStore(), not {shown(store)}")


def store_for(mode: Mode) -> Store:
    """Open the store that a mode needs."""
    module, name = _OPENERS[mode].split(":")
    return cast("Store", getattr(import_module(module), name)())
