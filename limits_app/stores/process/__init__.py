"""The process store: one LMDB file that all processes of a machine share; needs no server."""

from __future__ import annotations

from limits_app.acquiring.store import Store
from limits_app.engine.modes import HOOKS
from limits_app.stores.process.files import default_directory
from limits_app.stores.process.store import ProcessStore, open_process_store

__all__ = ["ProcessStore", "default_process_store", "open_process_store"]


def default_process_store() -> Store:
    """The store that the surrounding program has configured, else the one in the default directory."""
    configured = HOOKS.process_store()
    return open_process_store(default_directory()) if configured is None else configured
