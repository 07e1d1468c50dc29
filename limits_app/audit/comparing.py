"""Comparing configuration with what the log says of it: what was changed by SQL left no event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import router

from limits_app.audit.reverting import MODELS
from limits_app.models import AuditEvent, AuditHead
from limits_app.models.snapshots import Snapshot, batches, snapshots

__all__ = ["Unrecorded", "unrecorded"]


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """An object that is not as its last event says; `told` is None where there is none, `found` where it is gone."""

    object_type: str
    object_id: str
    told: Snapshot | None
    found: Snapshot | None

    def __str__(self) -> str:
        done = "made" if self.told is None else "deleted" if self.found is None else "changed"
        return f"{self.object_type} {self.object_id} was {done} without an event"


def unrecorded(*, using: str | None = None) -> Iterator[Unrecorded]:
    """Give each object that was changed, made or deleted by another way than this app's, such as by SQL.

    The keys of all objects are in memory, and some hundred of the objects themselves.
    Objects that are older than what was pruned are not known; related objects that were renamed are not compared.
    """
    using = using or router.db_for_write(AuditEvent)
    events = AuditEvent.objects.using(using).filter(object_type__in=MODELS).order_by("number")
    last: dict[str, dict[str, int]] = {name: {} for name in MODELS}
    for kind, key, number in events.values_list("object_type", "object_id", "number").iterator():
        last[kind][key] = number
    for kind, numbers in last.items():
        for batch in batches(numbers.values()):
            yield from _differing(kind, events.filter(number__in=batch), using)
    if not AuditHead._default_manager.using(using).filter(pruned_number__gt=0).exists():
        for kind, numbers in last.items():
            yield from _unknown(kind, {*numbers}, using)


def _differing(kind: str, events: Any, using: str) -> Iterator[Unrecorded]:
    told = {MODELS[kind]._meta.pk.to_python(key): after for key, after in events.values_list("object_id", "after")}
    found = snapshots(MODELS[kind], told, using)
    for key, state in told.items():
        stands = found[key].state if key in found else None
        if not _is_so(kind, state, stands, using):
            yield Unrecorded(kind, str(key), state, stands)


def _is_so(kind: str, told: Snapshot | None, found: Snapshot | None, using: str) -> bool:
    if told is None or found is None:
        return told is found
    wrong = [name for name, value in told.items() if name not in found or found[name] != value]
    return all(_was_renamed(kind, name, told[name], using) for name in wrong)


def _was_renamed(kind: str, field: str, told: Any, using: str) -> bool:
    """Whether a field names an object that had this name once, and has another now."""
    fields: dict[str, Any] = {one.name: one for one in MODELS[kind]._meta.concrete_fields}
    if field not in fields or not fields[field].is_relation or told is None:
        return False
    related = fields[field].related_model
    renamed = AuditEvent.objects.using(using).filter(
        object_type=related._meta.model_name, verb="update", **{f"before__{related.named_by}": told}
    )
    return any((one.after or {}).get(related.named_by) != told for one in renamed.iterator())


def _unknown(kind: str, known: set[str], using: str) -> Iterator[Unrecorded]:
    model = MODELS[kind]
    keys = model._base_manager.using(using).values_list("pk", flat=True).iterator()
    for batch in batches([key for key in keys if str(key) not in known]):
        for key, taken in snapshots(model, batch, using).items():
            yield Unrecorded(kind, str(key), None, taken.state)
