"""Adjustments: reset usage, and give credit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from asgiref.sync import sync_to_async
from django.db import router, transaction
from django.utils import timezone

from limits_app import audit, conf
from limits_app.acquiring import credit_scopes, credited_parts
from limits_app.engine import (
    Amount,
    EntityName,
    ScopedLimits,
    check_idempotency_key,
    own_keys,
    scope_of,
    shown,
    total_scope,
)
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limits import CallLimit, MeteredLimit
from limits_app.models import AuditEvent, Entity, Verb, changes, write_alias
from limits_app.policies import check_names, resolver, total_scopes
from limits_app.services.amounts import not_limited, one_client
from limits_app.stores import registry
from limits_app.stores.registry import aliases, resilient_store


def reset(
    resource: str | None,
    *,
    entity: EntityName = None,
    keys: str | Collection[str] | None = None,
    plan: str | None = None,
    reason: str = "",
    idempotency_key: str | None = None,
    actor: str = "",
    source: str = "service",
) -> bool:
    """Forget the recorded use of an entity (None: the site itself, and shared limits) on a resource.

    Without a resource it is about the totals over all resources, in every store.
    `keys` are those of some limits (None: all). `plan` is the plan of its requests, where PLAN_OF_REQUEST gives it.
    Permits stay with their holders, and parents keep their charges.
    The reset is audited with its reason.
    A reset that is repeated with its idempotency key does nothing and returns False.
    In a transaction of the caller it happens after the commit; a store that is down by then raises StoreUnavailable
    there, and the audit event stays.
    Raises InvalidLimit for an invalid name, InvalidRequest for a key without a limit or an invalid idempotency key, and
    StoreUnavailable while the store is down.
    """
    entity = one_client(entity)
    names = [keys] if isinstance(keys, str) else keys
    asked = {"resource": resource, "entity": entity} | ({} if names is None else {"keys": sorted(map(str, names))})
    asked |= {} if plan is None else {"plan": plan}
    once = _AuditedOnce(Verb.RESET, asked, idempotency_key)
    if once.is_done():
        return False
    places = _places(resource, entity, plan)
    of_entity = _keys_of(resource, entity)
    scopes = {
        alias: [
            scoped for scoped in limits if scoped.scope.key in of_entity or (entity is None and scoped.scope.shared)
        ]
        for alias, limits in places.items()
    }
    existing = {limit.key for limits in scopes.values() for scoped in limits for limit in scoped.schema.limits}
    unknown = sorted({str(key) for key in names or () if key not in existing})
    if unknown:
        raise not_limited(unknown, existing)

    def forget() -> None:
        for alias, limits in scopes.items():
            resilient_store(alias).reset([*of_entity, *(scoped.scope.key for scoped in limits)], names)

    change = {**asked, "keys": asked.get("keys", sorted(existing))}
    return once.do(forget, change, aliases=places, reason=reason, actor=actor, source=source)


areset: Final = sync_to_async(reset)
"""`reset` for asyncio."""


def top_up(
    resource: str | None,
    *,
    key: str,
    amount: Amount,
    entity: EntityName = None,
    plan: str | None = None,
    reason: str = "",
    idempotency_key: str | None = None,
    actor: str = "",
    source: str = "service",
) -> bool:
    """Give an entity (None: the site itself) credit for a limit, at most its recorded use.

    Without a resource it is credit for the totals over all resources that have the key, in every store.
    `plan` is the plan of its requests, which must be named where only PLAN_OF_REQUEST knows it ("": none).
    Parents keep their charges. Credit for a shared limit is for all entities. It is audited with its reason.
    A credit that is repeated with its idempotency key does nothing and returns False.
    In a transaction of the caller it happens after the commit; a store that is down by then raises StoreUnavailable
    there, and the audit event stays.
    Raises InvalidLimit for an invalid name, StoreUnavailable while the store is down, and InvalidRequest for a key
    without a limit, an invalid amount or idempotency key, or a concurrency limit, whose permits have holders.
    """
    entity = one_client(entity)
    asked = {"resource": resource, "entity": entity, "key": key, "amount": amount}
    asked |= {} if plan is None else {"plan": plan}
    once = _AuditedOnce(Verb.TOP_UP, asked, idempotency_key)
    if once.is_done():
        return False
    check_plan_known(entity, plan)
    places = _places(resource, entity, plan)
    of_entity = _keys_of(resource, entity)
    credited = [
        (alias, scoped, credit_in_parts(scoped, key, amount))
        for alias, limits in places.items()
        for scoped in _with_key(limits, key, of_entity)
    ]
    if not credited:
        existing = {limit.key for limits in places.values() for scoped in limits for limit in scoped.schema.limits}
        raise not_limited([key], existing)

    def give() -> None:
        for alias, scoped, parts in credited:
            credit_scopes(resilient_store(alias).open(), scoped, key, parts)

    return once.do(give, asked, aliases=places, reason=reason, actor=actor, source=source)


def _places(resource: str | None, entity: str | None, plan: str | None) -> dict[str, list[ScopedLimits]]:
    """The scopes that count for an entity on a resource, without those of pool members, by the alias of their store.

    Without a resource, its totals in every store. Raises StoreUnavailable while a store is down.
    """
    if resource is None:
        now = timezone.now()
        return {alias: total_scopes(entity, resilient_store(alias).open(), now, plan) for alias in aliases()}
    resolved = resolver.latest((resource, entity, (), plan))
    return {resolved.alias: [scoped for scoped in resolved.own if not scoped.scope.total]}


def _with_key(limits: list[ScopedLimits], key: str, of_entity: list[str]) -> list[ScopedLimits]:
    """The scopes of the entity that have a limit with this key; the shared ones if it has no own limit."""
    matching = [scoped for scoped in limits if key in scoped.schema.index]
    return [scoped for scoped in matching if scoped.scope.key in of_entity] or [
        scoped for scoped in matching if scoped.scope.shared
    ]


def check_plan_known(entity: str | None, plan: str | None) -> None:
    """Raise InvalidRequest where only a request says on which plan an entity is: the limits would be those of none."""
    if entity is None or plan is not None or conf.get(conf.PLAN_OF_REQUEST) is None:
        return
    if not Entity.objects.using(write_alias()).filter(identifier=entity).exclude(plan=None).exists():
        raise InvalidRequest(
            f"PLAN_OF_REQUEST gives the plan of {entity}: pass plan= with its name, or '' if its requests have none"
        )


def _keys_of(resource: str | None, entity: str | None) -> list[str]:
    """The keys of the scopes that belong to the entity alone, whether or not it has limits there now."""
    if resource is None:
        return [total_scope(entity, of_system=of_system).key for of_system in (False, True)]
    return own_keys(scope_of(resource, entity))


class _AuditedOnce:
    """An adjustment that is audited, and that is made once for each idempotency key.

    A repeated adjustment is recognized before it is checked, since the limits may have changed meanwhile.
    """

    def __init__(self, verb: Verb, asked: audit.Snapshot, key: str | None) -> None:
        if key is not None:
            check_idempotency_key(key)
        check_names("totals" if asked["resource"] is None else asked["resource"], asked["entity"])
        self._verb, self._asked, self._key = verb, asked, key
        self._using = router.db_for_write(AuditEvent)

    def is_done(self) -> bool:
        """Whether it was made before; InvalidRequest where the key was used for another adjustment."""
        if self._key is None:
            return False
        earlier = AuditEvent.objects.using(self._using).filter(idempotency_key=self._key).first()
        if earlier is not None:
            self._check_same(earlier)
        return earlier is not None

    def do(
        self,
        adjust: Callable[[], None],
        change: audit.Snapshot,
        *,
        aliases: Iterable[str],
        reason: str,
        actor: str,
        source: str,
    ) -> bool:
        """Audit and make it in one transaction, unless another process has made it meanwhile.

        The event is written first, and writers of the log wait for each other, so that only one of two concurrent
        requests with the same key makes it. An error of the store rolls the event back. In a transaction of the caller
        it waits for the commit: a rollback would remove the event and the key, but could not undo the adjustment.
        So it does where the store is in the SQLite file of the audit log, which this transaction locks.
        """
        waits = changes.in_transaction(self._using) or any(
            registry.is_in_file_of(self._using, alias) for alias in aliases
        )
        with audit.acting(actor=actor, source=source, reason=reason, using=self._using) as unit:
            earlier = unit.find(self._key)
            if earlier is None:
                unit.record_state(self._verb, change, idempotency_key=self._key)
                if waits:
                    transaction.on_commit(adjust, using=self._using)
                else:
                    adjust()
                return True
        self._check_same(earlier)
        return False

    def _check_same(self, earlier: AuditEvent) -> None:
        fields = {name: (earlier.after or {}).get(name) for name in self._asked}
        if (earlier.verb, fields) != (self._verb, self._asked):
            raise InvalidRequest(f"idempotency key {self._key!r} was used for another operation: {earlier}")


def credit_in_parts(scoped: ScopedLimits, key: str, amount: Amount) -> int:
    """An amount of credit in parts of its limit; InvalidRequest for an invalid amount or kind of limit."""
    if not isinstance(scoped.schema.limits[scoped.schema.index[key]], MeteredLimit | CallLimit):
        raise InvalidRequest(f"{key} cannot be topped up: only rates, calls and quotas can")
    parts = credited_parts(scoped, key, amount)
    if not parts:
        raise InvalidRequest(f"amount of {key} must be greater than 0; got {shown(amount)}")
    return parts
