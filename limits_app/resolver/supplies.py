"""Pools by name: those of this configuration, kept until something changes."""

from __future__ import annotations

from itertools import islice
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.core.errors import UnknownPool
from limits_app.core.store import Store
from limits_app.models import changes, pool_definition
from limits_app.resolver.layouts import layouts
from limits_app.resolver.supply import Supply

__all__ = ["Supplies", "supplies"]


class _Kept(NamedTuple):
    supply: Supply
    version: int
    until: float


class Supplies:
    """Keeps what pools supply, `most` of them and each for RESOLVER_TTL_SECONDS, for all resources together."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._kept: dict[tuple[str, Store], _Kept] = {}
        self._lock = Lock()

    def supply(self, pool: str, using: str, store: Store, version: int) -> Supply:
        """What a pool supplies in a store's version of the configuration; UnknownPool where there is none of this name.

        What a transaction reads that has changed limits itself is not kept, because it may be rolled back; nor what one
        reads that may not see what others have committed.
        """
        key = pool, store
        kept = self._kept.get(key)
        is_fresh = kept is not None and kept.version == version and kept.until >= monotonic()
        if kept is not None and is_fresh and not changes.pending(using):
            return kept.supply
        definition = pool_definition(pool, using)
        if definition is None:
            raise UnknownPool(f"there is no pool {pool!r}: an administrator makes them")
        supply = Supply.of(definition, layouts(store))
        if changes.may_be_kept(using):
            self._keep(key, _Kept(supply, version, monotonic() + conf.get(conf.RESOLVER_TTL_SECONDS)))
        return supply

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def _keep(self, key: tuple[str, Store], entry: _Kept) -> None:
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = entry
            for oldest in list(islice(self._kept, max(len(self._kept) - self._most, 0))):
                del self._kept[oldest]


supplies: Final = Supplies()
