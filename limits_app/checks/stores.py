"""Checks that ask the stores and the database: whether they answer, and what is configured there."""

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
from limits_app.core.errors import CannotProtect, StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit
from limits_app.core.store import Store
from limits_app.models import Policy, Resource
from limits_app.stores import registry

__all__ = ["check_audit_log", "check_stores"]

_MOST_SKEW_US: Final = 1_000_000


def check_stores(databases: Sequence[str] | None = None, **options: Any) -> list[CheckMessage]:
    """Ask the stores and the database; only where databases may be asked, as with `check --database default`."""
    asks = databases and not reported(missing_databases, missing_packages, missing_caches)
    return reported(_local_policies, _missing_stores, _stores, _evictions) if asks else []


def check_audit_log(databases: Sequence[str] | None = None, **options: Any) -> list[CheckMessage]:
    """Report an audit log that can be changed by SQL; only where the database may be asked, and with --deploy."""
    if not databases:
        return []
    try:
        protected = is_protected()
    except (DatabaseError, CannotProtect):  # the tables do not exist yet, or this database has no such triggers
        return []
    if protected:
        return []
    message = "the audit log is not protected: SQL can change and delete its events"
    hint = "Run manage.py limits audit protect: triggers then refuse to change or delete events."
    return [Info(message, hint=hint, id="limits_app.I001")]


def _local_policies() -> Iterator[CheckMessage]:
    if conf.get(conf.EXPECTED_PROCESSES) is not None:
        return
    local = Policy.objects.filter(on_unavailable=OnUnavailable.LOCAL).select_related("resource", "entity")
    try:
        policies = list(local)
    except DatabaseError:  # `migrate` checks before it has made the tables
        return
    for policy in policies:
        yield Warning(
            f"while the store is unavailable, the policy of {policy} is 'local', "
            "but the number of processes that share it is unknown",
            hint="Set LIMITS['EXPECTED_PROCESSES']; without it each process gives out all of every limit.",
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
            f"the resource {name} is counted in the store {alias!r}, which LIMITS['STORES'] does not have",
            hint=f"Add it, or name one of {', '.join(map(repr, aliases))} for the resource; until then its requests "
            "are answered as policies say for a store that is down.",
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
                hint="Until it can be, requests are answered as policies say for a store that is down.",
                id="limits_app.W047",
            )
            continue
        if abs(skew_us) > _MOST_SKEW_US:
            yield Warning(
                f"the clock of the store {alias!r} and the one of this machine differ by {skew_us / 1e6:+.1f} seconds",
                hint="Limits go by the store's clock and stay exact; set both by NTP, or times in logs will mislead.",
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
                hint="Set maxmemory-policy noeviction, or use a server of its own: an evicted limit starts from zero.",
                id="limits_app.W050",
            )


def _eviction_policy(alias: str) -> str | None:
    from limits_app.stores.redis import RedisStore

    try:
        store = registry.store(alias)
        return store.eviction_policy() if isinstance(store, RedisStore) else None
    except StoreUnavailable:  # reported as that, or a server that may not be asked
        return None


def _skew_us(store: Store) -> int:
    LimitSet([CallLimit.per_second(1)], store=store).get_stats()  # the reply contains the time of the store
    return store.clock() - time_ns() // 1000
