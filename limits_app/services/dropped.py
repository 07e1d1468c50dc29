"""What a policy silently frees, because it replaces broader ones as a whole."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from django.db.models import Q
from django.utils import timezone

from limits_app.models import Enforcement, Policy, PolicyEffect

__all__ = ["Broader", "DroppedKey", "Ruling", "dropped_by_each", "dropped_keys"]

Scope = tuple[str, str]
"""Names of the resource and the entity, empty for all of them."""


class DroppedKey(NamedTuple):
    """A limit that holds no longer for those whom the policy is about."""

    key: str
    level: str
    """The policy that has the limit, such as `resource api`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A policy, as far as it matters to others: which limits it has, and when it is obeyed.

    `has_limits` is False where it blocks or frees everything; it has no `keys` then.
    """

    label: str
    scope: Scope
    has_limits: bool
    keys: tuple[str, ...]
    extends: bool
    is_enforced: bool
    rollout_percent: int
    begins: datetime | None
    ends: datetime | None
    is_weekly: bool

    @property
    def rank(self) -> tuple[bool, bool]:
        """Which of one scope comes first: dates before weekly hours, and these before what always holds."""
        return self.begins is None, not self.is_weekly

    def is_alive(self, now: datetime) -> bool:
        """Whether it may hold for anybody, now or later."""
        return self.is_enforced and self.rollout_percent > 0 and (self.ends is None or self.ends > now)

    def is_last(self, now: datetime) -> bool:
        """Whether nothing broader ever holds beside it, or in its place."""
        has_begun = self.begins is None or self.begins <= now
        return has_begun and self.ends is None and not (self.is_weekly or self.extends) and self.rollout_percent == 100

    def meets(self, other: Ruling) -> bool:
        """Whether there is a time between whose dates both hold."""
        ends_before = self.ends is not None and other.begins is not None and self.ends <= other.begins
        begins_after = self.begins is not None and other.ends is not None and self.begins >= other.ends
        return not (ends_before or begins_after)


class Broader:
    """All policies that may replace one another, and what would hold in the place of one of them.

    As a request does, it goes from one to the next broader one until one does not extend. Beyond one that does not
    hold always, or for all, it goes on: now and then, or for somebody, the next one counts.
    """

    def __init__(self, policies: Iterable[Ruling], now: datetime) -> None:
        self._now = now
        self._scopes: dict[Scope, list[Ruling]] = {}
        self._resources_of: dict[str, set[str]] = {}
        for policy in sorted(policies, key=lambda one: (one.scope, one.rank)):
            resource, entity = policy.scope
            if policy.is_alive(now):
                self._scopes.setdefault(policy.scope, []).append(policy)
                self._resources_of.setdefault(entity, set()).add(resource)
        self._everybody: dict[str, list[Ruling]] = {}
        for resource in sorted(self._resources_of.get("", ())):
            for key, found in _by_key(self._down([(resource, "")])):
                self._everybody.setdefault(key, []).append(found)

    def dropped_by(self, policy: Ruling) -> Iterator[tuple[str, list[Ruling]]]:
        """The keys that a policy does not limit though those that it replaces do, and which of these.

        One that is in the shadow or off yet is taken for enforced, which it may be next; one that has ended is not.
        """
        if not policy.has_limits or policy.extends or (policy.ends is not None and policy.ends <= self._now):
            return
        for key, levels in self._replaced(policy):
            if key not in policy.keys:
                yield key, levels

    def _replaced(self, policy: Ruling) -> Iterator[tuple[str, list[Ruling]]]:
        resource, entity = policy.scope
        if resource or not entity:
            for key, found in _by_key(self._down([policy.scope, *_broader(policy.scope)], policy)):
                yield key, [found]
            return
        own = [*self._down([policy.scope], policy)]
        found_own = dict(_by_key(own))
        yield from ((key, [found]) for key, found in found_own.items())
        if own and own[-1].is_last(self._now):
            return
        own_there = self._own_keys(entity)
        always = policy.begins is None and policy.ends is None
        for key, levels in self._everybody.items():
            there = levels
            if own_there or not always:  # for most it is all of them, which may be thousands
                there = [one for one in levels if one.meets(policy) and key not in own_there.get(one.scope[0], ())]
            if there and key not in found_own:
                yield key, there

    def _down(self, scopes: Iterable[Scope], policy: Ruling | None = None) -> Iterator[Ruling]:
        """Those that would be asked one after the other, in the place of a policy where one is given."""
        for scope in scopes:
            for one in self._scopes.get(scope, ()):
                if policy is not None and (
                    not one.meets(policy) or (scope == policy.scope and one.rank <= policy.rank)
                ):
                    continue
                yield one
                if one.is_last(self._now):
                    return

    def _own_keys(self, entity: str) -> dict[str, Container[str]]:
        """The keys of which an entity always has a limit of its own on single resources; all of them where what it has
        there takes the place of what it has on all.
        """
        found: dict[str, Container[str]] = {}
        for resource in self._resources_of.get(entity, set()) - {""}:
            policies = self._scopes[resource, entity]
            if any(one.is_last(self._now) for one in policies):
                found[resource] = self._everybody
            else:
                always = [one for one in policies if one.rank == (True, True) and one.rollout_percent == 100]
                found[resource] = {key for one in always for key in one.keys}
        return found


def dropped_keys(policy: Policy) -> tuple[DroppedKey, ...]:
    """Give the keys that the replaced policies limit and this one, which is saved, does not.

    A policy that blocks or frees everything says so itself, and drops nothing silently; one that extends drops nothing.
    """
    [(_policy, dropped)] = dropped_by_each([policy])
    return dropped


def dropped_by_each(policies: Iterable[Policy]) -> Iterator[tuple[Policy, tuple[DroppedKey, ...]]]:
    """Give `dropped_keys` of each of these policies, with one look at those that they may replace."""
    found = list(policies)
    if not found:
        return
    about = Q(entity=None) | Q(entity__in={policy.entity_id for policy in found if policy.entity_id is not None})
    if all(policy.resource_id is not None or policy.entity_id is None for policy in found):
        about &= Q(resource=None) | Q(resource__in={policy.resource_id for policy in found} - {None})
    others = Policy.objects.using(found[0]._state.db).filter(about, enforcement=Enforcement.ENFORCE)
    rows = others.select_related("resource", "entity").prefetch_related("limits")
    broader = Broader(map(_ruling, rows), datetime.now(UTC))
    for policy in found:
        dropped = broader.dropped_by(_ruling(policy))
        yield policy, tuple(DroppedKey(key, one.label) for key, levels in dropped for one in levels)


def _ruling(policy: Policy) -> Ruling:
    has_limits = policy.effect == PolicyEffect.LIMITS
    return Ruling(
        label=str(policy),
        scope=(str(policy.resource or ""), str(policy.entity or "")),
        has_limits=has_limits,
        keys=tuple(limit.key for limit in policy.limits.all()) if has_limits else (),
        extends=policy.extends,
        is_enforced=policy.enforcement == Enforcement.ENFORCE,
        rollout_percent=policy.rollout_percent,
        begins=_aware(policy.valid_from),
        ends=_aware(policy.valid_until),
        is_weekly=bool(policy.weekly_hours),
    )


def _broader(scope: Scope) -> list[Scope]:
    """The scopes that are asked after this one, in order."""
    resource, entity = scope
    if not resource:
        return []
    return [("", entity), (resource, ""), ("", "")] if entity else [("", "")]


def _by_key(policies: Iterable[Ruling]) -> Iterator[tuple[str, Ruling]]:
    """Each key, and the first policy that limits it."""
    found: dict[str, Ruling] = {}
    for policy in policies:
        for key in policy.keys:
            found.setdefault(key, policy)
    yield from found.items()


def _aware(moment: datetime | None) -> datetime | None:
    """A moment with its time zone, which sites without USE_TZ leave out."""
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment
