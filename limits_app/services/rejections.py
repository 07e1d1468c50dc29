"""Rejections with their reason: the limit that rejected, and its policy as it was then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db import router
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext

from limits_app.engine.errors import InvalidLimit
from limits_app.engine.keys import EntityName
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.models import (
    AuditEvent,
    BucketKind,
    CodeLimits,
    Enforcement,
    Entity,
    Plan,
    Policy,
    PolicyEffect,
    PolicyScope,
    Resource,
    Verb,
)
from limits_app.models.fields import aware, in_site_time
from limits_app.models.limit_rules import noted_in
from limits_app.models.patterns import patterns_of, specificity
from limits_app.models.policy_rules import Counted
from limits_app.models.snapshots import Snapshot, batches, snapshots
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.services.clients import user_names, with_name
from limits_app.services.limit_words import limit_in_words, limit_name
from limits_app.usage.reading import DenialCount, LimitKeys, denied

_MOST_EVENTS: Final = 5_000
"""How many audit events of the policies in question are read, the latest first."""

_SPECIFIC_FIRST: Final = [scope.value for scope in PolicyScope]


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rejections by a limit in a minute, with the reason.

    `name` is the display name of the entity, if it has one. `limit` is the limit as it was then, or the one that code
    sets; None if it is unknown, for example because code sets several with this key. `policy_id` is its
    policy, `event_id` the primary key of the audit event that wrote that version of the policy, and `event_number` its
    number; they are None without one.
    """

    count: DenialCount
    name: str
    limit: LimitDefinition | None
    policy_id: int | None
    event_id: int | None
    event_number: int | None

    @property
    def client(self) -> str:
        """Who was rejected, in words."""
        if self.count.entity:
            who = with_name(self.count.entity, {self.count.entity: self.name})
            return who if self.count.bucket == BucketKind.ENTITY else f"{who} ({self.count.bucket.label})"
        whole_site = gettext("No user (whole site)")
        return whole_site if self.count.bucket == BucketKind.ENTITY else str(self.count.bucket.label)

    @property
    def why(self) -> str:
        """The reason as a sentence."""
        resource = self.count.resource or gettext("all resources together")
        limit = limit_name(self.count.key) if self.limit is None else limit_in_words(self.limit)
        values = {"who": self.client, "limit": limit, "resource": resource}
        if self.count.key == Blocked.key:
            return gettext("%(who)s was blocked on %(resource)s.") % values
        return gettext("%(who)s reached the limit of %(limit)s on %(resource)s.") % values


def rejections(
    resource: str | None = None,
    *,
    entity: EntityName = None,
    key: LimitKeys = None,
    since: datetime | None = None,
    until: datetime | None = None,
    request_id: str | None = None,
    offset: int = 0,
    most: int = 100,
) -> list[Rejection]:
    """Rejections with their reasons, the latest minute first; by default of the last 48 hours.

    `key` is a limit key, or several. `since` and `until` select the minutes that begin in this time, `until` excluded.
    `request_id` selects the rejections of this request, if it is among the last of its minute. `offset` rows are
    skipped, and at most `most` returned. The number of queries does not depend on the number of rows.
    Raises InvalidRequest (a ValueError) for an invalid time.
    """
    rows = denied(resource, entity, key, since=since, until=until, request_id=request_id)[offset : offset + most]
    counts = [DenialCount.of(row) for row in rows]
    clients = {count.entity for count in counts if count.bucket == BucketKind.ENTITY and count.entity}
    entities = {
        entity.identifier: entity for entity in Entity.objects.filter(identifier__in=clients).select_related("plan")
    }
    history = _versions(counts, {entity.plan for entity in entities.values() if entity.plan is not None})
    code = _code_limits(counts)
    names = user_names(clients - {name for name, row in entities.items() if row.name})
    for name in names:
        entities.setdefault(name, Entity(identifier=name)).name = names[name]
    return [_rejection(count, entities.get(count.entity) or Entity(identifier=""), history, code) for count in counts]


@dataclass(frozen=True, slots=True)
class _Version:
    """A policy as it was for some time."""

    policy_id: int
    state: Snapshot
    event_id: int | None = None
    event_number: int | None = None

    def rank(self) -> tuple[int, int, bool, bool]:
        """The order in which policies are considered: by scope and pattern, then dates before weekly hours."""
        state = self.state
        dated, weekly = bool(state["valid_from"]), bool(state["weekly_hours"])
        return _SPECIFIC_FIRST.index(state["scope"]), -specificity(state["entity"] or ""), not dated, not weekly

    def matches(self, count: DenialCount) -> bool:
        """Whether it applied to the entity and the resource, and was enforced at that time; all plans match."""
        state, at = self.state, aware(count.last)
        if (state["counted"] == Counted.TOTAL) == bool(count.resource):  # totals are those of no resource
            return False
        if state["resource"] not in (None, count.resource) or state["entity"] not in (None, *_subjects(count)):
            return False
        if state["enforcement"] != Enforcement.ENFORCE or not state["rollout_percent"]:
            return False
        start, end = (parse_datetime(state[name] or "") for name in ("valid_from", "valid_until"))
        if (start is not None and at < aware(start)) or (end is not None and at >= aware(end)):
            return False
        hours = state["weekly_hours"]
        return not hours or WeeklyHours.parse(hours, state["time_zone"]).holds(at)

    def limit(self, count: DenialCount) -> LimitDefinition | None:
        """Its limit of this key."""
        for limit in self.state["limits"]:
            if limit["key"] == count.key and bool(limit.get("shared")) == (count.bucket == BucketKind.SHARED):
                try:
                    return noted_in(limit).limit
                except InvalidLimit:  # written past the validation of the model
                    return None
        return None

    def explains(self, count: DenialCount) -> bool:
        """Whether it has the limit, or blocks."""
        if count.key == Blocked.key:
            return bool(self.state["effect"] == PolicyEffect.BLOCKED)
        return self.limit(count) is not None


