"""Proposed policies and entities in target of stored ones: what they drop, and the limits of clients by them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from limits_app.acquiring import Store
from limits_app.engine import EPOCH, MICROSECOND, Noted, PriceList, ScopedLimits, StoredPrice
from limits_app.models.patterns import prefixes_of
from limits_app.models.plan import plans_by_groups
from limits_app.policies.collector import Collector, EntityRow, PolicyTarget
from limits_app.policies.dropped import OF_CODE, Dropping, always_applies
from limits_app.policies.policy_values import PolicyValue, policy_value
from limits_app.policies.precedence import applied_policies, changes_at, judge, rollout_position
from limits_app.policies.prices import stored_prices
from limits_app.policies.resolved_set import compiled
from limits_app.policies.stored import plans_of_clients, stored_code_limits
from limits_app.policies.stores import VersionedStore

_MOST_CLIENTS: Final = 65_536
"""Most clients use several resources."""


class ProposedPolicy(NamedTuple):
    """A policy: what people call it, what it is for, and what it means, with its number in target of a primary key."""

    label: str
    target: PolicyTarget
    value: PolicyValue

    @classmethod
    def of(cls, label: str, fields: Mapping[str, Any], limits: Sequence[Noted], *, number: int) -> ProposedPolicy:
        """A policy by the values of its fields, with the names of its resource, entity and plan (empty: none)."""
        target = PolicyTarget(fields["resource"], fields["entity"], fields["plan"])
        value = policy_value(
            fields,
            limits,
            policy_id=number,
            identifier=target.entity or None,
            plan=target.plan or None,
            has_resource=bool(target.resource),
        )
        return cls(label, target, value)


@dataclass(frozen=True, slots=True)
class ProposedRows:
    """Policies by numbers from 1 on, and other rows by their names.

    `priorities` are those of plans, and `plans_of_groups` has the plan of each group of users that is proposed. Users,
    the plans of other groups, the limits that code sets, and other prices than `prices`, are those of the database.
    """

    policies: dict[int, ProposedPolicy] = field(default_factory=dict)
    entities: dict[str, EntityRow] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    plans_of_groups: dict[str, str] = field(default_factory=dict)
    prices: list[StoredPrice] = field(default_factory=list)


class ProposedLimits:
    """The limits of clients by proposed rows; pools are left out. `store` is the one that they are compiled for.

    With `clients`, users have the plans of their groups where they are among these.
    """

    def __init__(self, rows: ProposedRows, using: str, store: Store, *, clients: Collection[str] | None = None) -> None:
        by_groups = None
        if clients is not None:
            by_groups = plans_of_clients(using, clients, with_members=False, proposed=_plans_of_groups(rows))
        self._collector = proposed_collector(rows, using, by_groups=by_groups)
        self._client = lru_cache(_MOST_CLIENTS)(self._collector.client)
        self._store_version = VersionedStore("proposed", store, 0)
        self._proposed_prices, self._prices = rows.prices, dict[str, PriceList]()

    def alike(self, resource: str, entity: str | None) -> Hashable:
        """What the limits of a client without rows depend on; None for one with rows."""
        if entity in self._collector.known:
            return None
        position = rollout_position(entity) if self._collector.rolls_out else 0
        return resource, entity is None, position, self._client(entity or "")._replace(entity="")

    def of(self, resource: str, entity: str | None, now: datetime) -> tuple[Sequence[ScopedLimits], datetime | None]:
        """The limits of a client at a time, and when they change next (None: never)."""
        links = [*self._collector.links(resource, entity)]
        choices = [judge(link, now) for link in links]
        prices, time_us = self._prices_of(resource), (now - EPOCH) // MICROSECOND
        resolved = compiled(resource, choices, (), store_version=self._store_version, prices=prices, time_us=time_us)
        changes = [change for link in links if (change := changes_at(link, now)) is not None]
        next_price_us = prices.changes_at(time_us)
        if next_price_us is not None:
            changes.append(EPOCH + next_price_us * MICROSECOND)
        return resolved.limit_set.scoped, min(changes, default=None)

    def _prices_of(self, resource: str) -> PriceList:
        """The stored prices of a resource, with the proposed ones."""
        prices = self._prices.get(resource)
        if prices is None:
            names = {resource, *prefixes_of(resource)}
            proposed = [price for price in self._proposed_prices if price.target.resource in names]
            prices = self._prices[resource] = stored_prices(resource).replaced(proposed)
        return prices

    def applies(self, number: int, resource: str, entity: str | None, now: datetime) -> bool:
        """Whether the policy of a number applies to a client at a time."""
        choice = judge(next(self._collector.links(resource, entity)), now)
        return any(policy.policy_id == number for policy in applied_policies(choice.verdicts))


def dropped_by_proposed(
    rows: ProposedRows, numbers: Iterable[int], using: str
) -> Iterator[tuple[int, str, Collection[str]]]:
    """The limits that the policies of some numbers drop: the number, the key, and the policies that have the limit."""
    changed = {number: rows.policies[number] for number in numbers}
    clients = [policy.target.entity for policy in changed.values() if policy.target.entity]
    with_members = any(policy.target.plan for policy in changed.values())
    by_groups = plans_of_clients(using, clients, with_members=with_members, proposed=_plans_of_groups(rows))
    dropping = Dropping(proposed_collector(rows, using, always_applies, by_groups=by_groups), datetime.now(UTC))
    for number, policy in changed.items():
        for key, others in dropping.dropped(policy.target, policy.value):
            yield number, key, [OF_CODE if other is None else rows.policies[other].label for other in others]


def _plans_of_groups(rows: ProposedRows) -> list[tuple[str, str, int]]:
    """The proposed groups with their plans, and the priorities of these."""
    return [(name, plan, rows.priorities.get(plan, 0)) for name, plan in rows.plans_of_groups.items()]


def proposed_collector(
    rows: ProposedRows,
    using: str,
    is_meant: Callable[[PolicyValue], bool] = lambda _policy: True,
    *,
    by_groups: Mapping[str, str] | None = None,
) -> Collector:
    """The collector of the proposed policies that are meant, with their numbers as primary keys.

    `by_groups` are the plans that users have by their groups, by default those of all users.
    """
    if by_groups is None:
        by_groups = plans_by_groups(using, proposed=_plans_of_groups(rows))
    return Collector(
        [(policy.target, policy.value) for policy in rows.policies.values() if is_meant(policy.value)],
        rows.entities,
        plans_by_groups=by_groups,
        code_limits=stored_code_limits(using),
    )
