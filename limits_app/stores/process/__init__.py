"""The process store: one LMDB file that all processes of a machine share; needs no server."""

from __future__ import annotations

from limits_app.stores.process.files import is_temporary
from limits_app.stores.process.store import ProcessStore, open_process_store

__all__ = ["ProcessStore", "is_temporary", "open_process_store"]
