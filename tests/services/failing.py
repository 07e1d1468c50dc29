"""A store that fails whenever a test says so."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import pytest

from limits_app.acquiring.store import Store
from limits_app.engine.errors import StoreUnavailable, Unresolved
from limits_app.policies.resolution import policy_source
from limits_app.stores import registry
from limits_app.stores.resilient import ResilientStore
from limits_app.testing import FakeClock

__all__ = ["FailingStore", "fail_to_read", "recover_by"]

_VERBS: Final = frozenset(
    {"acquire", "settle", "renew", "peek", "reset", "version", "advance_version", "changes_since"}
)


def recover_by(clock: FakeClock, monkeypatch: pytest.MonkeyPatch, alias: str = "default") -> None:
    """Have the recovery of a store go by the clock of a test, without jitter."""
    store = ResilientStore(alias, registry.open_store, clock=clock, jitter=lambda: 1.0)
    monkeypatch.setitem(registry._RESILIENT, alias, store)


class FailingStore:
    """Another store, which cannot be reached while it is `down`; `asked` counts who tried."""

    def __init__(self, store: Store) -> None:
        self.down = False
        self.asked = 0
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name not in _VERBS:
            return getattr(self._store, name)

        def ask(*arguments: Any) -> Any:
            return getattr(self._reached(), name)(*arguments)

        return ask

    def _reached(self) -> Store:
        self.asked += 1
        if self.down:
            raise StoreUnavailable("connection refused")
        return self._store


def fail_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a database of which no policies can be read."""

    def fail(*_: object) -> NoReturn:
        raise Unresolved("the connection is closed")

    monkeypatch.setattr(policy_source, "read", fail)
