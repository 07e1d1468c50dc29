"""Redaction: replaces the identifier of an entity in events, which keep their places in the hash chain.

An event that records the redaction has the digests of the new contents, so that `verify` accepts these and no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from django.db import models

from limits_app.engine import RESOURCE_PATTERN
from limits_app.models import AuditEvent, Entity, Verb
from limits_app.models.audit_log import digest_of
from limits_app.models.recording import Unit
from limits_app.models.snapshots import Snapshot

_CHUNK: Final = 5000
_NAMES: Final = frozenset({"entity", "parent", "identifier"})
"""Fields that have the identifier of an entity and nothing else."""
_PERSONAL: Final[Mapping[str, Any]] = {"name": "", "metadata": {}}
"""Fields of an entity that describe it, and what they are replaced with."""


class Identifier:
    """An identifier that is replaced by a pseudonym: in its own fields, and within texts.

    One that could be the name of a resource, such as `acme`, is replaced in texts about the entity only.
    A longer identifier that contains it, such as `user:10` or `user:1:phone`, is another one.
    """

    def __init__(self, identifier: str, pseudonym: str) -> None:
        self.identifier, self.pseudonym = identifier, pseudonym
        self.is_word = RESOURCE_PATTERN.fullmatch(identifier) is not None

    @cached_property
    def _within(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![\w*])(?<![\w*][.:@/+-]){re.escape(self.identifier)}(?![\w*]|[.:@/+-]+[\w*])")

    @cached_property
    def _as_subject(self) -> re.Pattern[str]:
        """Where the label of a policy, or of an adjustment, has the entity."""
        return re.compile(rf"(?:(?<=^entity )|^){re.escape(self.identifier)}(?=$| on | in total$)")

    def out_of(self, text: str, *, is_about: bool = False) -> str:
        """A text without the identifier; `is_about` says whether the text is known to be about the entity."""
        if text == self.identifier:
            return self.pseudonym
        return text if self.is_word and not is_about else self._within.sub(self.pseudonym, text)

    def out_of_label(self, label: str) -> str:
        """The label of the entity, of a policy for it, or of an adjustment, without the identifier."""
        return self.out_of(self._as_subject.sub(self.pseudonym, label))

    def out_of_event(self, event: AuditEvent) -> dict[str, Any]:
        """The fields of an event that change, with their new values."""
        is_about = any(self._is_about(state) for state in (event.before, event.after))
        is_own = event.object_type == Entity._meta.model_name and is_about
        label = event.object_label
        rows = {
            "actor": event.actor if self.is_word else self.out_of(event.actor),
            "object_label": self.out_of_label(label) if is_about or not self.is_word else label,
            "reason": self.out_of(event.reason, is_about=is_about),
            "before": self._out_of_state(event.before, is_own=is_own),
            "after": self._out_of_state(event.after, is_own=is_own),
            "idempotency_key": self._out_of_key(event, is_about=is_about),
        }
        return {name: value for name, value in rows.items() if value != getattr(event, name)}

    def _out_of_key(self, event: AuditEvent, *, is_about: bool) -> str | None:
        """The idempotency key of an event; one with the identifier is replaced as a whole, and stays unique."""
        key = event.idempotency_key
        if not key or not (self.identifier in key if is_about else self.out_of(key) != key):
            return key
        return f"{self.pseudonym}:{event.number}"

    def _is_about(self, state: Snapshot | None) -> bool:
        return state is not None and self.identifier in (state.get("entity"), state.get("identifier"))

    def _out_of_state(self, state: Snapshot | None, *, is_own: bool) -> Any:
        if state is None:
            return None
        personal = _PERSONAL if is_own and self.identifier == state.get("identifier") else {}
        return {
            name: personal[name] if name in personal and value else self._out_of_value(name, value)
            for name, value in state.items()
        }

    def _out_of_value(self, name: str, value: Any) -> Any:
        match value:
            case str() if name in _NAMES:
                return self.out_of(value)
            case str() if name == "exempt_entities":
                return "\n".join(self.out_of(line) for line in value.split("\n"))
            case str():
                return value if self.is_word else self.out_of(value)
            case dict():
                return {self._out_of_value("", key): self._out_of_value(key, element) for key, element in value.items()}
            case list():
                return [self._out_of_value("", element) for element in value]
            case _:
                return value


def redact(identifier: Identifier, changes: Unit, *, using: str, **counted: int) -> int:
    """Replace an identifier in all events; returns in how many, and records that with the numbers `counted` elsewhere.

    Nothing is recorded if there was nothing to replace. It runs in the block of `changes`, which no other writer of
    configuration shares, and whose events are among them.
    """
    changes.write()
    events = {event.number: (event, fields) for event, fields in _found(identifier, using)}
    if not events and not any(counted.values()):
        return 0
    digests = {}
    for number, (event, fields) in events.items():
        for name, value in fields.items():
            setattr(event, name, value)
        digests[str(number)] = digest_of(event.digest, event.content)
    changes.record_erasure(identifier.pseudonym, {**counted, "redacted": digests})
    # The event comes first: the triggers allow to change the events that it names, and no others.
    rows: models.QuerySet[AuditEvent] = models.QuerySet(AuditEvent, using=using)
    for number, (_event, fields) in events.items():
        rows.filter(number=number).update(**fields)
    return len(events)


def _found(identifier: Identifier, using: str) -> Iterator[tuple[AuditEvent, dict[str, Any]]]:
    """The events that have the identifier, with the fields that change."""
    events: models.QuerySet[AuditEvent] = AuditEvent.objects.using(using).order_by("number")
    for event in events.iterator(chunk_size=_CHUNK):
        if fields := identifier.out_of_event(event):
            yield event, fields


def redactions(using: str) -> dict[int, str]:
    """The digests of the contents of redacted events, by the number of the event."""
    erasures = AuditEvent.objects.using(using).filter(verb=Verb.ERASE).order_by("number")
    digests: dict[int, str] = {}
    for after in erasures.values_list("after", flat=True).iterator():
        for number, digest in ((after or {}).get("redacted") or {}).items():
            digests[int(number)] = digest  # of several redactions of an event, the last one
    return digests
