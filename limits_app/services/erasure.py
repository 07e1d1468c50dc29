"""Erasure: replaces the identifier of an entity with a random pseudonym wherever the app keeps it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import models, router, transaction
from django.db.models import Q

from limits_app import audit
from limits_app.engine import EntityName, check_entity, own_keys, scope_of, shadow_scope, total_scope
from limits_app.engine.errors import InvalidRequest, StoreUnavailable
from limits_app.models import (
    Alert,
    AlertRule,
    AuditEvent,
    BucketKind,
    Denial,
    Endpoint,
    Entity,
    Policy,
    Resource,
    UsageSnapshot,
    changes,
    write_alias,
)
from limits_app.models.patterns import check_client
from limits_app.models.prefixes import COMBINATION
from limits_app.models.snapshots import batches
from limits_app.models.users import entity_name
from limits_app.services.usage import add_counts
from limits_app.stores.registry import aliases, resilient_store
from limits_app.usage.reading import storable

_PREFIX: Final = "erased:"
_ENTITY, _ABOUT, _ERROR, _LABEL = 255, 400, 500, 200
"""Maximum numbers of characters of these columns."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure replaced: rows of usage, rejections, alerts and Django's log of the admin, and audit events.

    `pseudonym` replaces the identifier; it is empty if nothing was found. `configuration` names the policies, alert
    rules, rules for URLs and the entity that name the identifier; they are removed if `removed` is true, and kept
    otherwise.
    """

    pseudonym: str
    usage: int
    rejections: int
    alerts: int
    admin_log: int
    events: int
    configuration: tuple[str, ...]
    removed: bool

    @property
    def rows(self) -> int:
        """In how many rows the identifier was replaced."""
        return self.usage + self.rejections + self.alerts + self.admin_log + self.events

    def as_dict(self) -> dict[str, object]:
        """The same as plain data, for JSON."""
        return asdict(self)


def erase(
    entity: EntityName,
    *,
    with_policies: bool = False,
    dry_run: bool = False,
    reason: str = "",
    actor: str = "",
    source: str = "service",
) -> Erased:
    """Replace the identifier of an entity with a random pseudonym in usage, rejections, alerts and the audit log.

    Stores forget its state, as after a reset, so its limits start again; permits stay with their holders.
    Its policies, its row and other configuration that names it stay and are returned, and are removed with
    `with_policies`. A row that is the parent of others is renamed instead. `dry_run` changes nothing.
    What requests of the entity record meanwhile is erased by another call.
    Raises InvalidRequest for a pattern, or in a transaction, and StoreUnavailable while a store is down.
    """
    name = check_entity(entity_name(entity))
    try:
        check_client(name)
    except ValidationError as error:
        raise InvalidRequest("; ".join(error.messages)) from error
    if changes.in_transaction(write_alias()):
        raise InvalidRequest("an erasure needs its own transactions: call it outside of a transaction")
    mark = audit.Identifier(name, f"{_PREFIX}{secrets.token_hex(16)}")
    if not dry_run:
        _collect()
        _forget_state(mark)
    erasure = _Erasure(mark)
    with ExitStack() as stack:
        for using in erasure.databases:
            stack.enter_context(transaction.atomic(using=using))
        acting = audit.acting(
            actor=actor, source=source, reason=mark.out_of(reason, is_about=True), using=write_alias()
        )
        unit = stack.enter_context(acting)
        erased = erasure.run(unit, with_policies=with_policies)
        if dry_run:
            for using in erasure.databases:
                transaction.set_rollback(True, using=using)
    return erased


def _collect() -> None:
    """Write what stores and this process have counted, so that it is found in the database."""
    if failed := add_counts().failed:
        alias, error = next(iter(failed.items()))
        raise StoreUnavailable(f"the store {alias!r} is unavailable, and may have the identifier: {error}")


def _forget_state(mark: audit.Identifier) -> None:
    """Reset every scope of the entity, and of those that have its identifier as a part, in every store."""
    name, stored = mark.identifier, audit.Identifier(storable(mark.identifier), mark.pseudonym)
    used = {
        (resource, name if entity == stored.identifier else entity)
        for model in (UsageSnapshot, Denial)
        for resource, entity in _counted(model, mark).order_by().values_list("resource", "entity").distinct()
        if resource and _without_client(stored, entity) != entity
    }
    used |= {(resource, name) for resource in Resource.objects.using(write_alias()).values_list("name", flat=True)}
    on_resources = [scope_of(*use) for use in used]
    entities = {name, *(entity for _, entity in used)}
    totals = [total_scope(entity, of_system=of_system) for entity in entities for of_system in (False, True)]
    scopes = [scope._replace(key=key) for scope in on_resources for key in own_keys(scope)] + totals
    keys = [key for scope in scopes for key in (scope.key, shadow_scope(scope).key)]
    for alias in aliases():
        for batch in batches(keys):
            resilient_store(alias).reset(batch)


def _counted(model: type[models.Model], mark: audit.Identifier) -> models.QuerySet[Any]:
    """The rows of a table of counts that may have the identifier; a member of a pool may have the same name."""
    rows = model._default_manager.using(router.db_for_write(model)).filter(bucket=BucketKind.ENTITY)
    return rows.filter(entity__contains=storable(mark.identifier))


def _without_client(mark: audit.Identifier, entity: str) -> str:
    """An entity without the identifier, which it may have as a part; a combination has that of its client."""
    return mark.out_of(entity, is_about=entity.startswith(COMBINATION))


class _Erasure:
    """The erasure of one identifier in the tables of the app."""

    def __init__(self, mark: audit.Identifier) -> None:
        self._mark = mark
        self._name = mark.identifier
        self._stored = audit.Identifier(storable(mark.identifier), mark.pseudonym)
        """The identifier as tables of counts have it."""

    @cached_property
    def databases(self) -> list[str]:
        """The aliases of the databases that it writes to."""
        written = [AuditEvent, UsageSnapshot, Denial, Alert, AlertRule, *self._log]
        return list(dict.fromkeys(router.db_for_write(model) for model in written))

    @cached_property
    def _log(self) -> list[Any]:
        """The model of Django's log of the admin, if that is installed."""
        return [apps.get_model("admin", "LogEntry")] if apps.is_installed("django.contrib.admin") else []

    def run(self, unit: audit.Unit, *, with_policies: bool) -> Erased:
        """Replace the identifier; the events of removed configuration are redacted too."""
        using, rows = write_alias(), list(self._configuration())
        labels = tuple(f"{row._meta.verbose_name} {row}" for row in rows)
        if with_policies:
            self._remove(rows)
        counted = {
            "usage": self._rename(UsageSnapshot),
            "rejections": self._rename(Denial, request_ids=""),
            "alerts": self._redact_alerts(),
            "admin_log": self._redact_log(),
        }
        events = audit.redact(self._mark, unit, using=using, **counted)
        pseudonym = self._mark.pseudonym if events or any(counted.values()) else ""
        removed = with_policies and bool(rows)
        return Erased(pseudonym, **counted, events=events, configuration=labels, removed=removed)

    def _configuration(self) -> Iterator[Any]:
        """The rows that name the identifier: policies first, the row of the entity last."""
        using = write_alias()
        yield from Policy.objects.using(using).filter(entity__identifier=self._name)
        yield from self._exactly(AlertRule.objects.using(router.db_for_write(AlertRule)).filter(entity=self._name))
        for rule in Endpoint.objects.using(using).filter(exempt_entities__contains=self._name):
            if self._name in rule.exempt_entities.splitlines():
                yield rule
        yield from Entity.objects.using(using).filter(identifier=self._name)

    def _exactly(self, rows: Iterable[Any]) -> Iterator[Any]:
        """The rows whose entity is the identifier, in the same case."""
        return (row for row in rows if row.entity == self._name)

    def _remove(self, rows: Iterable[Any]) -> None:
        for row in rows:
            if isinstance(row, Endpoint):
                lines = row.exempt_entities.splitlines()
                row.exempt_entities = "\n".join(line for line in lines if line != self._name)
                row.save()
            elif isinstance(row, Entity) and row.children.exists():
                row.identifier, row.name, row.metadata = self._mark.pseudonym, "", {}
                row.unlimited = row.blocked = False
                row.save()
            else:
                row.delete()

    def _rename(self, model: type[models.Model], **others: Any) -> int:
        """Replace the identifier in a table of counts, also as a part, as in `account:42 ip:10.0.0.1`."""
        identifiers: dict[str, list[object]] = {}
        rows = _counted(model, self._mark)
        for key, entity in rows.values_list("pk", "entity"):
            renamed = _without_client(self._stored, entity)
            if renamed != entity:
                identifiers.setdefault(renamed[:_ENTITY], []).append(key)
        for entity, keys in identifiers.items():
            for batch in batches(keys):
                rows.filter(pk__in=batch).update(entity=entity, **others)
        return sum(map(len, identifiers.values()))

    def _redact_alerts(self) -> int:
        mark, stored = self._stored, self._stored.identifier
        alerts = Alert.objects.using(router.db_for_write(Alert))
        count = 0
        for alert in alerts.filter(Q(about__contains=stored) | Q(payload__entity=stored)):
            is_about = alert.payload.get("entity") == stored
            payload = {name: _without(value, mark, is_about) for name, value in alert.payload.items()}
            about = mark.out_of(alert.about, is_about=is_about)[:_ABOUT]
            last_error = mark.out_of(alert.last_error, is_about=is_about)[:_ERROR]
            if (payload, about, last_error) == (alert.payload, alert.about, alert.last_error):
                continue
            # The key is a digest of what the alert is about.
            key = secrets.token_hex(32)
            alerts.filter(pk=alert.pk).update(payload=payload, about=about, last_error=last_error, dedupe_key=key)
            count += 1
        return count

    def _redact_log(self) -> int:
        count = 0
        for model in self._log:
            entries = model._default_manager.using(router.db_for_write(model))
            for entry in entries.filter(content_type__app_label="limits_app", object_repr__contains=self._name):
                is_about = entry.content_type.model in {"entity", "policy"}
                label = self._mark.out_of_label(entry.object_repr) if is_about else self._mark.out_of(entry.object_repr)
                message = self._mark.out_of(entry.change_message)
                if (label, message) != (entry.object_repr, entry.change_message):
                    entries.filter(pk=entry.pk).update(object_repr=label[:_LABEL], change_message=message)
                    count += 1
        return count


def _without(value: Any, mark: audit.Identifier, is_about: bool) -> Any:
    return mark.out_of(value, is_about=is_about) if isinstance(value, str) else value
