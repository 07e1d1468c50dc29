"""Saves as people read them in the audit log: one line for all that one save changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext

from limits_app import audit
from limits_app.admin.audit_words import clients_of, end_of, in_sentences
from limits_app.audit import MODELS
from limits_app.engine.errors import InvalidLimit
from limits_app.models import AuditEvent, Policy, Verb, write_alias
from limits_app.models.limit_rules import noted_in
from limits_app.models.snapshots import Snapshot
from limits_app.services.clients import client_names, events_of, with_name
from limits_app.services.limit_words import limit_in_words
from limits_app.services.rule_labels import resource_labels

_MOST_PARTS: Final = 3
"""How many changes of one save a line names."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """What a save did, by its main events in their order."""

    events: tuple[AuditEvent, ...]
    sentence: str

    @property
    def event(self) -> AuditEvent:
        """The event whose page is opened."""
        return self.events[0]

    @property
    def can_be_undone(self) -> bool:
        """Whether all of it is about objects."""
        return all(event.object_type in MODELS for event in self.events)

    @property
    def reason(self) -> str:
        """The reasons of its events, each once."""
        return ", ".join(dict.fromkeys(filter(None, (event.reason for event in self.events))))


def lines(events: Iterable[AuditEvent], names: Mapping[str, str] | None = None) -> list[AuditLine]:
    """A line for each save, in the order of the events; the names of clients are read at once, unless they were."""
    units = [sorted(audit.main_events(unit), key=lambda event: event.number) for unit in audit.units(events)]
    every = [event for unit in units for event in unit]
    names = client_names(clients_of(every)) if names is None else names
    sentences = dict(zip([event.number for event in every], in_sentences(every, names), strict=True))
    return [AuditLine(tuple(unit), _sentence(unit, sentences, names)) for unit in units]


def line_of(event: AuditEvent, client: str = "") -> AuditLine:
    """The line of the save that an event belongs to, or of what that changed of a client."""
    unit = audit.unit_of(event)
    if client:
        about = AuditEvent.objects.filter(events_of([client], write_alias()), pk__in=[part.pk for part in unit])
        of_client = {*about.values_list("pk", flat=True)}
        unit = [part for part in unit if part.pk in of_client] or [event]
    return lines(unit)[0]


def _sentence(unit: Sequence[AuditEvent], sentences: Mapping[int, str], names: Mapping[str, str]) -> str:
    if boost := _boost_in_words(unit, names):
        return boost
    parts = [*dict.fromkeys(sentences[event.number] for event in unit)]
    more = len(parts) - _MOST_PARTS
    shown = [*parts[:_MOST_PARTS], *([gettext("%(count)s more") % {"count": more}] if more > 0 else [])]
    return "; ".join(shown)


def _boost_in_words(unit: Collection[AuditEvent], names: Mapping[str, str]) -> str:
    """A boost of one client as one thing, whatever rows it made or removed; empty for other changes."""
    states = [event.after or event.before or {} for event in unit]
    verbs, clients = {event.verb for event in unit}, {str(state.get("entity") or "") for state in states}
    is_of_policies = all(event.object_type == Policy._meta.model_name for event in unit)
    times = {(state.get("valid_from"), state.get("valid_until")) for state in states}
    is_boost = is_of_policies and any(state.get("extends") and state.get("valid_until") for state in states)
    if not is_boost or len(clients) > 1 or clients == {""} or len(times) > 1 or len(verbs) > 1:
        return ""
    values = {"client": with_name(clients.pop(), names), "until": end_of(states[0])}
    if verbs == {Verb.CREATE}:
        text = gettext("Boosted %(client)s until %(until)s: %(limits)s")
        return text % {**values, "limits": "; ".join(_raised(states))}
    return gettext("Ended the boost of %(client)s") % values if verbs == {Verb.DELETE} else ""


def _raised(states: Collection[Snapshot]) -> Iterator[str]:
    """The limits of a boost, by resource; rows that only keep a resource without limits are left out."""
    urls = resource_labels(state.get("resource") for state in states)
    for state in states:
        words = []
        for limit in state.get("limits") or ():
            try:
                words.append(limit_in_words(noted_in(limit).limit))
            except InvalidLimit:  # written past the validation of the model
                words.append(str(limit.get("text", "")))
        if words:
            resource = str(state.get("resource") or "")
            values = {"limits": ", ".join(words), "resource": urls.get(resource, resource)}
            yield (gettext("%(limits)s on %(resource)s") if state.get("resource") else "%(limits)s") % values
