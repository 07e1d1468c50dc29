"""A store that fails whenever a test says so."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from limits_app.core.plan import Claim
from limits_app.core.errors import StoreUnavailable
from limits_app.core.plan import Amounts
from limits_app.core.store import Store

__all__ = ["FailingStore"]


class FailingStore:
    """Another store, which cannot be reached while it is `down`; `asked` counts who tried."""

    def __init__(self, store: Store) -> None:
        self.clock = store.clock
        self.line = store.line
        self.renewer = store.renewer
        self.lease_us = store.lease_us
        self.patience_us = store.patience_us
        self.remote = store.remote
        self.counting = store.counting
        self.down = False
        self.asked = 0
        self._store = store

    def acquire(self, claim: Claim) -> bool:
        return self._reached().acquire(claim)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        self._reached().settle(claim, changes)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        return self._reached().renew(claims)

    def peek(self, claim: Claim) -> None:
        self._reached().peek(claim)

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        self._reached().reset(scopes, keys)

    def version(self) -> int:
        return self._reached().version()

    def advance_version(self) -> int:
        return self._reached().advance_version()

    def _reached(self) -> Store:
        self.asked += 1
        if self.down:
            raise StoreUnavailable("connection refused")
        return self._store