class _History:
    """The versions of some policies, by time."""

    def __init__(self, events: Iterable[AuditEvent], now: dict[int, Snapshot]) -> None:
        self._events: dict[int, list[AuditEvent]] = {}
        for event in events:
            self._events.setdefault(int(event.object_id), []).append(event)
        self._now = now

    def at(self, moment: datetime) -> Iterator[_Version]:
        """Each policy that existed at a time, as it was."""
        for key in self._now.keys() | self._events.keys():
            version = self._version(key, moment)
            if version is not None:
                yield version

    def _version(self, key: int, moment: datetime) -> _Version | None:
        events = self._events.get(key, [])
        earlier = [event for event in events if aware(event.when) <= moment]
        if earlier:
            event = earlier[-1]
            return _Version(key, event.after, event.pk, event.number) if event.after else None
        state = events[0].before if events else self._now.get(key)  # its first events may have been pruned
        return _Version(key, state) if state else None


def _versions(counts: Sequence[DenialCount], plans: Collection[Plan]) -> _History:
    """The history of all policies that may have rejected, with a few queries."""
    if not counts:
        return _History([], {})
    using = router.db_for_read(Policy)
    keys = {*_deleted(counts, plans), *_candidates(counts, using)}
    log = AuditEvent.objects.filter(object_type="policy", object_id__in=map(str, keys), verb__in=_WRITES)
    events = list(log.order_by("-number")[:_MOST_EVENTS])[::-1]
    silent = keys - {int(event.object_id) for event in events}
    return _History(events, {key: taken.state for key, taken in snapshots(Policy, silent, using).items()})


_WRITES: Final = (Verb.CREATE, Verb.UPDATE, Verb.DELETE)


def _subjects(count: DenialCount) -> list[str]:
    """The entity with the patterns that match it."""
    is_client = count.bucket == BucketKind.ENTITY and count.entity
    return [count.entity, *patterns_of(count.entity)] if is_client else []


def _candidates(counts: Sequence[DenialCount], using: str) -> Iterable[int]:
    """Primary keys of the policies that may apply to one of the rejections."""
    resources = {count.resource for count in counts}
    entities = {name for count in counts for name in _subjects(count)}
    policies = Policy.objects.using(using).order_by().values_list("pk")
    of_entities = [policies.filter(entity__identifier__in=batch) for batch in batches(entities)]
    of_resources = policies.filter(entity=None, resource__name__in=resources)
    return [key for (key,) in policies.filter(entity=None, resource=None).union(of_resources, *of_entities).order_by()]


def _deleted(counts: Sequence[DenialCount], plans: Collection[Plan]) -> Iterable[int]:
    """Primary keys of the policies of these scopes that were deleted since the first of the rejections."""
    log = AuditEvent.objects.filter(object_type="policy", verb=Verb.DELETE, object_label__in=_labels(counts, plans))
    since = min(aware(count.minute) for count in counts)
    numbers = log.filter(when__gte=in_site_time(since)).order_by("-number").values_list("object_id", flat=True)
    return map(int, numbers[:_MOST_EVENTS])


def _labels(counts: Iterable[DenialCount], plans: Collection[Plan]) -> set[str]:
    """The names of all policies that may have rejected."""
    labels = set()
    for count in counts:
        entities = [Entity(pk=0, identifier=name) for name in _subjects(count)]
        subjects: list[dict[str, Any]] = [
            {},
            *({"entity": entity} for entity in entities),
            *({"plan": plan} for plan in plans),
        ]
        place: dict[str, Any] = {"counted": Counted.TOTAL}
        if count.resource:
            place = {"resource": Resource(pk=0, name=count.resource)}
            labels |= {str(Policy(**subject)) for subject in subjects}
        labels |= {str(Policy(**subject, **place)) for subject in subjects}
    return labels


def _code_limits(counts: Iterable[DenialCount]) -> dict[tuple[str, str], set[LimitDefinition]]:
    """The limits that code sets, by resource and key."""
    limits: dict[tuple[str, str], set[LimitDefinition]] = {}
    for row in CodeLimits.objects.filter(resource__in={count.resource for count in counts}):
        for limit in row.definitions:
            limits.setdefault((row.resource, limit.key), set()).add(limit)
    return limits


def _rejection(
    count: DenialCount, client: Entity, history: _History, code: Mapping[tuple[str, str], Collection[LimitDefinition]]
) -> Rejection:
    unknown = Rejection(count, client.name, None, None, None, None)
    versions = [
        version for version in history.at(aware(count.last)) if version.matches(count) and version.explains(count)
    ]
    if client.plan is not None or count.bucket == BucketKind.SHARED:
        plan = None if client.plan is None else client.plan.name
        versions = [version for version in versions if version.state["plan"] in (None, plan)]
    if count.bucket in (BucketKind.MEMBER, BucketKind.OTHERS):
        return unknown
    if not versions:
        set_in_code = tuple(code.get((count.resource, count.key), ()))
        return replace(unknown, limit=set_in_code[0]) if len(set_in_code) == 1 else unknown
    version = min(versions, key=_Version.rank)
    if version.state["plan"] is not None and client.plan is None:
        return unknown  # a client can have a plan from its parent, its groups or the request
    return Rejection(
        count, client.name, version.limit(count), version.policy_id, version.event_id, version.event_number
    )
