"""Explanations: the effective limits, the policies that they come from and replace, and their decision now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from asgiref.sync import sync_to_async

from limits_app import conf
from limits_app.engine import (
    BLOCK_LEVEL,
    NORMAL,
    NOTHING,
    Amount,
    EntityName,
    Requested,
    known_priority,
    limit_text,
    of_class,
)
from limits_app.engine.errors import NeverAdmissible, StaleConfiguration, StoreUnavailable
from limits_app.engine.limits import Blocked
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.models import ENFORCED, CandidateValue, CodeLimits, Emergency
from limits_app.models.fields import LAST_MOMENT
from limits_app.models.users import entity_name
from limits_app.policies import (
    LIMITED,
    MEMBER_LEVEL,
    AccessVerdict,
    EffectiveLimit,
    PolicyChoice,
    PolicyStatus,
    PolicyValue,
    PooledSet,
    PriceLists,
    Resolution,
    Verdict,
    emergency_of,
    group_of,
    policy_source,
    resolve,
    resolve_each,
    resolver,
    verdict_of,
    verdict_on,
)
from limits_app.services.amounts import LimitsInCode, ones_of
from limits_app.services.explain_pool import ExplainedPool, explained_pool
from limits_app.services.explain_text import sentences
from limits_app.services.explain_units import ExplainedUnit, explained_units, unpriced
from limits_app.services.shadow import with_shadow
from limits_app.services.status import in_slices
from limits_app.services.timed_blocks import with_block


@dataclass(frozen=True, slots=True)
class ExplainedLimit:
    """One effective limit, the policy that it comes from, and the policies whose limit with its key is replaced.

    `status` is its state for the request, None where the request takes nothing of it. `binds` is True for the limit
    that rejects the request for the longest time. A limit that an entity and its parent share is in both links.
    `in_slices` is what this process has charged in advance and not spent. `idle` is the state of a limit of which the
    request takes nothing, None where it was not read.
    """

    effective: EffectiveLimit
    replaced: tuple[PolicyValue, ...]
    status: LimitStatus | None
    binds: bool
    in_slices: Amount = 0
    idle: LimitStatus | None = None

    @property
    def used(self) -> Amount | None:
        """The used amount, including the overdrawn amount of a soft limit; None where it was not read."""
        status = self.status or self.idle
        return None if status is None else status.used

    def as_dict(self) -> dict[str, object]:
        """The limit as plain data, for JSON."""
        return {
            "key": self.effective.limit.key,
            "shared": self.effective.shared,
            "level": str(self.effective.policy.level),
            "policy": self.effective.policy.policy_id,
            "replaced": [{"level": str(policy.level), "policy": policy.policy_id} for policy in self.replaced],
            "used": self.used,
            "binds": self.binds,
            "in_slices": self.in_slices,
            "status": None if self.status is None else self.status.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class ExplainedLink:
    """One entity that is charged: the entity itself, or one above it. `verdicts` are in order of precedence."""

    entity: str | None
    verdicts: tuple[Verdict, ...]
    limits: tuple[ExplainedLimit, ...]

    def as_dict(self) -> dict[str, object]:
        """The link as plain data, for JSON."""
        return {
            "entity": self.entity,
            "considered": [_verdict(verdict) for verdict in self.verdicts],
            "limits": [limit.as_dict() for limit in self.limits],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request would be allowed or rejected now.

    `chain` is the entity and the entities above it that are charged too, each with its policies and effective limits.
    `dropped` are the keys of replaced policies that the policy in effect does not limit.
    `changes_at` is the next time at which a date or an hour may change the limits.
    `pool` is the pool that serves the resource, if any. `store` is the alias of the store in which it is counted
    (None: the default one). A resource that is not `known` has no row: only policies for all resources, and the limits
    that code sets, apply to it. `other_code_limits` are further limits that code sets, as where calls differ.
    `emergency` is the emergency switch; it is off where `LIMITS["ENABLED"]` is False. `access` says whether requests of
    the entity are blocked, exempt or limited on all URLs. `units` are those that have a price, and `unpriced` the
    currencies of limits in which the resource has none. `priority` is that of the request.
    """

    resource: str
    entity: str | None
    outcome: Outcome
    chain: tuple[ExplainedLink, ...]
    dropped: tuple[str, ...]
    changes_at: datetime | None
    pool: ExplainedPool | None = None
    store: str | None = None
    known: bool = True
    other_code_limits: tuple[str, ...] = ()
    emergency: Emergency = ENFORCED
    access: AccessVerdict = LIMITED
    units: tuple[ExplainedUnit, ...] = ()
    unpriced: tuple[str, ...] = ()
    priority: str = NORMAL

    def as_dict(self) -> dict[str, object]:
        """The explanation as plain data, for JSON."""
        return {
            "resource": self.resource,
            "entity": self.entity,
            "known": self.known,
            "priority": self.priority,
            "store": self.store,
            "emergency": str(self.emergency.mode),
            "access": self.access.as_dict(),
            "outcome": self.outcome.as_dict(),
            "dropped": list(self.dropped),
            "other_code_limits": list(self.other_code_limits),
            "considered": [_verdict(verdict) for verdict in self.chain[0].verdicts],
            "chain": [link.as_dict() for link in self.chain],
            "changes_at": None if self.changes_at is None else self.changes_at.isoformat(),
            "pool": None if self.pool is None else self.pool.as_dict(),
            "units": [unit.as_dict() for unit in self.units],
            "unpriced": list(self.unpriced),
        }

    def text(self) -> str:
        """The explanation in sentences, a line each."""
        return "\n".join(sentences(self))

    __str__ = text


