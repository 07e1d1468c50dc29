"""Limits that a policy drops because it replaces broader policies as a whole.

A policy is judged for clients to which it applies, once with it and once without it. The other policies are those that
always apply: what applies for a time, in part or in shadow mode replaces nothing for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from typing import Final, NamedTuple

from limits_app.engine import Noted
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.models import TOTALS, Enforcement, Policy, PolicyEffect, write_alias
from limits_app.models.fields import FIRST_MOMENT
from limits_app.models.patterns import is_pattern, patterns_of
from limits_app.models.policy_rules import has_ended
from limits_app.policies.chain import Subject
from limits_app.policies.collector import EVERYBODY, Client, Collector, PolicyTarget
from limits_app.policies.policy_values import ENTITY_FLAGS, EntityPolicies, PolicyValue
from limits_app.policies.precedence import CODE, EffectiveLimit, applied_policies, judge
from limits_app.policies.query import policies_for
from limits_app.policies.resolution import latest_code_limits
from limits_app.policies.stored import stored_code_limits, stored_policies, stored_policy

OF_CODE: Final = "the limits in code"


class DroppedKey(NamedTuple):
    """A limit that no longer applies to the clients of a policy."""

    key: str
    level: str
    """The policy that has the limit, such as `resource api`."""


class LostLimit(NamedTuple):
    """A limit that a new policy replaces, and the policy that sets it; None for the limits in code."""

    noted: Noted
    policy: Policy | None


PoliciesByKey = Mapping[str, Counter[int | None]]
"""By the key of a limit, the policies that set it (None: code), and on how many resources."""


class _Everywhere(NamedTuple):
    """The limits of a client on all resources: one of each key, what sets each key, and those on each resource."""

    limits: tuple[LimitDefinition, ...]
    sources: PoliciesByKey
    by_resource: Mapping[str, Mapping[str, EffectiveLimit]]


class Dropping:
    """Finds what policies drop; those of the collector are others that always apply."""

    def __init__(self, collector: Collector, now: datetime) -> None:
        self._rows = collector
        self._now = now
        self._everywhere = cache(self._limits_everywhere)

    def dropped(self, target: PolicyTarget, policy: PolicyValue) -> Iterator[tuple[str, Collection[int | None]]]:
        """The keys that only policies limit that a policy for a target replaces, each with these (None: code).

        A policy that is off, in shadow mode, or applies for a time, is judged as if it always applied. None for one
        that blocks or allows everything, which is explicit.
        """
        if not may_drop(policy, self._now):
            return
        dropped: dict[str, Collection[int | None]] = {}
        for client in self._clients(target):
            for policies, sources in self._chains(target, policy, client):
                for limit in _lost(policies, policy, self._now):
                    key, own = limit.limit.key, (limit.policy.policy_id,)
                    setting = sources.get(key, own) if limit.policy.level == CODE else own
                    dropped[key] = (
                        {**dict.fromkeys(dropped[key]), **dict.fromkeys(setting)} if key in dropped else setting
                    )
        yield from sorted(dropped.items(), key=itemgetter(0))

    def lost(self, target: PolicyTarget, policy: PolicyValue) -> Iterator[EffectiveLimit]:
        """The limits that `dropped` names the keys of, where a policy is about one resource, or counts a total."""
        if may_drop(policy, self._now):
            for client in self._clients(target):
                for policies, _sources in self._chains(target, policy, client):
                    yield from _lost(policies, policy, self._now)

    def _clients(self, target: PolicyTarget) -> Iterable[Client]:
        """Clients to which a policy applies: one of each kind that other policies distinguish."""
        if is_pattern(target.entity):
            return [Client(patterns=self._rows.matching(patterns_of(target.entity)))]
        if target.entity:
            return [self._rows.client(target.entity)]
        if target.plan:
            members = {(), *self._rows.members.get(target.plan, ())}
            return [Client(plan=target.plan, patterns=patterns) for patterns in sorted(members)]
        return [EVERYBODY]

    def _chains(
        self, target: PolicyTarget, policy: PolicyValue, client: Client
    ) -> Iterator[tuple[tuple[PolicyValue, ...], PoliciesByKey]]:
        """The policies of a client on each resource of a policy, with what the limits of code stand for.

        The resources on which nothing is as specific as the policy are one, with all limits that are broader.
        """
        if target.resource or policy.level in TOTALS:
            yield self._rows.policies(target.resource, client), {}
            return
        subject, broader = client, EVERYBODY
        if client.entity:
            # A client may have a row as an address, and another as the network by which clients are identified.
            networks = tuple([name for name in client.patterns if not is_pattern(name)])
            patterns = tuple([name for name in client.patterns if is_pattern(name)])
            subject, broader = Client(client.entity, patterns=networks), client._replace(entity="", patterns=patterns)
        elif client.plan:
            subject, broader = Client(plan=client.plan), Client(patterns=client.patterns)
        is_for_everybody = not (target.entity or target.plan)
        resources = self._rows.resources(subject)
        if is_pattern(target.entity):
            resources |= self._rows.resources(Client(target.entity))
        for resource in sorted(resources):
            yield self._rows.policies(resource, client), {}
        limits, sources = self._elsewhere(broader, resources, of_code=is_for_everybody)
        own = self._rows.of_everybody("") if is_for_everybody else self._rows.own("", subject)
        yield (*own, PolicyValue(CODE, PolicyEffect.LIMITS, limits, None)), sources

    def _elsewhere(
        self, client: Client, resources: set[str], *, of_code: bool
    ) -> tuple[tuple[LimitDefinition, ...], PoliciesByKey]:
        """All limits of a client on other resources than these, and the policies that set them."""
        everywhere = self._everywhere(client, of_code)
        if not resources:
            return everywhere.limits, everywhere.sources
        sources = {key: counted.copy() for key, counted in everywhere.sources.items()}
        for resource in resources:
            for key, limit in everywhere.by_resource.get(resource, {}).items():
                sources[key][limit.policy.policy_id] -= 1
        sources = {key: left for key, counted in sources.items() if (left := +counted)}
        return tuple([limit for limit in everywhere.limits if limit.key in sources]), sources

    def _limits_everywhere(self, client: Client, of_code: bool) -> _Everywhere:
        """The limits of a client on each resource; on one without policies it has those for all resources."""
        by_resource: dict[str, dict[str, EffectiveLimit]] = {}
        sources: dict[str, Counter[int | None]] = {}
        limits: dict[str, LimitDefinition] = {}
        for resource in ("", *sorted(self._rows.all_resources)):
            policies = self._rows.of_code(resource) if of_code else self._rows.policies(resource, client)
            by_key = by_resource[resource] = {}
            for effective in judge(EntityPolicies(None, policies), self._now).limits:
                if not isinstance(effective.limit, Blocked):
                    by_key[effective.limit.key] = effective
                    limits.setdefault(effective.limit.key, effective.limit)
                    sources.setdefault(effective.limit.key, Counter())[effective.policy.policy_id] += 1
        return _Everywhere(tuple(limits.values()), sources, by_resource)


def may_drop(policy: PolicyValue, now: datetime) -> bool:
    """Whether a policy may drop limits: it sets limits, replaces those of broader policies, and has not ended."""
    replaces = policy.effect == PolicyEffect.LIMITS and not policy.extends
    return replaces and not has_ended(policy.valid_until, now)


def _lost(policies: Iterable[PolicyValue], policy: PolicyValue, now: datetime) -> list[EffectiveLimit]:
    """The limits that apply without a policy, and with it no more."""
    others = tuple([other for other in policies if other.policy_id is None or other.policy_id != policy.policy_id])
    before = judge(EntityPolicies(None, others), now).by_place
    after = judge(EntityPolicies(None, (*others, _always(policy))), now).by_place
    return [
        effective
        for target, effective in before.items()
        if target not in after and not isinstance(effective.limit, Blocked)
    ]


def always_applies(policy: PolicyValue) -> bool:
    """Whether a policy is enforced for all its clients at all times."""
    is_permanent = policy.valid_from is None and policy.hours is None
    return is_permanent and policy.enforcement == Enforcement.ENFORCE and policy.rollout_percent == 100


def _always(policy: PolicyValue) -> PolicyValue:
    """A policy as if it were enforced for all its clients at all times, with its precedence."""
    begins = None if policy.valid_from is None and policy.hours is None else FIRST_MOMENT
    always = replace(policy, enforcement=Enforcement.ENFORCE, rollout_percent=100)
    return replace(always, valid_from=begins, valid_until=None, hours=None)


def dropped_keys(policy: Policy) -> tuple[DroppedKey, ...]:
    """The keys that the replaced policies limit and this saved policy does not.

    None for a policy that blocks or allows everything, which is explicit, and for one that extends.
    """
    if policy.resource is not None and policy.entity is not None and not is_pattern(str(policy.entity)):
        return _dropped_for_client(policy, Subject(str(policy.resource), str(policy.entity)))
    [(_policy, dropped)] = dropped_by_each([policy])
    return dropped


def lost_by_new(policy: Policy, limits: Sequence[Noted], *, using: str) -> list[LostLimit]:
    """The limits that apply to the clients of a policy that is not saved, and no more with it; of each key the lowest.

    The policy is about one resource, or counts a total. Its primary key is that of the policy whose target it takes,
    or None. See `dropped_keys`.
    """
    policy._state.db, now = using, datetime.now(UTC)
    target, value = stored_policy(policy, limits)
    dropping = Dropping(stored_policies([policy]).collector(always_applies), now)
    by_key: dict[str, tuple[Noted, int | None]] = {}
    for effective in dropping.lost(target, value):
        limit, policy_id = effective.limit, effective.policy.policy_id
        lowest = by_key.get(limit.key)
        if isinstance(limit, LimitDefinition) and (lowest is None or limit.capacity < lowest[0].limit.capacity):
            by_key[limit.key] = Noted(limit, effective.shared), policy_id
    rows = Policy.objects.using(using).select_related("resource", "entity", "plan").prefetch_related("limits")
    policies = rows.in_bulk({policy_id for _noted, policy_id in by_key.values()} - {None})
    return [LostLimit(noted, policies.get(policy_id or 0)) for _key, (noted, policy_id) in sorted(by_key.items())]


def _dropped_for_client(policy: Policy, subject: Subject) -> tuple[DroppedKey, ...]:
    """`dropped_keys` of a policy of one client on one resource, to whose requests one chain of policies applies."""
    using, now = policy._state.db or "", datetime.now(UTC)
    link = policies_for(subject, using, now).links[0]
    own = next((value for value in link.policies if value.policy_id == policy.pk), None)
    if own is None or not may_drop(own, now):
        return ()
    policies = [value for value in link.policies if value is not own and always_applies(value)]
    code = PolicyValue(CODE, PolicyEffect.LIMITS, (), None)
    if judge(EntityPolicies(None, (*policies, code)), now).uses_code:
        of_code = stored_code_limits(using, subject.resource)
        policies += [replace(code, limits=definitions) for definitions in of_code.values()]
    keys = {limit.limit.key: limit.policy.policy_id for limit in _lost(policies, own, now)}
    if not keys:
        return ()
    rows = Policy.objects.using(using).select_related("resource", "entity", "plan")
    replaced = rows.in_bulk(set(keys.values()) - {None})
    return tuple([DroppedKey(key, str(replaced.get(pk, OF_CODE))) for key, pk in sorted(keys.items())])


def applied_without(policy: Policy) -> list[str]:
    """The policies that apply now to the requests of a saved policy where it is not enforced, by their labels."""
    using, now = write_alias(), datetime.now(UTC)
    names = [None if row is None else str(row) for row in (policy.resource, policy.entity, policy.plan)]
    link = policies_for(Subject(*names), using, now).links[0]
    others = tuple([other for other in link.policies if other.policy_id != policy.pk])
    limits_of_code = () if policy.resource is None else latest_code_limits(str(policy.resource))
    if limits_of_code:
        others += (PolicyValue(CODE, PolicyEffect.LIMITS, limits_of_code, None),)
    applied = applied_policies(judge(replace(link, policies=others), now).verdicts)
    rows = Policy.objects.using(using).in_bulk([other.policy_id for other in applied if other.policy_id])
    # An entity that is itself blocked or unlimited has no policy for that.
    without_row = {CODE: OF_CODE, ENTITY_FLAGS: f"entity {policy.entity}"}
    return [str(rows[other.policy_id]) if other.policy_id else without_row[other.level] for other in applied]


def dropped_by_each(policies: Iterable[Policy]) -> Iterator[tuple[Policy, tuple[DroppedKey, ...]]]:
    """`dropped_keys` of each policy, with a few queries for all of them."""
    saved = list(policies)
    if not saved:
        return
    stored = stored_policies(saved)
    dropping = Dropping(stored.collector(always_applies), datetime.now(UTC))
    for policy in saved:
        dropped = dropping.dropped(*stored.policies[policy.pk])
        labels = [(key, stored.labels.get(pk, OF_CODE)) for key, policies_of_key in dropped for pk in policies_of_key]
        yield policy, tuple([DroppedKey(*label) for label in labels])
