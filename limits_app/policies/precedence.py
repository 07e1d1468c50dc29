"""Precedence: which policies apply to an entity at a time, and which of them decides on each limit.

The most specific level applies, as a whole: an entity that is itself blocked or unlimited, entity on this resource,
entity on all resources, then its plan and the patterns that match it, each on this resource and on all, then resource,
system, and the limits that code sets.
Within a level, a more specific pattern (`models.patterns.specificity`) precedes another one, a policy with dates one
with weekly hours, and that the one that always applies. A policy that extends is added to the next one instead of
replacing it, and its keys take precedence.
Totals over all resources apply in addition: the most specific one of the entity, its plan and patterns, and the one of
the system. An entity that is unlimited has no totals, except that the system may block everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from limits_app.conf import OnUnavailable
from limits_app.engine.limits import Blocked, EnforcedLimit, LimitDefinition, QuotaLimit
from limits_app.models import TOTALS, Enforcement, PolicyEffect, PolicyScope
from limits_app.models.policy_rules import has_ended
from limits_app.policies.policy_values import ENTITY_FLAGS, EntityPolicies, PolicyValue

CODE: Final = "code"
"""The level of limits that code sets: `default_limits`, throttles and `@ratelimit`."""

_EXCLUSIVE: Final = (ENTITY_FLAGS, *[scope.value for scope in PolicyScope if scope not in TOTALS], CODE)
_OF_CLIENT: Final = tuple(scope.value for scope in TOTALS if scope is not PolicyScope.SYSTEM_TOTAL)
_GROUPS: Final = (_EXCLUSIVE, _OF_CLIENT, (PolicyScope.SYSTEM_TOTAL.value,))
"""Groups of levels; of each group the most specific policy applies."""

_GROUP_OF: Final = {level: number for number, levels in enumerate(_GROUPS) for level in levels}

PRECEDENCE: Final = tuple(level for levels in _GROUPS for level in levels)


def group_of(level: str) -> int:
    """The number of the group of a level: limits with the same key are different ones in different groups."""
    return _GROUP_OF.get(level, 0)


class PolicyStatus(StrEnum):
    """Whether a policy applies, or why it does not.

    COUNTS is the most specific policy that applies. EXTENDED is a policy to which a more specific one is added.
    """

    COUNTS = "counts"
    EXTENDED = "extended"
    REPLACED = "replaced"
    NOT_NOW = "not now"
    NOT_ROLLED_OUT = "not rolled out"
    SHADOW = "shadow"
    OFF = "off"


_APPLIES: Final = frozenset({PolicyStatus.COUNTS, PolicyStatus.EXTENDED})


@dataclass(frozen=True, slots=True)
class Verdict:
    """A policy and its status."""

    policy: PolicyValue
    status: PolicyStatus


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """A limit that applies, and the policy that sets it; all entities use one bucket of a `shared` limit."""

    limit: EnforcedLimit
    policy: PolicyValue
    shared: bool = False


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policies of one entity in order of precedence, each with its status, and the effective limits.

    `totals` are the limits over all resources, which apply in addition to the `limits`. Usage is counted for
    the `plan`, empty for none.
    """

    entity: str | None
    verdicts: tuple[Verdict, ...]
    limits: tuple[EffectiveLimit, ...]
    on_unavailable: OnUnavailable | None
    totals: tuple[EffectiveLimit, ...] = ()
    plan: str = ""

    @property
    def by_place(self) -> dict[tuple[int, str], EffectiveLimit]:
        """The effective limits, totals too, by the group of their level and their key."""
        return {
            (group_of(effective.policy.level), effective.limit.key): effective
            for effective in (*self.limits, *self.totals)
        }

    @property
    def uses_code(self) -> bool:
        """Whether the limits that code sets are in force; their verdict is the last one of their level."""
        of_code = [verdict.status for verdict in self.verdicts if verdict.policy.level == CODE]
        return bool(of_code) and of_code[-1] in _APPLIES


def judge(link: EntityPolicies, now: datetime, *, shadow: bool = False) -> PolicyChoice:
    """Choose the policies that apply to an entity now; with `shadow`, as if policies in shadow mode were enforced.

    The first policy in order of precedence applies; the next one only while all before it extend.
    """
    position = rollout_position(link.entity)
    policies = sorted(link.policies, key=_precedence)
    exclusive, of_client, of_system = [
        _judged([policy for policy in policies if policy.level in levels], now, position, shadow=shadow)
        for levels in _GROUPS
    ]
    totals = [*of_client, *of_system]
    if any(
        verdict.policy.level == ENTITY_FLAGS and verdict.policy.effect == PolicyEffect.UNLIMITED
        for verdict in exclusive
    ):
        totals = [
            verdict if _outlasts_unlimited(verdict) else replace(verdict, status=PolicyStatus.REPLACED)
            for verdict in totals
        ]
    verdicts = (*exclusive, *totals)
    on_unavailable = next(
        (policy.on_unavailable for policy in applied_policies(verdicts) if policy.on_unavailable), None
    )
    limits = _merged(applied_policies(exclusive), link.billing_from)
    of_totals = [limit for policy in applied_policies(totals) for limit in _merged([policy], link.billing_from)]
    return PolicyChoice(link.entity, verdicts, limits, on_unavailable, tuple(of_totals), link.plan)


