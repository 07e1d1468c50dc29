"""Differences between snapshots, field by field, and reverting events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import ProtectedError
from django.utils.translation import gettext

from limits_app.audit.units import NOTHING
from limits_app.engine.errors import CannotRevert
from limits_app.models import CONFIGURATION, AuditEvent
from limits_app.models.recording import acting
from limits_app.models.snapshots import Snapshot, parts_of, snapshots

if TYPE_CHECKING:
    from limits_app.models import Configuration

    Model = type[Configuration]

_NAMES: Final = ("key", "name")


class FieldChange(StrEnum):
    """How a field changed."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """A changed field; `field` includes the nested object, as in `limits tpm: text`."""

    field: str
    change: FieldChange
    before: Any
    after: Any


def differences(before: Snapshot | None, after: Snapshot | None) -> list[Difference]:
    """Return the changed fields in the order of the object; a change between empty values is ignored."""
    old, new = _flat(before or {}), _flat(after or {})
    changes = []
    for field in old | new:
        was, became = old.get(field), new.get(field)
        if was != became and not (was in NOTHING and became in NOTHING):
            changes.append(Difference(field, _change(was, became), was, became))
    return changes


def _change(was: Any, became: Any) -> FieldChange:
    if was is None:
        return FieldChange.ADDED
    return FieldChange.REMOVED if became is None else FieldChange.CHANGED


def _flat(state: Snapshot, within: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field, value in state.items():
        if isinstance(value, list) and all(isinstance(element, dict) and _name(element) for element in value):
            for part in value:
                flat |= _flat(part, f"{within}{field} {_name(part)}: ")
        else:
            flat[within + field] = value
    return flat


def _name(part: Snapshot) -> Any:
    return next((part[name] for name in _NAMES if name in part), None)


MODELS: Final[Mapping[str, Any]] = {model._meta.model_name or "": model for model in CONFIGURATION if not model.part_of}


def revert(event: AuditEvent, *, actor: str = "", source: str = "code", reason: str = "", force: bool = False) -> None:
    """Restore an object to its state before an event: with its parts, under its old primary key, and audited.

    Raises CannotRevert without changing anything if the object has been changed since (unless `force`), if it refers
    to a deleted object, if other objects refer to an object to be deleted, or if the old state is no longer valid.
    """
    model = model_of(event)
    using = event._state.db or ""
    with acting(actor=actor, source=source, reason=reason or f"revert of event {event.number}", using=using):
        _check(event, state_now(event), force=force)
        item = _found(event, model) or model(**{model._meta.pk.attname: _key(event, model)})
        try:
            if event.before is None:
                item.delete()
            else:
                _restore(item, event.before, using)
        except ProtectedError as error:
            users = ", ".join(sorted(map(str, error.protected_objects)))
            why = gettext("%(label)s is in use: remove it from %(users)s first")
            raise CannotRevert(why % {"label": event.object_label, "users": users}) from error
        except ValidationError as error:
            why = gettext("%(label)s can no longer be restored: %(problems)s")
            raise CannotRevert(why % {"label": event.object_label, "problems": "; ".join(error.messages)}) from error


def model_of(event: AuditEvent) -> Model:
    """The model of the object of an event; raises CannotRevert if the event is not about an object."""
    model: Model | None = MODELS.get(event.object_type)
    if model is None:
        what = {"verb": event.verb, "type": event.object_type}
        raise CannotRevert(
            gettext("a %(verb)s of %(type)s did not change configuration, so there is nothing to revert") % what
        )
    return model


def state_now(event: AuditEvent) -> Snapshot | None:
    """The current state of the object of an event; None if it does not exist.

    Raises CannotRevert if the event is not about an object.
    """
    model = model_of(event)
    snapshot = snapshots(model, [_key(event, model)], event._state.db).get(_key(event, model))
    return None if snapshot is None else snapshot.state


def changed_since(event: AuditEvent) -> bool:
    """Whether the object of an event has been changed after it; CannotRevert if the event is not about an object."""
    return not _same(state_now(event), event.after)


def undone(events: Iterable[AuditEvent]) -> set[int]:
    """The numbers of events whose objects are again as before, by the latest of these events about each object."""
    by_object: dict[tuple[str, str], list[AuditEvent]] = {}
    for event in events:
        by_object.setdefault((event.object_type, event.object_id), []).append(event)
    return {
        event.number
        for changes in by_object.values()
        for last in [max(changes, key=lambda event: event.number)]
        for event in changes
        if event is not last and _same(last.after, event.before)
    }


def changed_by_revert(event: AuditEvent) -> tuple[str, Model]:
    """What reverting an event does: add, change or delete, and the model of the object.

    Call it in the same `acting` block as the revert, because it depends on whether the object exists.
    Raises CannotRevert if the event is not about an object.
    """
    model = model_of(event)
    return "delete" if event.before is None else "add" if _found(event, model) is None else "change", model


def _key(event: AuditEvent, model: Model) -> Any:
    return model._meta.pk.to_python(event.object_id)


def _found(event: AuditEvent, model: Model) -> Configuration | None:
    """The object of an event, if it exists."""
    return model._base_manager.using(event._state.db).filter(pk=_key(event, model)).first()


def _check(event: AuditEvent, state: Snapshot | None, *, force: bool) -> None:
    label = {"label": event.object_label}
    if not event.is_unchanged():
        raise CannotRevert(gettext("the event about %(label)s is redacted, so its old state is not known") % label)
    if _same(state, event.before):
        raise CannotRevert(gettext("%(label)s already is as it was before this event") % label)
    if not force and not _same(state, event.after):
        raise CannotRevert(
            gettext("%(label)s has been changed since: revert the later events first, or use force") % label
        )


def _same(state: Snapshot | None, told: Snapshot | None) -> bool:
    """Whether an object equals a snapshot; fields that a later version added are ignored."""
    if state is None or told is None:
        return state is told
    return all(name in state and state[name] == value for name, value in told.items())


def _restore(item: Configuration, told: Snapshot, using: str) -> None:
    """Save an object with the state of its snapshot, and recreate nested objects."""
    _fill(item, told, using)
    item._state.db = using
    item.clean_fields(exclude={field.name for field in item._meta.concrete_fields if field.is_relation})
    item.clean()
    item.validate_unique()
    item.validate_constraints()
    item.save(using=using)
    for name, field, part in parts_of(type(item)):
        part._base_manager.using(using).filter(**{field: item}).delete()
        for definition in told.get(name, ()):
            _restore(part(**{field: item}), definition, using)


def _fill(item: Configuration, told: Snapshot, using: str) -> None:
    parts = {name for name, *_ in parts_of(type(item))}
    fields: dict[str, Any] = {field.name: field for field in item._meta.concrete_fields}
    for name, value in told.items():
        if name in fields:
            setattr(item, name, _value(fields[name], value, using))
        elif name not in parts and name not in item.implied:
            raise CannotRevert(gettext("the field %(name)s no longer exists") % {"name": name})


def _value(field: Any, told: Any, using: str) -> Any:
    if told is None:
        return None
    if field.is_relation:
        related: Model = field.related_model
        row = related._base_manager.using(using).filter(**{related.named_by: told}).first()
        if row is None:
            what = {"type": related._meta.verbose_name, "name": told}
            raise CannotRevert(gettext("%(type)s %(name)s does not exist: restore it first") % what)
        return row
    return field.to_python(str(told) if isinstance(field, models.DecimalField) else told)
