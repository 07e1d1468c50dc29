"""Announcing changes of the configuration to every process that shares a store."""

from __future__ import annotations

import logging

from limits_app import conf
from limits_app.engine import ALL, Changes, Namespace
from limits_app.engine.errors import StoreUnavailable
from limits_app.models.namespaces import current_keys
from limits_app.policies.kept_configuration import configuration
from limits_app.stores.registry import aliases, resilient_store

logger = logging.getLogger("limits_app")


def advance_version(
    *,
    changes: Changes = (ALL,),
    namespace: Namespace | None = None,
    **details: object,  # noqa: ARG001 - a receiver of a signal
) -> None:
    """Announce changes of a namespace to every process that shares a store, which makes what they concern stale.

    A store that is unavailable receives them when it is back. Until then this process applies them by itself, and
    others use what they have kept until it expires.
    """
    keys = current_keys() if namespace is None else namespace
    if not conf.get(conf.ENABLED):
        configuration.apply(changes, keys)
    for alias in aliases():
        store = resilient_store(alias)
        try:
            store.open().advance_version(changes, keys.configuration)
        except StoreUnavailable as error:
            logger.warning(
                "the store %r has not received a change of limits; other processes apply the change within "
                "RESOLVER_TTL_SECONDS: %s",
                alias,
                error,
            )
            store.advance_version_later(changes, keys.configuration)
            configuration.apply(changes, keys)
