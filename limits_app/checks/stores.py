"""Checks that access the stores and the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import time_ns
from typing import Any, Final

from django.core.checks import CheckMessage, Info, Warning  # noqa: A004 - Django's name
from django.db import DatabaseError

from limits_app import conf
from limits_app.audit import is_protected
from limits_app.checks.settings import missing_caches, missing_databases, missing_packages, reported
from limits_app.conf import OnUnavailable, StoreKind
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit
from limits_app.core.store import Store
from limits_app.models import Policy, Resource
from limits_app.stores import registry

_MOST_SKEW_US: Final = 1_000_000


def check_stores(databases: Sequence[str] | None = None, **options: Any) -> list[CheckMessage]:
    """Check the stores and the database; only with the option `check --database`."""
    asks = databases and not reported(missing_databases, missing_packages, missing_caches)
    return reported(_local_policies, _missing_stores, _stores, _evictions) if asks else []


def check_audit_log(**options: Any) -> list[CheckMessage]:
    """Report an audit log that SQL can change; only with the option --deploy."""
    try:
        if conf.problems() or is_protected():
            return []
    except Exception:  # noqa: BLE001 - there is no database yet, tests may not use it, or it has no such triggers
        return []
    message = "the audit log is not protected: SQL can change and delete its events"
    hint = "Run manage.py limits audit protect: it creates triggers that reject changes and deletions."
    return [Info(message, hint=hint, id="limits_app.I001")]


def _local_policies() -> Iterator[CheckMessage]:
    if conf.get(conf.EXPECTED_PROCESSES) is not None:
        return
    local = Policy.objects.filter(on_unavailable=OnUnavailable.LOCAL).select_related("resource", "entity")
    try:
        policies = list(local)
    except DatabaseError:  # `migrate` runs checks before the tables exist
        return
    for policy in policies:
        yield Warning(
            f"while the store is unavailable, the policy of {policy} is 'local', "
            "but the number of processes is unknown",
            hint="Set LIMITS['EXPECTED_PROCESSES']; otherwise each process allows the full capacity of every limit.",
            id="limits_app.W046",
        )


def _missing_stores() -> Iterator[CheckMessage]:
    aliases = conf.get(conf.STORES)
    elsewhere = Resource.objects.exclude(store__in=["", *aliases]).order_by("name").values_list("name", "store")
    try:
        found = list(elsewhere)
    except DatabaseError:  # as above
        return
    for name, alias in found:
        yield Warning(
            f"the resource {name} uses the store {alias!r}, which is not defined in LIMITS['STORES']",
            hint=f"Add it, or choose one of {', '.join(map(repr, aliases))} for the resource; until then its requests "
            "are decided by `on_unavailable`.",
            id="limits_app.W054",
        )


def _stores() -> Iterator[CheckMessage]:
    for alias in conf.get(conf.STORES):
        if conf.store_settings(alias).kind is StoreKind.MEMORY:
            continue
        try:
            skew_us = _skew_us(registry.store(alias))
        except StoreUnavailable as error:
            yield Warning(
                f"the store {alias!r} cannot be used: {error}",
                hint="Until it is available, `on_unavailable` decides about requests.",
                id="limits_app.W047",
            )
            continue
        if abs(skew_us) > _MOST_SKEW_US:
            yield Warning(
                f"the clocks of the store {alias!r} and of this machine differ by {skew_us / 1e6:+.1f} seconds",
                hint="Limits use the store's clock and stay exact; synchronize both with NTP, so that log times agree.",
                id="limits_app.W048",
            )


def _evictions() -> Iterator[CheckMessage]:
    for alias in conf.get(conf.STORES):
        if conf.store_settings(alias).kind is not StoreKind.REDIS:
            continue
        policy = _eviction_policy(alias)
        if policy not in {None, "noeviction"}:
            yield Warning(
                f"the Redis of the store {alias!r} evicts keys when its memory is full: its policy is {policy!r}",
                hint="Set maxmemory-policy noeviction, or use a separate server: evicting a key resets its limits.",
                id="limits_app.W050",
            )


def _eviction_policy(alias: str) -> str | None:
    from limits_app.stores.redis import RedisStore

    try:
        store = registry.store(alias)
        return store.eviction_policy() if isinstance(store, RedisStore) else None
    except StoreUnavailable:  # reported by another check, or CONFIG is not permitted
        return None


def _skew_us(store: Store) -> int:
    LimitSet([CallLimit.per_second(1)], store=store).get_stats()  # the reply contains the time of the store
    return store.clock() - time_ns() // 1000
