"""Limits that a policy drops because it replaces broader ones as a whole, and what applies without a policy."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from django.db.models import Q
from django.utils.translation import gettext

from limits_app.models import Counted, Enforcement, Policy, PolicyEffect, PolicyScope, in_scope
from limits_app.models.fields import aware
from limits_app.models.policy_lookup import policies_for
from limits_app.models.policy_values import Subject
from limits_app.resolver.policies import applied_policies, choose
from limits_app.resolver.resolution import write_alias

Scope = tuple[str, str]
"""Names of the resource, and of the entity or plan; empty for all of them."""

_MOST_NAMED: Final = 10
_PLAN: Final = "\0plan:"
"""Before the name of a plan, which no identifier begins with."""
_TOTAL: Final = "\0total"
"""In place of the resource of a total, which replaces no policy for a resource and is replaced by none."""


def scope_named(resource: str, entity: str, plan: str, counted: str) -> Scope:
    """Return the scope of a policy, by the names of its resource, entity and plan."""
    subject = f"{_PLAN}{plan}" if plan else entity
    return (_TOTAL if counted == Counted.TOTAL else resource, subject)


class DroppedKey(NamedTuple):
    """A limit that no longer applies to the entities of a policy."""

    key: str
    level: str
    """The policy that has the limit, such as `resource api`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The keys of a policy, and when it applies.

    `has_limits` is False where it blocks or allows everything; it has no `keys` then.
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
        """The order in a scope: policies with dates, with weekly hours, and those that always apply."""
        return self.begins is None, not self.is_weekly

    def is_alive(self, now: datetime) -> bool:
        """Whether it may apply to an entity, now or later."""
        return self.is_enforced and self.rollout_percent > 0 and (self.ends is None or self.ends > now)

    def is_last(self, now: datetime) -> bool:
        """Whether no broader policy ever applies beside it, or in its place."""
        has_begun = self.begins is None or self.begins <= now
        return has_begun and self.ends is None and not (self.is_weekly or self.extends) and self.rollout_percent == 100

    def meets(self, other: Ruling) -> bool:
        """Whether the dates of both policies overlap."""
        ends_before = self.ends is not None and other.begins is not None and self.ends <= other.begins
        begins_after = self.begins is not None and other.ends is not None and self.begins >= other.ends
        return not (ends_before or begins_after)


class Broader:
    """All policies that may replace one another, and those that would apply in place of one of them.

    Like a request, it goes from a policy to the next broader one until one does not extend. It goes on behind a policy
    that applies only at times, or to some entities, since the next one applies to the others.
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
        for resource in sorted(self._resources_of.get("", set()) - {_TOTAL}):
            for key, found in _by_key(self._down([(resource, "")])):
                self._everybody.setdefault(key, []).append(found)

    def dropped_by(self, policy: Ruling) -> Iterator[tuple[str, list[Ruling]]]:
        """The keys that only the replaced policies limit, each with these policies.

        A policy that is off or in shadow mode is treated as enforced, unless it has ended.
        """
        has_ended = policy.ends is not None and policy.ends <= self._now
        if not policy.has_limits or policy.extends or has_ended or policy.scope[0] == _TOTAL:
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
            if own_there or not always:  # most policies keep the whole list, which may have thousands of entries
                there = [one for one in levels if one.meets(policy) and key not in own_there.get(one.scope[0], ())]
            if there and key not in found_own:
                yield key, there

    def _down(self, scopes: Iterable[Scope], policy: Ruling | None = None) -> Iterator[Ruling]:
        """The policies that apply one after the other, in place of a policy where one is given."""
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
        """The keys that an entity always has its own limit for, by resource; all keys where its policy for the resource
        replaces the one for all resources.
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
    """The keys that the replaced policies limit and this saved policy does not.

    None for a policy that blocks or allows everything, which is explicit, and for one that extends.
    """
    [(_policy, dropped)] = dropped_by_each([policy])
    return dropped


