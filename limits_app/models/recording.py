"""Writes the audit log: changes of configuration happen in a unit, which writes one event for each object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, models, router, transaction
from django.db.models.signals import pre_delete
from django.utils import timezone

from limits_app.models.audit_log import AuditEvent, AuditHead, Verb
from limits_app.models.changes import Touched, announce
from limits_app.models.snapshots import Snapshot, Taken, batches, snapshots, taken, whole

if TYPE_CHECKING:
    from limits_app.models.base import Configuration

    Model = type[Configuration]


@dataclass(frozen=True, slots=True)
class Author:
    """The user or program that changes something, the source of the change, and the reason."""

    actor: str = ""
    source: str = "code"
    reason: str = ""


_CODE: Final = Author()
_MAX_SOURCE: Final = 32

_author: ContextVar[Author | None] = ContextVar("limits_app.author", default=None)
_units: ContextVar[Mapping[str, Unit]] = ContextVar("limits_app.units")


@contextmanager
def acting(*, actor: str = "", source: str = "code", reason: str = "", using: str | None = None) -> Iterator[Unit]:
    """Set the actor, source and reason of the changes in this block; each changed object gets one event.

    The block is one transaction, on the database that configuration is written to unless `using` names another, and
    other writers of configuration wait until it ends: keep it short, and change everything in it.
    A policy with its limits is one object, and so is a pool with its members and their limits.
    Events are written at the end, from the differences; a block that fails, or is rolled back, leaves none.
    In nested blocks the values of the outer one take precedence, and it writes the events.
    Without a reason, the `reason` field of a changed object is used where it is new.
    """
    if not 0 < len(source) <= _MAX_SOURCE:
        raise ValueError(f"source {source!r} must have 1 to {_MAX_SOURCE} characters, such as 'api'")
    outer = _author.get()
    author = Author(_as_kept(actor), source, _as_kept(reason))
    if outer is not None:
        author = Author(outer.actor or author.actor, outer.source, outer.reason or author.reason)
    token = _author.set(author)
    try:
        with unit(using or router.db_for_write(AuditEvent)) as change_unit:
            yield change_unit
    finally:
        _author.reset(token)


def _as_kept(text: str) -> str:
    """The value as stored, from which the digest is computed; user names need not be strings."""
    return text if text is None else str(text)


@contextmanager
def unit(using: str) -> Iterator[Unit]:
    """Return the open unit of change of a database, or a new one that ends with this block, in a transaction.

    A unit of another thread, or one that has ended, is ignored, even if the context was copied.
    """
    units = _units.get({})
    current = units.get(using)
    if current is not None and current.serves():
        yield current
        return
    with transaction.atomic(using=using):
        opened = Unit(using)
        token = _units.set({**units, using: opened})
        try:
            yield opened
            opened.write()
        finally:
            opened.close()
            _units.reset(token)


class Unit:
    """A unit of change: the previous states of changed objects, until their events are written."""

    def __init__(self, using: str) -> None:
        AuditHead.lock(using)
        self._using = using
        self._connection: Any = connections[using]
        self._before: dict[tuple[Model, Any], tuple[Taken | None, Author]] = {}
        self._chosen: set[tuple[Model, Any]] = set()
        """New objects whose primary keys the database did not choose."""

    def serves(self) -> bool:
        """Whether it is still open and belongs to this thread."""
        return self._connection is not None and self._connection is connections[self._using]

    def close(self) -> None:
        """Close the unit."""
        self._connection = None

    def read(self, rows: models.QuerySet[Any]) -> list[Any]:
        """Return objects to be changed, which belong to no others, and store their states as they were read."""
        complete = [*whole(rows.using(self._using))]
        author = _author.get() or _CODE
        for row in complete:
            self._before.setdefault((type(row), row.pk), (taken(row), author))
        return complete

    def touch(self, rows: models.QuerySet[Any]) -> None:
        """Store the states of objects, or of the objects that they belong to, before they change."""
        model: Model = rows.model
        rows = rows.order_by().prefetch_related(None)
        if not model.part_of:
            self._remember(model, [*rows.values_list("pk", flat=True)])
            return
        for name, keys in zip(model.part_of, _columns(rows, model.part_of), strict=True):
            self.touch_wholes(model, name, keys)

    def touch_wholes(self, model: Model, name: str, keys: Iterable[Any]) -> None:
        """Store the states of the objects in the field `name` of nested objects."""
        whole: Any = model._meta.get_field(name).related_model
        saved_keys = {*keys} - {None}
        if not whole.part_of:
            self._remember(whole, saved_keys)
            return
        for batch in batches(saved_keys):
            self.touch(whole._base_manager.using(self._using).filter(pk__in=batch))

    def touch_row(self, row: Configuration) -> None:
        """Store the state of an object, or of the objects that it belongs to."""
        if not row.part_of:
            self._remember(type(row), [row.pk])
        for name in row.part_of:
            self.touch_wholes(type(row), name, [getattr(row, f"{name}_id")])

    def touch_new(self, model: Model, keys: Iterable[Any], *, chosen: Iterable[Any] = ()) -> None:
        """Record existing objects without a stored state as new; the database has not `chosen` some of their keys."""
        self._chosen.update([(model, key) for key in chosen])
        if not model.part_of:
            author = _author.get() or _CODE
            for key in keys:
                self._before.setdefault((model, key), (None, author))
                announce(self._using, Touched())

    def record_state(self, verb: Verb, change: Snapshot, *, idempotency_key: str | None) -> None:
        """Append the event of a reset or top-up immediately."""
        resource, entity = change["resource"], change["entity"]
        where = "all resources" if resource is None else resource
        label = where if entity is None else f"{entity} on {where}"
        self._append(verb, "state", label, after=change, idempotency_key=idempotency_key)

    def record_pruning(self, pruned: Snapshot) -> None:
        """Append the event of a pruning immediately."""
        self._append(Verb.PRUNE, "auditevent", "audit log", after=pruned)

    def record_erasure(self, pseudonym: str, erased: Snapshot) -> None:
        """Append the event of an erasure immediately."""
        self._append(Verb.ERASE, "erasure", pseudonym, after=erased)

    def _append(self, verb: Verb, kind: str, label: str, **fields: Any) -> None:
        author = _author.get() or _CODE
        event = AuditEvent(verb=verb, object_type=kind, object_label=label, **fields)
        event.actor, event.source, event.reason = author.actor, author.source, author.reason
        event.save(using=self._using)

    def find(self, idempotency_key: str | None) -> AuditEvent | None:
        """Return the event with an idempotency key, if it exists."""
        if idempotency_key is None:
            return None
        return AuditEvent.objects.using(self._using).filter(idempotency_key=idempotency_key).first()

    def write(self) -> None:
        """Append the events of all objects that changed since the last time, in the order of their first change."""
        if transaction.get_rollback(self._using):
            return
        for model, model_keys in self._keys().items():
            model.complete_written({key: _state(self._before[model, key][0]) or {} for key in model_keys}, self._using)
        keys = self._keys()
        after = {model: snapshots(model, model_keys, self._using) for model, model_keys in keys.items()}
        self._check(after)
        touched = Touched()
        for (model, key), (before, _) in self._before.items():
            touched.add(model.touched_by(key, _state(before) or {}, _state(after[model].get(key)) or {}))
        created = {(model, key) for model, keys in touched.created.items() for key in keys}
        touched.has_chosen_keys = not created.isdisjoint(self._chosen)
        if self._before:
            announce(self._using, touched)
        now = timezone.now()  # one time for all events of the unit
        events = [
            _event(model, key, before, after[model].get(key), author=author, when=now)
            for (model, key), (before, author) in self._before.items()
            if _state(before) != _state(after[model].get(key))
        ]
        if events:
            AuditEvent.objects.using(self._using).append(events, batch_size=1000)
        self._before.clear()

    def _keys(self) -> dict[Model, list[Any]]:
        """The primary keys of all changed objects."""
        keys: dict[Model, list[Any]] = {}
        for model, key in self._before:
            keys.setdefault(model, []).append(key)
        return keys

    def _check(self, after: Mapping[Model, Mapping[Any, Taken]]) -> None:
        """Let the models check their rows; the lock of the audit log excludes other writers."""
        for model, states in after.items():
            before = {key: _state(self._before[model, key][0]) or {} for key in states}
            model.check_written({key: (before[key], now.state) for key, now in states.items()}, self._using)

    def _remember(self, model: Model, keys: Iterable[Any]) -> None:
        saved_keys = [key for key in keys if key is not None]
        if saved_keys:
            announce(self._using, Touched())  # what they concern follows when their new states are known
        unknown = [key for key in saved_keys if (model, key) not in self._before]
        states = snapshots(model, unknown, self._using)
        author = _author.get() or _CODE
        self._before |= {(model, key): (states.get(key), author) for key in unknown}


def _columns(rows: models.QuerySet[Any], names: Sequence[str]) -> list[set[Any]]:
    """The different values of several foreign keys of rows."""
    owners = [*rows.values_list(*[f"{name}_id" for name in names])]
    return [{row[index] for row in owners} for index in range(len(names))]


def _state(taken: Taken | None) -> Snapshot | None:
    return None if taken is None else taken.state


def _event(
    model: Model, key: Any, before: Taken | None, after: Taken | None, *, author: Author, when: datetime
) -> AuditEvent:
    verb = Verb.CREATE if before is None else Verb.DELETE if after is None else Verb.UPDATE
    return AuditEvent(
        actor=author.actor,
        source=author.source,
        verb=verb,
        object_type=model._meta.model_name or "",
        object_id=str(key),
        object_label=(after or before or Taken("", {})).label,
        before=_state(before),
        after=_state(after),
        reason=author.reason or _new_reason(_state(before) or {}, _state(after) or {}),
        when=when,
    )


def _new_reason(before: Snapshot, after: Snapshot) -> str:
    """The reason that an object has, unless it was that of an earlier change."""
    reason = after.get("reason", "")
    return "" if reason == before.get("reason", "") else str(reason)


def watch(watched: Iterable[type[models.Model]]) -> None:
    """Record rows of these models that are deleted by a cascade."""
    for model in watched:
        pre_delete.connect(_touch_row, sender=model, dispatch_uid=f"limits_app.recording.{model.__name__}")


def _touch_row(sender: Model, *, instance: Configuration, using: str, **details: object) -> None:
    with unit(using) as current:
        current.touch_row(instance)