def explain(
    resource: str,
    *,
    entity: EntityName = None,
    requested: Requested = None,
    default_limits: LimitsInCode | str = (),
    plan: str | None = None,
    priority: str | None = None,
) -> Explanation:
    """Explain what `try_acquire` would decide now, from the database and the store; consumes nothing.

    Without `requested`, the request is for 1 of every limit, as in views. Without `default_limits`, they are those that
    code used last on the resource. `priority` is that of the request, by default that of the plan or the resource.
    """
    noted = [] if default_limits != () else policy_source.code_limits(resource)
    default_limits = default_limits if default_limits != () else next((row.definitions for row in noted), ())
    while True:
        try:
            resolution = resolve(resource, entity_name(entity), default_limits, plan, now=resolver.clock())
            explained = _explained(resolution, requested, tuple([row.limits for row in noted[1:]]), priority)
            explained = _with_idle(explained, resolution)
            return replace(explained, access=verdict_on(resolution.entity, plan, resolution.emergency))
        except StaleConfiguration:
            continue


class ExplainedClient(NamedTuple):
    """The explanations of an entity on several resources.

    With the prices, None where no resource has any, and the limits that code set on each of the resources.
    """

    explanations: list[Explanation]
    access: AccessVerdict
    emergency: Emergency
    prices: PriceLists | None
    code_limits: Mapping[str, Sequence[CodeLimits]]


def explain_each(resources: Collection[str], *, entity: EntityName = None) -> ExplainedClient:
    """`explain` for an entity on each of several resources, whose policies are read in one query for 100 of them."""
    of_code: dict[str, list[CodeLimits]] = {name: [] for name in resources}
    for row in policy_source.code_limits(*resources):
        of_code[row.resource].append(row)
    latest = {name: rows[0].definitions for name, rows in of_code.items() if rows}
    name = entity_name(entity)
    while True:
        try:
            resolutions, over_all, prices = resolve_each([*resources], name, latest, now=resolver.clock())
            explained = [
                _explained(resolution, None, tuple([row.limits for row in of_code[resolution.resource][1:]]))
                for resolution in resolutions
            ]
        except StaleConfiguration:
            continue
        switch = resolutions[0].emergency if resolutions else emergency_of(over_all)
        access = verdict_of(over_all, switch)
        explanations = [replace(explanation, access=access) for explanation in explained]
        return ExplainedClient(explanations, access, switch, prices if over_all.has_prices else None, of_code)


aexplain: Final = sync_to_async(explain)
"""`explain` for asyncio."""


def _explained(
    resolution: Resolution, requested: Requested, other_code_limits: tuple[str, ...], priority: str | None = None
) -> Explanation:
    limit_set, shadow, pool = resolution.resolved.in_store(), resolution.resolved.shadow, None
    asked = of_class(ones_of(limit_set) if requested is None else requested, priority)
    if isinstance(limit_set, PooledSet):
        outcome, pool = explained_pool(limit_set, NOTHING if asked is None else asked, whole=requested is None)
    else:
        try:
            limits, requests = with_block(resolution.resolved, resolution.resource, resolution.entity, asked)
            outcome = limits.peek(requests)
        except NeverAdmissible as error:
            outcome = error.outcome
    outcome = with_shadow(outcome, shadow, {} if asked is None else asked)
    statuses = _by_place((*outcome.violations, *outcome.passed))
    in_slice = {
        (group_of(scoped.level_of(index)), scoped.scope.entity, scoped.schema.rules[index].key): amount
        for scoped, index, amount in in_slices(resolution.resolved.alias, limit_set.scoped)
    }
    changes_at = limit_set.changes_at
    return Explanation(
        resolution.resource,
        resolution.entity,
        outcome,
        tuple(_link(choice, statuses, outcome.binding, in_slice) for choice in resolution.choices),
        _dropped(resolution.choices[0]),
        None if changes_at is None else _moment(changes_at),
        pool,
        None if resolution.resolved.alias == conf.get(conf.STORE) else resolution.resolved.alias,
        resolution.known,
        other_code_limits,
        resolution.emergency,
        units=explained_units(limit_set),
        unpriced=tuple(dict.fromkeys(unpriced(limit_set))),
        priority=known_priority(resolution.priority) if priority is None else priority,
    )


