"""Modes: how a limit set is shared, and which store that needs."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeGuard

from limits_app.acquiring.store import Store
from limits_app.engine import present, shown
from limits_app.engine.errors import InvalidRequest


class Mode(StrEnum):
    """Which users of a limit set run at the same time."""

    SYNC = "sync"
    THREAD = "thread"
    ASYNCIO = "asyncio"
    PROCESS = "process"
    CELERY = "celery"
    DISTRIBUTED = "distributed"
    RAY = "ray"


def checked_mode(mode: str, *, shared: bool) -> Mode:
    """Return the mode with a name; ValueError says what to pass instead of an invalid combination."""
    try:
        chosen = Mode(mode)
    except ValueError:
        raise ValueError(f"mode {mode!r} must be one of {', '.join(Mode)}") from None
    if not shared and chosen is not Mode.SYNC:
        raise ValueError(f"mode {mode!r} shares its state: pass shared=True, or mode='sync' for private state")
    return chosen


def store_of(mode: Mode, value: object) -> Store:
    """Return the store that was given, or else the one that a mode needs.

    Raises InvalidRequest for a value that is not a store, such as the name of one.
    """
    store = present().open_store(mode) if value is None else value
    if not _is_store(store):
        raise InvalidRequest(f"store must be a store, such as MemoryStore(), not {shown(store)}")
    return store


def _is_store(value: object) -> TypeGuard[Store]:
    return not isinstance(value, type) and callable(getattr(value, "acquire", None))
