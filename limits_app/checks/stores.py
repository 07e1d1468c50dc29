"""Checks that access the stores and the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import time_ns
from typing import Any, Final, TypeVar

from django.core.checks import CheckMessage, Error, Info, Warning  # noqa: A004 - Django's name
from django.db.models import QuerySet

from limits_app import conf
from limits_app.acquiring import LimitSet, Store
from limits_app.audit import is_protected
from limits_app.checks.databases import missing_databases
from limits_app.checks.reporting import reported
from limits_app.checks.settings import missing_caches, missing_packages
from limits_app.checks.unpriced import unpriced_resources, unpriced_totals
from limits_app.conf import OnUnavailable, StoreKind
from limits_app.engine import SECOND_US, counts_money, keep_problems, without_zone, zone_of
from limits_app.engine.errors import InvalidLimit, StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.models import CONFIGURATION, Counted, Endpoint, Limit, Plan, Policy, Price, Resource, write_alias
from limits_app.models.limit_rules import stored_definition
from limits_app.models.own_queries import DATABASE_ERRORS, is_not_migrated, own_query
from limits_app.services.site_urls import MOST_SHOWN_URLS, SiteUrls
from limits_app.stores import registry

T = TypeVar("T")

_MOST_SKEW_US: Final = SECOND_US


def check_stores(databases: Sequence[str] | None) -> list[CheckMessage]:
    """Check the stores and the database; only with the option `check --database`."""
    if not databases or reported(missing_databases, missing_packages, missing_caches):
        return []
    rows = (
        _configuration,
        _local_policies,
        _missing_stores,
        _rules_for_methods,
        _rules_for_one_url,
        _time_zones,
        _other_currencies,
        _other_priorities,
        _unpriced,
    )
    return reported(*rows, _stores, _evictions)


def check_audit_log() -> list[CheckMessage]:
    """Report an audit log that SQL can change; only with the option --deploy."""
    try:
        if conf.problems() or is_protected():
            return []
    except Exception:  # noqa: BLE001 - there is no database yet, tests may not use it, or it has no such triggers
        return []
    message = "the audit log is not protected: SQL can change and delete its events"
    hint = "Run manage.py limits audit protect: it creates triggers that reject changes and deletions."
    return [Info(message, hint=hint, id="limits_app.I001")]


def _configuration() -> Iterator[CheckMessage]:
    """Report tables of the configuration that are missing or cannot be read in full."""
    using = write_alias()
    try:
        with own_query(using):
            for model in CONFIGURATION:
                model._base_manager.using(using).first()
    except DATABASE_ERRORS as error:
        if is_not_migrated(using, error):
            yield Warning(
                f"the database {using!r} has no tables of limits_app, so no rules and policies apply",
                hint="Run manage.py migrate. Until then requests pass, and only limits in code apply.",
                id="limits_app.W072",
            )
            return
        yield Warning(
            f"the limits cannot be read from the database {using!r}: {error}",
            hint="Run manage.py migrate, or grant the right to read all tables of limits_app. Until then the last "
            "known limits apply, and LIMITS['ON_UNRESOLVED'] decides about others.",
            id="limits_app.W073",
        )


def _rows(rows: QuerySet[Any, T]) -> list[T]:
    """Return the rows; none where they cannot be read, which another check reports."""
    try:
        with own_query(rows.db):
            return list(rows)
    except DATABASE_ERRORS:
        return []


def _local_policies() -> Iterator[CheckMessage]:
    if conf.get(conf.EXPECTED_PROCESSES) is not None:
        return
    local = Policy.objects.filter(on_unavailable=OnUnavailable.LOCAL).select_related("resource", "entity")
    for policy in _rows(local):
        yield Warning(
            f"while the store is unavailable, the policy of {policy} is 'local', "
            "but the number of processes is unknown",
            hint="Set LIMITS['EXPECTED_PROCESSES']; otherwise each process allows the full capacity of every limit.",
            id="limits_app.W046",
        )


def _missing_stores() -> Iterator[CheckMessage]:
    aliases = conf.get(conf.STORES)
    for resource in _rows(Resource.objects.exclude(store__in=["", *aliases]).order_by("name")):
        yield Warning(
            f"the resource {resource.name} uses the store {resource.store!r}, which is not defined in LIMITS['STORES']",
            hint=f"Add it, or choose one of {', '.join(map(repr, aliases))} for the resource; until then its requests "
            "are decided by `on_unavailable`.",
            id="limits_app.W054",
        )


def _rules_for_methods() -> Iterator[CheckMessage]:
    """Report rules for some methods whose views answer others too, which these rules do not count."""
    urls = SiteUrls()
    for rule in _rows(Endpoint.objects.filter(enabled=True).exclude(methods="")):
        others = urls.other_methods(rule.path, rule.view_name, rule.method_set)
        if others is None:
            yield Warning(
                f"the URL rule {rule.name!r} counts {rule.methods} only, but a view of it answers every method",
                hint="Leave its methods empty, or decorate the view with require_http_methods: clients can choose "
                "another method, also an invented one.",
                id="limits_app.W071",
            )
        elif others:
            yield Info(
                f"the URL rule {rule.name!r} counts {rule.methods} only, but its views answer {', '.join(others)} too",
                hint="No action is required if these requests need no limit; else add their methods, or another rule.",
                id="limits_app.I002",
            )


def _rules_for_one_url() -> Iterator[CheckMessage]:
    """Report rules with a path whose views have other URLs too, at which these rules do not count."""
    urls = SiteUrls()
    for rule in _rows(Endpoint.objects.filter(enabled=True).exclude(path="")):
        if others := urls.other_urls(rule.path, rule.view_name):
            yield Info(
                f"the URL rule {rule.name!r} counts {rule.path} only, but its views answer "
                f"{', '.join(others[:MOST_SHOWN_URLS])} too",
                hint="Give the rule the name of the view in place of the path, or a pattern such as /api/*. No action "
                "is required if another rule limits these URLs.",
                id="limits_app.I003",
            )


def _time_zones() -> Iterator[CheckMessage]:
    """Report time zones of limits and policies that this machine lacks."""
    limits, policies = Limit.objects.filter(text__contains="@"), Policy.objects.exclude(weekly_hours="")
    names = {without_zone(text)[1] for (text,) in _rows(limits.order_by().values_list("text").distinct())}
    names |= {name for (name,) in _rows(policies.order_by().values_list("time_zone").distinct())}
    for name in sorted(name for name in names if zone_of(name) is None):
        yield Warning(
            f"limits use the time zone {name!r}, which this machine lacks",
            hint="Install the package tzdata (for old names such as 'US/Pacific', Debian's tzdata-legacy), or choose "
            "another zone. Until then LIMITS['ON_UNRESOLVED'] decides about requests that need these limits.",
            id="limits_app.W074",
        )


def _other_currencies() -> Iterator[CheckMessage]:
    """Report limits that are valid only for other currencies than those of the settings."""
    for key, text in _rows(Limit.objects.order_by("key", "text").values_list("key", "text").distinct()):
        try:
            limit, problem = stored_definition(key, text)
        except InvalidLimit:  # valid for no currencies: it was written past the validation of the model
            continue
        limits = Limit.objects.filter(key=key, text=text).select_related("policy", "member__pool").order_by("pk")
        for row in [] if problem is None else _rows(limits):
            yield Error(
                f"a limit of {row.policy or row.member} does not fit LIMITS['CURRENCIES']: {problem}",
                hint=f"It counts {key!r} as before, in {'money' if counts_money(limit) else 'units'}. Write the "
                "limit again, give it another key, or undo the change of the setting.",
                id="limits_app.E092",
            )


def _other_priorities() -> Iterator[CheckMessage]:
    """Report priorities of limits, resources, plans and URL rules that do not fit the settings."""
    priorities = conf.get(conf.PRIORITIES)
    for limit in _rows(Limit.objects.filter(text__contains="keep=").select_related("policy", "member__pool")):
        with suppress(InvalidLimit):
            for problem in keep_problems(stored_definition(limit.key, limit.text)[0].keep, priorities):
                yield _priority_warning(f"the limit {limit.key!r} of {limit.policy or limit.member}: {problem}")
    for model in (Resource, Plan, Endpoint):
        rows: QuerySet[Any] = model.objects.exclude(request_priority="").exclude(request_priority__in=priorities)
        for row in _rows(rows):
            yield _priority_warning(
                f"the requests of the {model._meta.verbose_name} {str(row)!r} are 'normal', since "
                f"LIMITS['PRIORITIES'] does not have {row.request_priority!r}"
            )


def _priority_warning(message: str) -> Warning:
    hint = "Write it again, or undo the change of LIMITS['PRIORITIES']."
    return Warning(message, hint=hint, id="limits_app.W078")


def _unpriced() -> Iterator[CheckMessage]:
    """Report limits in money of resources without a price, on a site that has prices."""
    if conf.get(conf.UNPRICED) is conf.Unpriced.ERROR and _rows(Price.objects.all()[:1]):
        limits = Limit.objects.filter(key__in=conf.get(conf.CURRENCIES)).exclude(policy__resource=None)
        yield from unpriced_resources(_rows(limits.select_related("policy__resource__pool").order_by("key", "pk")))
        totals = Limit.objects.filter(key__in=conf.get(conf.CURRENCIES), policy__counted=Counted.TOTAL)
        of_resources = Limit.objects.filter(policy__entity=None, policy__plan=None).exclude(policy__resource=None)
        currencies = _rows(totals.order_by("key").values_list("key", flat=True).distinct())
        units = _rows(of_resources.select_related("policy__resource__pool")) if currencies else []
        yield from unpriced_totals(currencies, units)


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