def _with_idle(explanation: Explanation, resolution: Resolution) -> Explanation:
    """Add the states of the limits of which the request takes nothing."""
    limit_set = resolution.resolved.in_store()
    has_idle = any(limit.status is None for link in explanation.chain for limit in link.limits)
    if not has_idle or explanation.outcome.degraded or isinstance(limit_set, PooledSet):
        return explanation
    try:
        outcome = limit_set.peek(dict.fromkeys(limit_set.keys, 0))
    except StoreUnavailable:
        return explanation
    if outcome.degraded:
        return explanation
    statuses = _by_place((*outcome.violations, *outcome.passed))
    return replace(explanation, chain=tuple([_link_with_idle(link, statuses) for link in explanation.chain]))


def _link_with_idle(link: ExplainedLink, statuses: dict[_Place, LimitStatus]) -> ExplainedLink:
    limits = [
        limit if limit.status is not None else replace(limit, idle=statuses.get(_place(link.entity, limit.effective)))
        for limit in link.limits
    ]
    return replace(link, limits=tuple(limits))


def _by_place(all_limits: Iterable[LimitStatus]) -> dict[_Place, LimitStatus]:
    """The states of limits without those of blocks and members of pools."""
    return {
        (group_of(status.level), status.entity, status.key): status
        for status in all_limits
        if status.level not in {BLOCK_LEVEL, MEMBER_LEVEL}
    }


def _place(entity: str | None, effective: EffectiveLimit) -> _Place:
    return group_of(effective.policy.level), None if effective.shared else entity, effective.limit.key


def _moment(seconds: float) -> datetime:
    """A time in UTC; the last microseconds of the calendar are rounded beyond its end as a number."""
    return LAST_MOMENT if seconds >= LAST_MOMENT.timestamp() else datetime.fromtimestamp(seconds, UTC)


def _link(
    choice: PolicyChoice,
    statuses: dict[_Place, LimitStatus],
    binding: LimitStatus | None,
    in_slice: dict[_Place, Amount],
) -> ExplainedLink:
    limits = []
    for effective in (*choice.limits, *choice.totals):
        bucket = _place(choice.entity, effective)
        status = statuses.get(bucket)
        binds = status is not None and status is binding
        limits.append(ExplainedLimit(effective, _replaced(choice, effective), status, binds, in_slice.get(bucket, 0)))
    return ExplainedLink(choice.entity, choice.verdicts, tuple(limits))


_Place = tuple[int, str | None, str]
"""The group of a level, an entity, and the key of a limit."""


def _replaced(choice: PolicyChoice, effective: EffectiveLimit) -> tuple[PolicyValue, ...]:
    """The policies whose limit with the same key is replaced by this one."""
    total = group_of(effective.policy.level)
    return tuple(
        verdict.policy
        for verdict in choice.verdicts
        if verdict.status in {PolicyStatus.EXTENDED, PolicyStatus.REPLACED}
        and verdict.policy is not effective.policy
        and group_of(verdict.policy.level) == total
        and any(limit.key == effective.limit.key for limit in verdict.policy.limits)
    )


def _dropped(choice: PolicyChoice) -> tuple[str, ...]:
    kept = choice.by_place
    # A policy that blocks or allows everything drops limits explicitly.
    limited = {group for group, _ in kept} - {group for group, key in kept if key == Blocked.key}
    replaced = [verdict.policy for verdict in choice.verdicts if verdict.status is PolicyStatus.REPLACED]
    places = [(group_of(policy.level), limit.key) for policy in replaced for limit in policy.limits]
    return tuple(dict.fromkeys(key for group, key in places if group in limited and (group, key) not in kept))


def _verdict(verdict: Verdict) -> dict[str, object]:
    policy = verdict.policy
    return {
        "level": str(policy.level),
        "subject": policy.subject,
        "policy": policy.policy_id,
        "effect": str(policy.effect),
        "standing": str(verdict.status),
        "counts": verdict.status in {PolicyStatus.COUNTS, PolicyStatus.EXTENDED},
        "limits": [limit.key for limit in policy.limits],
        "valid_from": None if policy.valid_from is None else policy.valid_from.isoformat(),
        "valid_until": None if policy.valid_until is None else policy.valid_until.isoformat(),
        "weekly": policy.hours is not None,
        "candidate": None if policy.candidate is None else _candidate(policy.candidate),
    }


def _candidate(candidate: CandidateValue) -> dict[str, object]:
    until = candidate.watched_until
    return {
        "limits": [limit_text(limit, shared=limit.key in candidate.shared) for limit in candidate.limits],
        "percent": candidate.percent,
        "promoted": until is not None,
        "watched_until": None if until is None else until.isoformat(),
    }
