"""Modes: how a limit set is shared and which store that needs; and the hooks of the program around the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from limits_app.engine.amounts import shown
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.namespaces import WHOLE_SITE, Namespace

if TYPE_CHECKING:
    from limits_app.acquiring.acquisition import Acquisition
    from limits_app.acquiring.store import Store


class Mode(StrEnum):
    """Which users of a limit set run at the same time."""

    SYNC = "sync"
    THREAD = "thread"
    ASYNCIO = "asyncio"
    PROCESS = "process"
    CELERY = "celery"
    DISTRIBUTED = "distributed"
    RAY = "ray"


class Hooks:
    """Callables that the surrounding program plugs into the engine; `apps` does so for Django."""

    def __init__(self) -> None:
        self.enabled: Callable[[], bool] = lambda: True
        """Whether the limits that workers get are enforced."""
        self.unknown_keys_raise: Callable[[], bool] = lambda: False
        """Whether a requested key that the set does not have is an error instead of a warning."""
        self.process_store: Callable[[], Store | None] = lambda: None
        """The store of limit sets in mode `process`; None for the default one."""
        self.shared_store: Callable[[], Store | None] = lambda: None
        """The store of limit sets in modes `celery`, `distributed` and `ray`; None for the default one."""
        self.namespace: Callable[[], Namespace] = lambda: WHOLE_SITE
        """The namespace in which limits are resolved and counted now."""
        self.secrets: Callable[[], Sequence[bytes]] = lambda: [b""]
        """The secrets of the site, by the first of which the names of entities in stores are sealed."""
        self.lease_lost: list[Callable[[Acquisition], None]] = []
        """Called with each acquisition whose lease ran out while it was held."""


HOOKS: Final = Hooks()

# By name: stores are a higher layer than the engine, and a store that is not used is not imported.
_OPENERS: Final[Mapping[Mode, str]] = {
    Mode.SYNC: "limits_app.stores.memory:MemoryStore",
    Mode.THREAD: "limits_app.stores.memory:MemoryStore",
    Mode.ASYNCIO: "limits_app.stores.memory:MemoryStore",
    Mode.PROCESS: "limits_app.stores.process:default_process_store",
    Mode.CELERY: "limits_app.stores:default_shared_store",
    Mode.DISTRIBUTED: "limits_app.stores:default_shared_store",
    Mode.RAY: "limits_app.stores:default_shared_store",
}


def checked_mode(mode: str, *, shared: bool) -> Mode:
    """Return the mode with a name; ValueError says what to pass instead of an invalid combination."""
    try:
        chosen = Mode(mode)
    except ValueError:
        raise ValueError(f"mode {mode!r} must be one of {', '.join(Mode)}") from None
    if not shared and chosen is not Mode.SYNC:
        raise ValueError(f"mode {mode!r} shares its state: pass shared=True, or mode='sync' for private state")
    return chosen


def check_store(store: object) -> None:
    """Raise InvalidRequest for a value that is not a store, such as the name of one."""
    if isinstance(store, type) or not callable(getattr(store, "acquire", None)):
        raise InvalidRequest(f"store must be a store, such as MemoryStore(), not {shown(store)}")


def store_for(mode: Mode) -> Store:
    """Open the store that a mode needs."""
    module, name = _OPENERS[mode].split(":")
    return cast("Store", getattr(import_module(module), name)())
