"""Shares of the reported use: what each part of an acquisition has charged to a bucket, and has used of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from limits_app.engine import (
    MILLI,
    Amount,
    Amounts,
    Bucket,
    GivenAmount,
    LimitUse,
    PlannedLimit,
    PlanShape,
    ReportedUse,
    RequestPlan,
    from_micro,
    parts_of,
    units_of,
)


class Part(Protocol):
    """An acquisition or one of its extensions."""

    plan: RequestPlan
    shape: PlanShape
    amounts: Amounts
    requested: Mapping[str, GivenAmount]
    used: ReportedUse

    @property
    def successful(self) -> bool:
        """Whether its amounts are held, or were until they were released."""


P = TypeVar("P", bound=Part)


def shares(parts: Sequence[P]) -> Sequence[tuple[P, ReportedUse]]:
    """Return the parts, each with its share of the reported use by position.

    Use is assigned to the parts in the order in which they were charged. The last part of a bucket receives the rest,
    also what exceeds the sum; a part that charges it only money for units is not the last one. So unused amounts
    are refunded to the latest charges. The cost of units with prices follows from the share of each part, at its own
    prices.
    """
    if len(parts) == 1:
        return [(parts[0], parts[0].used)]
    last = {part.plan.buckets[limit.position]: part for part in parts for limit in part.shape.limits if limit.keys}
    earlier: dict[Bucket, int] = {}
    shared: list[tuple[P, ReportedUse]] = []
    for part in parts:
        used, amounts = dict(part.used), part.shape.own_amounts(part.amounts)
        for limit, bucket in zip(part.shape.limits, part.plan.buckets, strict=True):
            amount, per_unit = amounts[limit.position], limit.rule.parts_per_unit
            before = earlier.get(bucket, 0)
            if limit.position in used:
                left = max(used[limit.position] - before * per_unit // MILLI, 0)
                used[limit.position] = left if last[bucket] is part else min(left, amount)
            earlier[bucket] = before + amount * MILLI // per_unit
        shared.append((part, used))
    return shared


def used_before(parts: Sequence[Part], extension: Part) -> ReportedUse:
    """Return the use of an extension that was reported of the same buckets before it was charged."""
    used: dict[int, int] = {}
    for limit in extension.shape.limits:
        for part, same in _same_bucket(parts, extension, limit):
            if same.position in part.used:
                # The limit may have been changed; rounded towards more use.
                used[limit.position] = -(
                    -part.used[same.position] * limit.rule.parts_per_unit // same.rule.parts_per_unit
                )
    return used


def charged_for(parts: Sequence[Part], part: Part, limit: PlannedLimit) -> int:
    """Return how much was requested of the bucket of a limit of one part, in parts of its unit, of all parts together.

    The cost of units with prices is left out.
    """
    if len(parts) == 1:
        return part.shape.own_amounts(part.amounts)[limit.position]
    charged = [
        other.shape.own_amounts(other.amounts)[same.position] * MILLI // same.rule.parts_per_unit
        for other, same in _same_bucket(parts, part, limit)
    ]
    return sum(charged) * limit.rule.parts_per_unit // MILLI


def money_of(parts: Sequence[Part], part: Part, limit: PlannedLimit) -> LimitUse:
    """Return what all parts have charged to the bucket of a limit in money with the cost of units, and have used."""
    charged = used = 0
    is_reported = False
    for other, share in shares(parts):
        for same in other.shape.limits:
            if same.priced and other.plan.buckets[same.position] == part.plan.buckets[limit.position]:
                amount = other.amounts[same.position]
                charged += amount // same.rule.parts_per_unit
                used += (amount + other.shape.changes(share, other.amounts)[same.position]) // same.rule.parts_per_unit
                is_reported = is_reported or bool(other.used)
    return LimitUse(from_micro(charged), from_micro(used) if is_reported else None)


def requested_of(parts: Sequence[Part], limit: PlannedLimit, key: str) -> Amount:
    """Return how much was requested of a key, whose limit adds up several keys."""
    return units_of(limit.rule, sum([parts_of(limit, part.requested.get(key, 0)) for part in parts]))


def sum_used(parts: Sequence[Part], limit: PlannedLimit, reports: Mapping[str, object]) -> int:
    """Return the use of a limit for several keys; those that are not reported yet count as requested."""
    used = 0
    for key in limit.every_key:
        if key in reports:
            used += parts_of(limit, reports[key])
        else:
            used += sum([parts_of(limit, part.requested.get(key, 0)) for part in parts])
    return used


def used_of_sums(parts: Sequence[Part], part: Part, reports: Mapping[str, object]) -> ReportedUse:
    """Return the use of the limits of a part that add up several keys, where any of these was reported.

    The part itself may have requested other keys of the limit.
    """
    if not part.shape.has_sums:
        return {}
    return {
        limit.position: sum_used(parts, limit, reports)
        for limit in part.shape.limits
        if limit.is_sum and not reports.keys().isdisjoint(limit.every_key)
    }


def _same_bucket(parts: Sequence[Part], other: Part, limit: PlannedLimit) -> Iterator[tuple[Part, PlannedLimit]]:
    """Iterate over the parts that have charged the bucket of a limit of another one, with their limits."""
    bucket = other.plan.buckets[limit.position]
    for part in parts:
        for same in part.shape.limits:
            if part.plan.buckets[same.position] == bucket:
                yield part, same
