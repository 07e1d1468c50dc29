"""The present: the stores as they are while the database is asked, each with its version of the configuration."""

from __future__ import annotations

from itertools import count
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.core.errors import StoreUnavailable
from limits_app.core.store import Store
from limits_app.stores.memory import MemoryStore
from limits_app.stores.registry import resilient_store

__all__ = ["NOWHERE", "Place", "Present"]


class _Nowhere(MemoryStore):
    """Stands for a store that is down; what is compiled for it is stale by the time anybody uses it."""

    _numbers = count(1)

    def version(self) -> int:
        """Another one each time, and never the one that the store compares with."""
        return next(self._numbers)


NOWHERE: Final = _Nowhere()


class Place(NamedTuple):
    """Where limits are counted: the alias of a store, the store, and its version of the configuration."""

    alias: str
    store: Store
    version: int

    @property
    def reachable(self) -> bool:
        """Whether it can be used."""
        return self.store is not NOWHERE


class Present:
    """What all stores say before the database is asked, since only the answer says in which of them a resource is.

    A change in between makes the answer stale, never wrong. With a store `instead`, that stands for each of them.
    """

    def __init__(self, instead: Store | None = None) -> None:
        self._default = conf.get(conf.STORE)
        self._instead = instead
        self._places: dict[str, Place] = {}
        for alias in conf.get(conf.STORES) if instead is None else ():
            self._ask(alias)

    def place(self, alias: str | None = None) -> Place:
        """The store of an alias (None: the default one), or NOWHERE while it cannot be used.

        So it is with one that the settings do not have.
        """
        name = alias or self._default
        if self._instead is not None:
            return Place(name, self._instead, self._instead.version())
        if name not in conf.get(conf.STORES):
            self._ask(name)
        return self._places.get(name) or Place(name, NOWHERE, NOWHERE.version())

    def _ask(self, alias: str) -> None:
        try:
            store = resilient_store(alias).open()
            self._places[alias] = Place(alias, store, store.version())
        except StoreUnavailable:  # which matters to those alone who are counted there
            return
