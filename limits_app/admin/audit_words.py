"""The audit log in words: what kind of object changed, its fields and values, and each event as a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.core.exceptions import FieldDoesNotExist
from django.db.models import DateTimeField
from django.template.defaultfilters import yesno
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import audit
from limits_app.admin.formatting import change_in_words
from limits_app.audit import MODELS
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit
from limits_app.models import (
    AuditEvent,
    CandidateState,
    Counted,
    EmergencySwitch,
    Endpoint,
    Enforcement,
    Entity,
    Policy,
    PolicyEffect,
    Verb,
)
from limits_app.models.limit_rules import noted_in, snapshot_text
from limits_app.models.snapshots import Snapshot
from limits_app.services.clients import client_names, with_name
from limits_app.services.display import amount, moment
from limits_app.services.limit_words import limit_in_words, limit_name, limits_in_words
from limits_app.services.policy_words import PolicySubject, rule_in_words, subject_in_words
from limits_app.services.rule_labels import label_of, resource_labels, rules_of_resources

_SOURCES: Final[Mapping[str, Any]] = {
    "admin": _("admin"),
    "api": _("API"),
    "code": _("the site's code, by models"),
    "command": _("command"),
    "import": _("import"),
    "service": _("the site's code"),
}
_OTHER_KINDS: Final[Mapping[str, Any]] = {
    "state": _("usage"),
    "auditevent": _("audit log"),
    "erasure": _("erased identifier"),
}


def source_in_words(source: str) -> str:
    """Return the label of a source; sites can use custom sources."""
    return str(_SOURCES.get(source, source))


def kind_in_words(object_type: str) -> str:
    """Return the label of the object type of an event."""
    model = MODELS.get(object_type)
    return str(_OTHER_KINDS.get(object_type, object_type) if model is None else model._meta.verbose_name)


def field_in_words(object_type: str, field: str) -> str:
    """Name a field as its form does, or, within parts such as `limits tpm: text`, that of the part."""
    field_label = _found(object_type, field)
    label = getattr(field_label, "verbose_name", None)  # the other side of a relation, such as candidates, has none
    if label is None:
        return field
    return ": ".join([*map(_part_in_words, field.split(": ")[:-1]), str(label)])


def _part_in_words(part: str) -> str:
    """Name a part of an object, such as “limit of requests” for `limits call_count`."""
    kind, _space, name = part.partition(" ")
    words = {"limits": gettext("limit of %(name)s"), "members": gettext("member %(name)s")}
    return words.get(kind, part) % {"name": limit_name(name) if kind == "limits" else name}


def value_in_words(object_type: str, field: str, value: Any) -> str:
    """Say what a field has: of what can be chosen what the form calls it."""
    if not isinstance(value, str):
        return _plain(value)
    part, _colon, name = field.rpartition(": ")
    kind, _space, key = part.rpartition(": ")[2].partition(" ")
    if (kind, name) == ("limits", "key"):
        return limit_name(value)
    if (kind, name) == ("limits", "text"):
        return limits_in_words(value if key == CallLimit.key else f"{key}={value}")
    if (object_type, field) == (Endpoint._meta.model_name, "limits"):
        return limits_in_words(value)
    if name in _RESOURCES or (object_type, field) == ("resource", "name"):
        return resource_labels([value]).get(value, value)
    return _text(_found(object_type, field), value)


def _text(field: Any, value: str) -> str:
    """What a field has that is kept as a text: one of its choices, or a moment."""
    at = parse_datetime(value) if isinstance(field, DateTimeField) else None
    return str(dict(getattr(field, "flatchoices", ())).get(value, value)) if at is None else moment(at)


def _plain(value: Any) -> str:
    """A number, or what a field for JSON has, as people write it: “region: eu, zones: a, b”."""
    match value:
        case dict():
            return ", ".join(f"{key}: {_plain(element)}" for key, element in value.items()) or "-"
        case list():
            return ", ".join(map(_plain, value)) or "-"
        case bool():
            return str(yesno(value))
        case int() | float():
            return amount(value)
    return "-" if value is None else str(value)


def _found(object_type: str, field: str) -> Any:
    """The field of a model that a difference is about; None where there was one once."""
    model: Any = MODELS.get(object_type)
    *parts, name = field.split(": ")
    try:
        for part in parts:
            model = model and model._meta.get_field(part.partition(" ")[0]).related_model
        return model._meta.get_field(name) if model else None
    except FieldDoesNotExist:
        return None


_ENTITY: Final = Entity._meta.model_name
_POLICY: Final = Policy._meta.model_name
_RULE: Final = Endpoint._meta.model_name
_MOST_CHANGES: Final = 3
"""How many changes a sentence names."""
_OF_THE_SCOPE: Final = {"scope", "resource", "entity", "plan", "counted"}
"""Fields of a policy that say whom it is about."""
_RESOURCES: Final = ("resource", "limits_resource")
"""Fields with the name of a resource, besides that of its own."""
_NAMES_OF_PARTS: Final = ("name", "key")
_REASON: Final = "reason"
"""Is shown beside the sentence, which names it only where nothing else changed."""


def clients_of(events: Iterable[AuditEvent]) -> Iterator[str]:
    """The clients that events are about."""
    for event in events:
        field = {_ENTITY: "identifier", _POLICY: "entity"}.get(event.object_type, "")
        if client := _state(event).get(field):
            yield str(client)


def in_sentences(events: Sequence[AuditEvent], names: Mapping[str, str] | None = None) -> list[str]:
    """Say what each event changed; the names of clients are read at once, unless they were."""
    names = client_names(clients_of(events)) if names is None else names
    rules = rules_of_resources(name for event in events for name in _resources(event))
    return [_sentence(event, names, rules) for event in events]


def objects_in_words(events: Sequence[AuditEvent], names: Mapping[str, str]) -> list[str]:
    """The object of each event, as sentences name it: a policy by whom it is about, a resource by its URL."""
    rules = rules_of_resources(name for event in events for name in _resources(event))
    return [_object(event, names, rules) for event in events]


def _resources(event: AuditEvent) -> list[str | None]:
    """The names of resources that the sentence for an event may have."""
    return [_state(event).get("resource"), *event.object_label.split()]


def _state(event: AuditEvent) -> Snapshot:
    """The object after an event, or before the event that deleted it."""
    return event.after or event.before or {}


def _sentence(event: AuditEvent, names: Mapping[str, str], rules: Mapping[str, Endpoint]) -> str:
    values = {"object": _object(event, names, rules), "what": _content(event)}
    if special := _switched(event) or access_in_words(event, names, rules):
        return special
    match event.verb:
        case Verb.CREATE:
            return (gettext("%(object)s: added %(what)s") if values["what"] else gettext("Added %(object)s")) % values
        case Verb.DELETE:
            text = gettext("%(object)s: removed %(what)s") if values["what"] else gettext("Removed %(object)s")
            return text % values
        case Verb.UPDATE:
            changes = [*_changes(event)]
            more = len(changes) - _MOST_CHANGES
            words = changes[:_MOST_CHANGES] + ([gettext("%(count)s more") % {"count": more}] if more > 0 else [])
            return f"{values['object']}: {', '.join(words)}" if words else values["object"]
    return f"{event.get_verb_display()}: {values['object']}"


def _object(event: AuditEvent, names: Mapping[str, str], rules: Mapping[str, Endpoint]) -> str:
    if event.object_type == _POLICY:
        return subject_in_words(_subject(_state(event)), names, rules)
    if event.object_type == _ENTITY:
        return with_name(event.object_label, names)
    if event.object_type == _RULE and (state := _state(event)).get("limits"):
        fields = {name: state.get(name) or "" for name in ("path", "view_name", "counted_by")}
        return rule_in_words(Endpoint(**fields))
    words = [label_of(rules[word]) if word in rules else word for word in event.object_label.split(" ")]
    return " ".join([kind_in_words(event.object_type), *words])


def _subject(state: Snapshot) -> PolicySubject:
    """Whom the policy of a snapshot is about."""
    names = (state.get("entity"), state.get("plan"), state.get("resource"))
    limits = state.get("limits")
    shared = tuple([bool(limit.get("shared")) for limit in limits]) if isinstance(limits, list) else ()
    return PolicySubject(*names, is_total=state.get("counted") == Counted.TOTAL, shared=shared)


def _content(event: AuditEvent) -> str:
    """What a policy that was created or deleted allows; empty for other objects."""
    state = _state(event)
    if event.object_type == _RULE:
        return limits_in_words(str(state.get("limits") or ""))
    if event.object_type != _POLICY:
        return ""
    if state.get("effect") != PolicyEffect.LIMITS:
        return value_in_words(_POLICY, "effect", state.get("effect"))
    return _with_end(", ".join(_limits(state).values()), state)


def _with_end(text: str, state: Snapshot) -> str:
    """A text, and the end of a policy that has one."""
    until = end_of(state)
    return gettext("%(what)s until %(date)s") % {"what": text, "date": until} if text and until else text


def _switched(event: AuditEvent) -> str:
    """What the emergency switch was set to, such as “Switched all limits off until …”; empty for other changes."""
    before, after = event.before or {}, event.after or {}
    mode = str(after.get("mode") or "")
    is_same = all(before.get(field) == after.get(field) for field in ("mode", "until"))
    if event.object_type != EmergencySwitch._meta.model_name or mode not in Enforcement.values or is_same:
        return ""
    until = end_of(after, "until") if mode != Enforcement.ENFORCE else ""
    return str(_SWITCHED_UNTIL[mode]) % {"until": until} if until else str(_SWITCHED[mode])


_SWITCHED: Final[Mapping[str, Any]] = {
    Enforcement.OFF: _("Switched all limits off"),
    Enforcement.SHADOW: _("Set all limits to be only reported"),
    Enforcement.ENFORCE: _("Enforced all limits again"),
}
_SWITCHED_UNTIL: Final[Mapping[str, Any]] = {
    Enforcement.OFF: _("Switched all limits off until %(until)s"),
    Enforcement.SHADOW: _("Set all limits to be only reported until %(until)s"),
}


def end_of(state: Snapshot, field: str = "valid_until") -> str:
    """When the policy of a snapshot ends; empty where it does not."""
    until = state.get(field)
    return moment(parse_datetime(until)) if isinstance(until, str) else ""


def access_in_words(event: AuditEvent, names: Mapping[str, str], rules: Mapping[str, Endpoint]) -> str:
    """That a client was blocked or exempted, or is no longer, such as “Blocked user:9 until …”; empty for the rest."""
    state, before = _state(event), event.before or {}
    if event.object_type == _ENTITY:
        is_only = event.verb == Verb.CREATE or [change.field for change in _fields(event)] == ["blocked"]
        if event.verb == Verb.DELETE or not is_only or bool(state.get("blocked")) == bool(before.get("blocked")):
            return ""
        return str(_ACCESS["blocked", bool(state["blocked"])]) % {"who": with_name(event.object_label, names)}
    is_whole = event.object_type == _POLICY and event.verb in {Verb.CREATE, Verb.DELETE}
    if not is_whole or not state.get("entity") or state.get("effect") == PolicyEffect.LIMITS:
        return ""
    who = with_name(str(state["entity"]), names)
    if resource := state.get("resource"):
        label = label_of(rules[resource]) if resource in rules else resource
        who = gettext("%(whom)s on %(resource)s") % {"whom": who, "resource": label}
    begins = event.verb == Verb.CREATE
    return str(_ACCESS[str(state["effect"]), begins]) % {"who": _with_end(who, state if begins else {})}


_ACCESS: Final[Mapping[tuple[str, bool], Any]] = {
    ("blocked", True): _("Blocked %(who)s"),
    ("blocked", False): _("Unblocked %(who)s"),
    ("unlimited", True): _("Exempted %(who)s"),
    ("unlimited", False): _("Ended the exemption of %(who)s"),
}


def _fields(event: AuditEvent) -> list[audit.Difference]:
    return audit.differences(event.before or {}, event.after or {})


def _changes(event: AuditEvent) -> Iterator[str]:
    """Each change of an object: limits in words, and other fields with their values before and after."""
    before, after = event.before or {}, event.after or {}
    old, new = _limits(before), _limits(after)
    for key in old | new:
        if old.get(key) != new.get(key):
            yield _changed(old.get(key), new.get(key))
    if trial := _trial(*[(state.get("candidates") or [{}])[0] for state in (before, after)]):
        yield trial
    yield from _other_changes(event, with_reason=not (old or new))


def _other_changes(event: AuditEvent, *, with_reason: bool) -> Iterator[str]:
    """The changes of an object besides those of its limits."""
    texts = [
        {**state, "candidates": None, "limits": None if isinstance(state.get("limits"), list) else state.get("limits")}
        for state in (event.before or {}, event.after or {})
    ]
    fields = [change for change in audit.differences(*texts) if change.field not in _OF_THE_SCOPE]
    parts = {part: change.change for change in fields for part in [_whole_part(change)] if part}
    for part, kind in parts.items():
        what = ": ".join(map(_part_in_words, part.split(": ")))
        text = gettext("added %(what)s") if kind == audit.FieldChange.ADDED else gettext("removed %(what)s")
        yield text % {"what": what}
    for change in fields:
        if any(change.field.startswith(f"{part}: ") for part in parts):
            continue
        if change.field == _REASON and not (with_reason and len(fields) == 1):
            continue
        words = [value_in_words(event.object_type, change.field, value) for value in (change.before, change.after)]
        if (event.object_type, change.field) == (_RULE, "limits") and all(words):
            yield change_in_words(*words)
            continue
        yield f"{field_in_words(event.object_type, change.field)} {_arrow(*words)}"


def _trial(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What happened to the trial of a policy; empty where nothing did."""
    limits, state = after.get("limits"), after.get("state")
    if not after and not before:
        return ""
    if not after:
        text = gettext("discarded the trial of %(limits)s")
    elif limits != before.get("limits") or state == CandidateState.TESTING != before.get("state"):
        text = gettext("tried %(limits)s")
    elif state == before.get("state"):
        return ""
    elif state == CandidateState.PROMOTED:
        text = gettext("enforced the trial of %(limits)s")
    else:
        text = gettext("reverted the trial of %(limits)s")
    return text % {"limits": limits_in_words(str(limits or before.get("limits")))}


def _whole_part(change: audit.Difference) -> str:
    """The part, such as a member of a pool, that was added or removed with this field; empty for others."""
    part, _colon, field = change.field.rpartition(": ")
    return part if field in _NAMES_OF_PARTS and change.change != audit.FieldChange.CHANGED else ""


def _limits(state: Snapshot) -> dict[str, str]:
    """The limits of a snapshot in words, by their keys; those of URL rules are a text, which is a field."""
    limits = state.get("limits")
    return {limit.get("key", ""): _limit(limit) for limit in limits} if isinstance(limits, list) else {}


def _limit(limit: Mapping[str, Any]) -> str:
    try:
        return limit_in_words(noted_in(limit).limit)
    except InvalidLimit:
        return snapshot_text(limit)


def _changed(before: str | None, after: str | None) -> str:
    """How one limit changed, such as “10 → 3 requests per minute”."""
    if before is None:
        return gettext("added %(what)s") % {"what": after}
    if after is None:
        return gettext("removed %(what)s") % {"what": before}
    return change_in_words(before, after)


def _arrow(before: str, after: str) -> str:
    return f"{before or '-'} → {after or '-'}"