def _judged(policies: Iterable[PolicyValue], now: datetime, position: int, *, shadow: bool) -> list[Verdict]:
    """The status of policies in order of precedence, of which one applies with those that it extends."""
    verdicts: list[Verdict] = []
    is_extended, applied = True, PolicyStatus.COUNTS
    for policy in policies:
        status = _reason_not_applied(policy, now, position, shadow=shadow)
        if status is None:
            status = applied if is_extended else PolicyStatus.REPLACED
            is_extended, applied = is_extended and policy.extends, PolicyStatus.EXTENDED
        verdicts.append(Verdict(policy, status))
    return verdicts


def applied_policies(verdicts: Iterable[Verdict]) -> list[PolicyValue]:
    """The policies that apply, in order of precedence."""
    return [verdict.policy for verdict in verdicts if verdict.status in _APPLIES]


def _outlasts_unlimited(verdict: Verdict) -> bool:
    """Whether an entity that is unlimited changes nothing about a total."""
    blocks_all = verdict.policy.level == PolicyScope.SYSTEM_TOTAL and verdict.policy.effect == PolicyEffect.BLOCKED
    return blocks_all or verdict.status not in _APPLIES


def without_others(link: EntityPolicies, now: datetime) -> EntityPolicies:
    """The policies without candidates that are not tested for this entity, or no longer watched."""
    if not any(policy.candidate for policy in link.policies):
        return link
    position = rollout_position(link.entity)
    return replace(link, policies=tuple(_without_other(policy, position, now) for policy in link.policies))


def _without_other(policy: PolicyValue, position: int, now: datetime) -> PolicyValue:
    candidate = policy.candidate
    if candidate is None:
        return policy
    is_watched = candidate.watched_until is not None and now < candidate.watched_until
    is_tested = candidate.watched_until is None and position < candidate.percent
    return policy if is_watched or is_tested else replace(policy, candidate=None)


def with_candidates(link: EntityPolicies) -> EntityPolicies:
    """The policies with the limits of their tested candidates."""
    return replace(link, policies=tuple(map(_with_candidate, link.policies)))


def _with_candidate(policy: PolicyValue) -> PolicyValue:
    candidate = policy.candidate
    if candidate is None or candidate.watched_until is not None:
        return policy
    return replace(policy, effect=PolicyEffect.LIMITS, limits=candidate.limits, shared=candidate.shared)


def is_evaluated(choice: PolicyChoice) -> bool:
    """Whether a policy is in shadow mode, or applies and has a candidate that is tested."""
    return any(
        verdict.status is PolicyStatus.SHADOW
        or (verdict.status in _APPLIES and verdict.policy.candidate and verdict.policy.candidate.watched_until is None)
        for verdict in choice.verdicts
    )


def changes_at(link: EntityPolicies, now: datetime) -> datetime | None:
    """The next time at which a date or an hour may change the effective limits; None for never."""
    times = [at for policy in link.policies for at in (policy.valid_from, policy.valid_until)]
    times += [policy.hours.next_change(now) for policy in link.policies if policy.hours is not None]
    times += [policy.candidate.watched_until for policy in link.policies if policy.candidate]
    return min((at for at in times if at is not None and at > now), default=None)


def lifted(choice: PolicyChoice, status: PolicyStatus) -> PolicyChoice:
    """The choice without limits; `status`, SHADOW or OFF, replaces that of the policies that applied."""
    verdicts = tuple(
        replace(verdict, status=status) if verdict.status in _APPLIES else verdict for verdict in choice.verdicts
    )
    return PolicyChoice(choice.entity, verdicts, (), None, plan=choice.plan)


def rollout_position(entity: str | None) -> int:
    """The position of an entity from 0 to 99, the same in every process; a rollout includes the positions below it."""
    return int.from_bytes(blake2b((entity or "").encode("utf-8", "surrogatepass"), digest_size=8).digest()) % 100


def _precedence(policy: PolicyValue) -> tuple[int, int, bool, bool, int]:
    return (
        PRECEDENCE.index(policy.level),
        -policy.specificity,
        policy.valid_from is None,
        policy.hours is None,
        policy.policy_id or 0,
    )


def _reason_not_applied(policy: PolicyValue, now: datetime, position: int, *, shadow: bool) -> PolicyStatus | None:
    """Why a policy does not apply by itself; None where it does, unless a more specific one replaces it."""
    if policy.enforcement == Enforcement.OFF:
        return PolicyStatus.OFF
    if not _is_in_force(policy, now):
        return PolicyStatus.NOT_NOW
    if position >= policy.rollout_percent:
        return PolicyStatus.NOT_ROLLED_OUT
    return PolicyStatus.SHADOW if policy.enforcement == Enforcement.SHADOW and not shadow else None


def _is_in_force(policy: PolicyValue, now: datetime) -> bool:
    begins = policy.valid_from
    if (begins is not None and now < begins) or has_ended(policy.valid_until, now):
        return False
    return policy.hours is None or policy.hours.holds(now)


def _merged(applied: list[PolicyValue], billing_from: datetime | None) -> tuple[EffectiveLimit, ...]:
    """The limits of several policies by key, where each policy but the last extends the next one.

    Quotas that begin with the client begin with its billing date.
    """
    limits: dict[str, EffectiveLimit] = {}
    for policy in reversed(applied):
        if policy.effect == PolicyEffect.BLOCKED:
            return (EffectiveLimit(Blocked(), policy),)
        if policy.effect == PolicyEffect.LIMITS:
            for limit in policy.limits:
                started = _started(limit, billing_from)
                limits[limit.key] = EffectiveLimit(started, policy, limit.key in policy.shared)
    return tuple(limits[key] for key in sorted(limits))


def _started(limit: LimitDefinition, billing_from: datetime | None) -> LimitDefinition:
    return limit.started(billing_from) if isinstance(limit, QuotaLimit) else limit
