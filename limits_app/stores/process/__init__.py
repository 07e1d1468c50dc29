"""The process store: one LMDB file that all processes of a machine share; needs no server."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import Final

from limits_app.stores.process.files import default_directory
from limits_app.stores.process.store import ProcessStore

__all__ = ["ProcessStore", "default_process_store", "open_process_store"]

_OPENED: Final[dict[str, ProcessStore]] = {}
_LOCK: Final = Lock()

# Held while a process forks, so that no child gets it locked.
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def open_process_store(directory: str | Path, **options: float) -> ProcessStore:
    """Open the store in a directory, or give the one that this process has opened there before.

    One file must not be opened twice by one process. `options` are those of ProcessStore, and count at the first opening.
    """
    place = os.path.realpath(directory)
    with _LOCK:
        store = _OPENED.get(place)
        if store is None:
            store = _OPENED[place] = ProcessStore(place, **options)  # type: ignore[arg-type]  # checked when made
        return store


def default_process_store() -> ProcessStore:
    """The store in the default directory."""
    return open_process_store(default_directory())


def _restored(directory: str, map_megabytes: int, lease_seconds: float) -> ProcessStore:
    return open_process_store(directory, map_megabytes=map_megabytes, lease_seconds=lease_seconds)
