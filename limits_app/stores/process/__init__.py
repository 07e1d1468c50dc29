"""The process store: one LMDB file that all processes of a machine share; needs no server."""

from __future__ import annotations

from limits_app.stores.process.files import default_directory
from limits_app.stores.process.store import ProcessStore, open_process_store

__all__ = ["ProcessStore", "default_process_store", "open_process_store"]


def default_process_store() -> ProcessStore:
    """The store in the default directory."""
    return open_process_store(default_directory())
