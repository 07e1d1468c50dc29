"""Limits that a policy drops because it replaces broader ones as a whole, and what applies without a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext

from limits_app.models import Counted, Enforcement, Policy, PolicyEffect, PolicyScope, in_scope, write_alias
from limits_app.policies import Subject, applied_policies, judge, policies_for
from limits_app.services.field_values import moment

Scope = tuple[str, ...]
"""Names of the resource, the entity and the plan; empty for all of them."""

_EVERYBODY: Final = ("", "")
_SYSTEM: Final = ("", "", "")
_MOST_NAMED: Final = 10


class DroppedKey(NamedTuple):
    """A limit that no longer applies to the entities of a policy."""

    key: str
    level: str
    """The policy that has the limit, such as `resource api`."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A policy and its keys.

    `is_permanent` is True for one that is enforced for all its entities at all times, and `may_drop` for one that may
    replace others without having their limits: it has limits, does not extend, has not ended, and is not a total.
    """

    label: str
    scope: Scope
    keys: tuple[str, ...]
    extends: bool
    is_permanent: bool
    may_drop: bool

    @classmethod
    def of(cls, label: str, scope: Scope, fields: Mapping[str, Any], keys: Iterable[str]) -> Ruling:
        """The ruling of a policy with the values of its fields; dates may be ISO text."""
        has_limits = fields["effect"] == PolicyEffect.LIMITS
        is_always = not (fields["valid_from"] or fields["weekly_hours"]) and fields["rollout_percent"] == 100
        is_enforced, is_each = fields["enforcement"] == Enforcement.ENFORCE, fields["counted"] == Counted.EACH
        ends = fields["valid_until"]
        has_ended = bool(ends) and moment(ends) <= timezone.now()
        return cls(
            label=label,
            scope=scope,
            keys=tuple(keys) if has_limits else (),
            extends=fields["extends"],
            is_permanent=is_always and is_enforced and is_each,
            may_drop=has_limits and is_each and not fields["extends"] and not has_ended,
        )


class Broader:
    """The permanent policies that may replace one another, and which of them apply in place of a policy.

    Like a request, it goes from a policy to the next broader one until one does not extend.
    """

    def __init__(self, policies: Iterable[Ruling]) -> None:
        self._permanent = {one.scope: one for one in sorted(policies, key=attrgetter("scope")) if one.is_permanent}
        self._with_exceptions = {tuple(subject) for resource, *subject in self._permanent if resource}
        self._everybody: dict[str, list[Ruling]] = {}
        for one in self._permanent.values():
            for key in one.keys if one.scope[1:] == _EVERYBODY else ():
                self._everybody.setdefault(key, []).append(one)

    def dropped_by(self, policy: Ruling) -> Iterator[tuple[str, list[Ruling]]]:
        """The keys that only the replaced policies limit, each with these policies.

        A policy that is off or in shadow mode is treated as enforced.
        """
        if policy.may_drop:
            yield from ((key, levels) for key, levels in self._replaced(policy).items() if key not in policy.keys)

    def _replaced(self, policy: Ruling) -> Mapping[str, list[Ruling]]:
        """The policies that would apply in place of a policy, by the keys of their limits."""
        resource, subject = policy.scope[0], policy.scope[1:]
        scopes = [] if policy.is_permanent else [policy.scope]
        if resource:
            scopes += [("", *subject), (resource, *_EVERYBODY)] if subject != _EVERYBODY else []
            scopes.append(_SYSTEM)
        found: dict[str, list[Ruling]] = {}
        for one in filter(None, map(self._permanent.get, scopes)):
            for key in one.keys:
                found.setdefault(key, [one])
            if not one.extends:
                return found
        if resource or subject == _EVERYBODY:
            return found
        return found | self._everywhere(subject) | found

    def _everywhere(self, subject: tuple[str, ...]) -> dict[str, list[Ruling]]:
        """The policies for everybody, of the system and of all resources, that apply to a subject without a policy."""
        if subject not in self._with_exceptions:
            return self._everybody
        there = {
            key: [one for one in levels if not self._has_its_own(subject, one.scope[0], key)]
            for key, levels in self._everybody.items()
        }
        return {key: levels for key, levels in there.items() if levels}

    def _has_its_own(self, subject: tuple[str, ...], resource: str, key: str) -> bool:
        """Whether a subject has a policy for a resource that limits a key, or does not extend."""
        own = self._permanent.get((resource, *subject)) if resource else None
        return own is not None and (key in own.keys or not own.extends)


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
    permanent = {"enforcement": Enforcement.ENFORCE, "valid_from": None, "weekly_hours": "", "rollout_percent": 100}
    others = Policy.objects.using(found[0]._state.db).filter(about, **permanent)
    rows = others.select_related("resource", "entity", "plan").prefetch_related("limits")
    broader = Broader(map(_ruling, rows))
    for policy in found:
        dropped = broader.dropped_by(_ruling(policy))
        yield policy, tuple(DroppedKey(key, one.label) for key, levels in dropped for one in levels)


def left_without(policy: Policy) -> str:
    """Say which policies apply now to the requests of a saved policy where it is not enforced."""
    names = [None if one is None else str(one) for one in (policy.resource, policy.entity, policy.plan)]
    now = datetime.now(UTC)
    link = policies_for(Subject(*names), write_alias(), now).links[0]
    others = replace(link, policies=tuple(one for one in link.policies if one.policy_id != policy.pk))
    keys = [one.policy_id for one in applied_policies(judge(others, now).verdicts)]
    if not keys:
        return gettext("Without it no policy applies, and everything is allowed.")
    rows = Policy.objects.using(write_alias()).in_bulk([key for key in keys if key])
    # An entity that is itself blocked or unlimited has no policy for that.
    left = [str(rows[key]) if key else f"entity {policy.entity}" for key in keys]
    return gettext("Without it these apply: %(policies)s.") % {"policies": ", ".join(left)}


def _ruling(policy: Policy) -> Ruling:
    scope = tuple(str(one or "") for one in (policy.resource, policy.entity, policy.plan))
    return Ruling.of(str(policy), scope, vars(policy), [limit.key for limit in policy.limits.all()])
