"""The stores that a site has opened, for tests that give it others."""

from __future__ import annotations

import pytest

from limits_app import conf
from limits_app.acquiring.store import Store
from limits_app.engine.errors import StoreUnavailable
from limits_app.stores import registry

__all__ = ["VERBS", "fail_at", "forget_opened", "open_none", "put_store"]

VERBS = ("acquire", "version", "peek", "settle")
"""What a store is asked for by requests."""


def put_store(monkeypatch: pytest.MonkeyPatch, store: Store, alias: str = "default") -> None:
    """Have an alias mean this store, behind its circuit breaker as any other, until the test ends."""
    monkeypatch.setitem(registry.OPENED, (alias, conf.store_settings(alias)), store)


def open_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no store open, as in a process that begins; those that the test opens are forgotten when it ends."""
    monkeypatch.setattr(registry, "OPENED", {})


def forget_opened() -> None:
    """Forget all stores that are open, without closing them."""
    registry.OPENED.clear()


def fail_at(monkeypatch: pytest.MonkeyPatch, *verbs: str, alias: str | None = None, reason: str = "gone") -> None:
    """Have the open store of an alias unavailable for some verbs, as one that loses its connection."""

    def fail(*_: object, **_options: object) -> None:
        raise StoreUnavailable(reason)

    for verb in verbs:
        monkeypatch.setattr(registry.store(alias), verb, fail)