def overriding_block(policy: Policy) -> list[str]:
    """Return the first policies that override a saved block of the whole system; none for any other policy."""
    if policy.effect != PolicyEffect.BLOCKED or policy.scope != PolicyScope.SYSTEM:
        return []
    others = Policy.objects.using(policy._state.db).filter(extends=False, enforcement=Enforcement.ENFORCE)
    others = others.exclude(in_scope(PolicyScope.SYSTEM)).exclude(effect=PolicyEffect.BLOCKED)
    found = [str(one) for one in others.select_related("resource", "entity", "plan")[: _MOST_NAMED + 1]]
    return found if len(found) <= _MOST_NAMED else [*found[:_MOST_NAMED], "…"]


def dropped_messages(policy: Policy) -> list[str]:
    """Return a sentence for each key that a policy, read again from the database, drops, or for an overridden block."""
    if others := overriding_block(policy):
        return [f"{policy} is blocked, but other policies override this: {', '.join(others)}; block the total"]
    levels: dict[str, list[str]] = {}
    # With its rows: a database router may have other ones elsewhere.
    rows = Policy.objects.using(policy._state.db).select_related("resource", "entity", "plan")
    for key, level in dropped_keys(rows.get(pk=policy.pk)):
        levels.setdefault(key, []).append(level)
    return [dropped_message(str(policy), key, found) for key, found in levels.items()]


def dropped_message(policy: str, key: str, levels: Sequence[str]) -> str:
    """Return the sentence about a key that a policy drops, which the policies of `levels` limit."""
    others = f" and {len(levels) - 1} more" if len(levels) > 1 else ""
    return f"{policy} drops {key!r} of {levels[0]}{others}: limit it too, or let it extend"


def dropped_by_each(policies: Iterable[Policy]) -> Iterator[tuple[Policy, tuple[DroppedKey, ...]]]:
    """`dropped_keys` of each policy, with one query for the policies that they may replace."""
    found = list(policies)
    if not found:
        return
    about = Q(entity=None, plan=None)
    about |= Q(entity__in={policy.entity_id for policy in found} - {None})
    about |= Q(plan__in={policy.plan_id for policy in found} - {None})
    if all(policy.resource_id is not None or policy.is_for_all_entities for policy in found):
        about &= Q(resource=None) | Q(resource__in={policy.resource_id for policy in found} - {None})
    others = Policy.objects.using(found[0]._state.db).filter(about, enforcement=Enforcement.ENFORCE)
    rows = others.select_related("resource", "entity", "plan").prefetch_related("limits")
    broader = Broader(map(_ruling, rows), datetime.now(UTC))
    for policy in found:
        dropped = broader.dropped_by(_ruling(policy))
        yield policy, tuple(DroppedKey(key, one.label) for key, levels in dropped for one in levels)


def left_without(policy: Policy) -> str:
    """Say which policies apply now to the requests of a saved policy where it is not enforced."""
    names = [None if one is None else str(one) for one in (policy.resource, policy.entity, policy.plan)]
    now = datetime.now(UTC)
    link = policies_for(Subject(*names), write_alias(), now).links[0]
    others = replace(link, policies=tuple(one for one in link.policies if one.policy_id != policy.pk))
    keys = [one.policy_id for one in applied_policies(choose(others, now).verdicts)]
    if not keys:
        return gettext("Without it no policy applies, and everything is allowed.")
    rows = Policy.objects.using(write_alias()).in_bulk([key for key in keys if key])
    # An entity that is itself blocked or unlimited has no policy for that.
    left = [str(rows[key]) if key else f"entity {policy.entity}" for key in keys]
    return gettext("Without it these apply: %(policies)s.") % {"policies": ", ".join(left)}


def _ruling(policy: Policy) -> Ruling:
    has_limits = policy.effect == PolicyEffect.LIMITS
    return Ruling(
        label=str(policy),
        scope=scope_named(str(policy.resource or ""), str(policy.entity or ""), str(policy.plan or ""), policy.counted),
        has_limits=has_limits,
        keys=tuple(limit.key for limit in policy.limits.all()) if has_limits else (),
        extends=policy.extends,
        is_enforced=policy.enforcement == Enforcement.ENFORCE,
        rollout_percent=policy.rollout_percent,
        begins=policy.valid_from and aware(policy.valid_from),
        ends=policy.valid_until and aware(policy.valid_until),
        is_weekly=bool(policy.weekly_hours),
    )


def _broader(scope: Scope) -> list[Scope]:
    """The broader scopes, in order."""
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
