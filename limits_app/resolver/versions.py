"""Versions: telling the stores that the configuration has changed."""

from __future__ import annotations

import logging

from limits_app.core.errors import StoreUnavailable
from limits_app.resolver.cache import resolver
from limits_app.stores.registry import aliases, resilient_store

__all__ = ["advance_version"]

logger = logging.getLogger("limits_app")


def advance_version(**details: object) -> None:  # noqa: ARG001 - a receiver of a signal
    """Limits have changed: whatever was compiled before is stale now, in every process that shares a store.

    A store that cannot be told is told when it is back. Until then this process resolves anew,
    and others find out when what they keep is too old.
    """
    for alias in aliases():
        store = resilient_store(alias)
        try:
            store.open().advance_version()
        except StoreUnavailable:
            logger.exception("the store %r was not told that limits have changed", alias)
            store.advance_version_later()
            resolver.clear()
