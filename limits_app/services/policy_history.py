"""Policies as they were when they rejected requests, from the audit log and the present rows, with a few queries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from django.db import router
from django.db.models import Q
from django.utils.dateparse import parse_datetime

from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.models import AuditEvent, BucketKind, Enforcement, Policy, PolicyEffect, PolicyScope, Verb
from limits_app.models.fields import aware, in_site_time
from limits_app.models.limit_rules import noted_in
from limits_app.models.patterns import patterns_of, specificity
from limits_app.models.policy_rules import Counted
from limits_app.models.snapshots import Snapshot, batches, snapshots
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.usage.reading import DenialCount

_MOST_EVENTS: Final = 5_000
"""How many audit events of the policies in question are read, the latest first."""

_SPECIFIC_FIRST: Final = {scope.value: rank for rank, scope in enumerate(PolicyScope)}
_WRITES: Final = (Verb.CREATE, Verb.UPDATE, Verb.DELETE)


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A policy as it was for some time."""

    policy_id: int
    state: Snapshot
    event_id: int | None
    event_number: int | None

    def rank(self) -> tuple[int, int, bool, bool]:
        """The order in which policies are considered: by scope and pattern, then dates before weekly hours."""
        state = self.state
        dated, weekly = bool(state["valid_from"]), bool(state["weekly_hours"])
        return _SPECIFIC_FIRST[state["scope"]], -specificity(state["entity"] or ""), not dated, not weekly

    def limit(self, count: DenialCount) -> LimitDefinition | None:
        """Its limit of this key."""
        for limit in self.state["limits"]:
            if limit["key"] == count.key and bool(limit.get("shared")) == (count.bucket == BucketKind.SHARED):
                try:
                    return noted_in(limit).limit
                except InvalidLimit:  # written past the validation of the model
                    return None
        return None

    def rejects(self, count: DenialCount) -> bool:
        """Whether it was enforced at that time, and has the limit, or blocks; all plans match."""
        state, at = self.state, aware(count.last)
        is_block_of_client = count.key == Blocked.key and not count.resource and state["resource"] is None
        # Totals are those of no resource.
        if not is_block_of_client and (state["counted"] == Counted.TOTAL) == bool(count.resource):
            return False
        if state["enforcement"] != Enforcement.ENFORCE or not state["rollout_percent"]:
            return False
        start, end = (parse_datetime(state[name] or "") for name in ("valid_from", "valid_until"))
        if (start is not None and at < aware(start)) or (end is not None and at >= aware(end)):
            return False
        hours = state["weekly_hours"]
        if hours and not WeeklyHours.parse(hours, state["time_zone"]).holds(at):
            return False
        if count.key == Blocked.key:
            return bool(state["effect"] == PolicyEffect.BLOCKED)
        return self.limit(count) is not None


class _Written(NamedTuple):
    """What a policy was since a time, and the event that wrote it; None before its first event, and once deleted."""

    state: Snapshot | None
    event: AuditEvent | None


class PolicyHistory:
    """The versions of some policies, by time; they are found by what they are for, as their number may be large."""

    def __init__(self, events: Iterable[AuditEvent], now: Mapping[int, Snapshot]) -> None:
        self._times: dict[int, list[datetime]] = {key: [] for key in now}
        self._written = {key: [_Written(state, None)] for key, state in now.items()}
        for event in events:
            key = int(event.object_id)
            written = self._written.setdefault(key, [_Written(event.before, None)])
            self._times.setdefault(key, []).append(aware(event.when))
            written.append(_Written(event.after, event))
        self._about: dict[tuple[str | None, str | None], set[int]] = {}
        for key, versions in self._written.items():
            for state in (version.state for version in versions if version.state):
                self._about.setdefault((state["resource"], state["entity"]), set()).add(key)

    def rejecting(self, count: DenialCount, subjects: Iterable[str]) -> Iterator[PolicyVersion]:
        """Each policy that may have made the rejections, as it was then; `subjects` are those of `subjects_of`."""
        keys: set[int] = set()
        for subject in (None, *subjects):
            for resource in (None, count.resource):
                keys |= self._about.get((resource, subject), set())
        for key in keys:
            version = self._at(key, aware(count.last))
            about = None if version is None else (version.state["resource"], version.state["entity"])
            # It may have been about something else at another time.
            is_about = about is not None and about[0] in {None, count.resource} and about[1] in {None, *subjects}
            if version is not None and is_about and version.rejects(count):
                yield version

    def _at(self, key: int, moment: datetime) -> PolicyVersion | None:
        state, event = self._written[key][bisect_right(self._times[key], moment)]
        if not state:
            return None
        return PolicyVersion(key, state, None if event is None else event.pk, None if event is None else event.number)


def subjects_of(counts: Iterable[DenialCount]) -> dict[str, list[str]]:
    """Each client that was rejected, with the patterns that match it."""
    clients = {count.entity for count in counts if count.bucket == BucketKind.ENTITY and count.entity}
    return {client: [client, *patterns_of(client)] for client in clients}


def policy_history(counts: Sequence[DenialCount], subjects: Collection[str]) -> PolicyHistory:
    """The history of all policies that may have rejected clients and patterns, the `subjects`."""
    if not counts:
        return PolicyHistory([], {})
    using = router.db_for_read(Policy)
    keys = {*_present(counts, subjects, using)}
    log = AuditEvent.objects.filter(object_type="policy", verb__in=_WRITES).order_by("-number")
    since = min(aware(count.minute) for count in counts)
    is_about = Q(before__entity=None) | Q(before__entity__in=sorted(subjects))
    deleted = Q(is_about, verb=Verb.DELETE, when__gte=in_site_time(since))
    events = {event.number: event for event in log.filter(_of(keys) | deleted)[:_MOST_EVENTS]}
    if gone := {int(event.object_id) for event in events.values()} - keys:
        events |= {event.number: event for event in log.filter(_of(gone))[:_MOST_EVENTS]}
    silent = keys - {int(event.object_id) for event in events.values()}
    now = {key: taken.state for key, taken in snapshots(Policy, silent, using).items()}
    return PolicyHistory([events[number] for number in sorted(events)], now)


def _of(keys: Iterable[int]) -> Q:
    return Q(object_id__in=[str(key) for key in keys])


def _present(counts: Iterable[DenialCount], subjects: Collection[str], using: str) -> Iterable[int]:
    """Primary keys of the policies that may apply to one of the rejections."""
    resources = {count.resource for count in counts}
    policies = Policy.objects.using(using).order_by().values_list("pk")
    of_entities = [policies.filter(entity__identifier__in=batch) for batch in batches(subjects)]
    of_resources = policies.filter(entity=None, resource__name__in=resources)
    return [key for (key,) in policies.filter(entity=None, resource=None).union(of_resources, *of_entities).order_by()]
