"""Saves in the audit log: the events of one unit of change, and which of them only follow others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from limits_app.models import AuditEvent, Endpoint, Entity, Policy, Resource, Verb
from limits_app.models.rule_resources import OF_RESOURCE
from limits_app.models.snapshots import Snapshot

MOST_IN_UNIT: Final = 200
"""A unit with more events, such as that of a limits file, is shown and undone event by event."""
_NAME_ALONE: Final[Mapping[str, str]] = {
    Entity._meta.model_name or "": "identifier",
    Resource._meta.model_name or "": "name",
}
NOTHING: Final[tuple[Any, ...]] = (None, "", False, [], {})


def units(events: Iterable[AuditEvent]) -> list[list[AuditEvent]]:
    """Events in their order, those of one save together; those of a unit that is too large each by itself."""
    together: list[list[AuditEvent]] = []
    for event in events:
        if together and _are_together(together[-1][-1], event):
            together[-1].append(event)
        else:
            together.append([event])
    parts = ([unit] if len(unit) <= MOST_IN_UNIT else [[event] for event in unit] for unit in together)
    return [*chain.from_iterable(parts)]


def unit_of(event: AuditEvent) -> list[AuditEvent]:
    """The events of the save that an event belongs to, in their order; the event alone if there are too many."""
    same = AuditEvent.objects.using(event._state.db).filter(when=event.when, actor=event.actor, source=event.source)
    near = range(event.number - MOST_IN_UNIT, event.number + MOST_IN_UNIT + 1)
    rows = same.filter(number__gte=near[0], number__lte=near[-1]).order_by("number")
    return next(unit for unit in units(rows) if event in unit)


def main_events(unit: Collection[AuditEvent]) -> list[AuditEvent]:
    """The events of a save without those that follow from others.

    Those are rows that were made only to name a client or a resource, and what was made for the limits of a URL rule.
    Where all follow from others, they are all there is.
    """
    made = made_for_rules(unit)
    return [event for event in unit if not (is_made(event, made) or _only_names(event))] or [*unit]


def made_for_rules(events: Iterable[AuditEvent]) -> set[str]:
    """The names of the resources that were made for the URL rules of some events."""
    rules = [event for event in events if event.object_type == Endpoint._meta.model_name]
    states = (state for event in rules for state in (event.before, event.after))
    return {name for state in states if (name := str((state or {}).get("limits_resource") or ""))}


def is_made(event: AuditEvent, made: Collection[str]) -> bool:
    """Whether an event is about such a resource, or about the policy of its limits, which follow the rule."""
    state = event.after or event.before or {}
    if event.object_type == Resource._meta.model_name:
        return event.object_label in made
    is_of_resource = not any(state.get(name) for name in OF_RESOURCE)
    return event.object_type == Policy._meta.model_name and state.get("resource") in made and is_of_resource


def _are_together(event: AuditEvent, other: AuditEvent) -> bool:
    same = all(getattr(event, name) == getattr(other, name) for name in ("when", "actor", "source"))
    return same and abs(event.number - other.number) <= MOST_IN_UNIT


def _only_names(event: AuditEvent) -> bool:
    """Whether it made a row that says nothing but its name."""
    name = _NAME_ALONE.get(event.object_type)
    state: Snapshot = event.after or {}
    return (
        event.verb == Verb.CREATE
        and name is not None
        and all(field == name or value in NOTHING for field, value in state.items())
    )
