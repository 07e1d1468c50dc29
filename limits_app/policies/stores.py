"""The stores that are available while the database is read, each with its version of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.acquiring import Store
from limits_app.engine import Schema, schema_of
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import AnyLimit
from limits_app.models.namespaces import current_keys
from limits_app.stores.memory import MemoryStore
from limits_app.stores.registry import resilient_store


class _UnavailableStore(MemoryStore):
    """Takes the place of an unavailable store; sets that are compiled for it are always stale."""

    _numbers = count(1)

    def version(self, namespace: str = "") -> int:  # noqa: ARG002 - that of MemoryStore
        """A different number each time, so that no set is ever current."""
        return next(self._numbers)


UNAVAILABLE: Final = _UnavailableStore()
DISABLED: Final = MemoryStore()
"""Takes the place of every store where `LIMITS["ENABLED"]` is False."""


class VersionedStore(NamedTuple):
    """A store by its alias, and its version of the configuration."""

    alias: str
    store: Store
    version: int

    @property
    def available(self) -> bool:
        """Whether the store answered."""
        return self.store is not UNAVAILABLE


class StoreVersions:
    """The version of each store, read before the database: only the database knows in which store a resource is.

    A change between the two reads makes the result stale, never wrong. `seen` are versions that were read before, by
    alias; a store that is missing in it is not available. `replacement` takes the place of every store, and so does
    DISABLED where `LIMITS["ENABLED"]` is False.
    """

    def __init__(self, replacement: Store | None = None, seen: Mapping[str, int] | None = None) -> None:
        self._default = conf.get(conf.STORE)
        self._replacement = replacement if conf.get(conf.ENABLED) else DISABLED
        self._seen = seen
        self._namespace = current_keys().configuration
        self._versions: dict[str, VersionedStore] = {}
        for alias in conf.get(conf.STORES) if self._replacement is None and seen is None else ():
            self._read(alias)

    def of(self, alias: str | None = None) -> VersionedStore:
        """The store of an alias (None: the default one); UNAVAILABLE where it is down or not in the settings."""
        name = alias or self._default
        if self._replacement is not None:
            return VersionedStore(name, self._replacement, self._replacement.version(self._namespace))
        if self._seen is not None or name not in conf.get(conf.STORES):
            self._read(name)
        return self._versions.get(name) or VersionedStore(name, UNAVAILABLE, UNAVAILABLE.version())

    def _read(self, alias: str) -> None:
        try:
            store = resilient_store(alias).open()
            version = store.version(self._namespace) if self._seen is None else self._seen.get(alias)
        except StoreUnavailable:  # an error only for requests that are counted in this store
            return
        if version is not None:
            self._versions[alias] = VersionedStore(alias, store, version)


def schemas_of(store: Store, *, counts_usage: bool = True, plan: str = "") -> Callable[[tuple[AnyLimit, ...]], Schema]:
    """Return the function that compiles the limits of one scope for a store.

    Usage is counted where the store can count it and the settings ask for it; never for limits in shadow mode, whose
    `counts_usage` is False. It is counted for a `plan`.
    """
    counts = counts_usage and store.counting and bool(conf.get(conf.USAGE))
    return partial(schema_of, lease_us=store.lease_us, counts_usage=counts, plan=plan)
