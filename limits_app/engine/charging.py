"""Charging money for units: the shape of requests of which limits in money are charged for units with prices.

The cost of a request, or of one extension of it, is the sum of its amounts times their prices, rounded up once to a
millionth of the currency. Amounts under the key of the currency itself are added as they are. Below this module, stores
see one more whole number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import lcm
from typing import Final, NamedTuple

from limits_app.engine.plan import Amounts, PlannedLimit, PlanShape, ReportedUse
from limits_app.engine.scoped_limits import PlannedScope

NOTHING_USED: Final[ReportedUse] = {}


class UnitCosts(NamedTuple):
    """What the limit in money at a position is charged for the units of a request, in parts.

    Each term is the position of a unit in the request and its weight: its price for one part of it in millionths times
    `divisor`. The `permits` are terms whose whole amount is used. A millionth is `parts_per_unit` parts of the
    limit, and `has_own` says whether the request names an amount under the currency.
    """

    position: int
    terms: tuple[tuple[int, int], ...]
    permits: tuple[tuple[int, int], ...]
    divisor: int
    parts_per_unit: int
    has_own: bool


class PricedShape(PlanShape):
    """A shape in which limits in money are charged for units with prices."""

    def __init__(
        self,
        limits: Sequence[PlannedLimit],
        scopes: Sequence[PlannedScope],
        positions: Sequence[int],
        named: Collection[str],
        *,
        many_calls: Collection[str] = (),
        rank: int = 0,
    ) -> None:
        super().__init__(limits, scopes, positions, named, many_calls=many_calls, rank=rank)
        self._costs = tuple([_unit_costs(limit, self) for limit in self.limits if limit.priced])
        if self.fixed_amounts is not None:
            self.fixed_amounts, self.fits = self.amounts({})

    def amounts(self, requested: Mapping[str, object]) -> tuple[list[int], bool]:
        """See `PlanShape.amounts`."""
        return self.charged(*PlanShape.amounts(self, requested))

    def charged(self, amounts: list[int], fits: bool = True) -> tuple[list[int], bool]:
        """See `PlanShape.charged`."""
        for costs in self._costs:
            position = costs.position
            parts = amounts[position] + _cost(costs, NOTHING_USED, amounts)
            limit = self.limits[position]
            if parts > limit.rule.most_parts:
                parts, fits = limit.bounded(parts), fits and limit.rule.is_soft
            amounts[position] = parts
        return amounts, fits

    def own_amounts(self, amounts: Amounts) -> Amounts:
        """See `PlanShape.own_amounts`."""
        own = [*amounts]
        for costs in self._costs:
            own[costs.position] = max(amounts[costs.position] - _cost(costs, NOTHING_USED, amounts), 0)
        return own

    def changes(self, used: ReportedUse, amounts: Amounts) -> list[int]:
        """See `PlanShape.changes`: the cost of the used units is at the prices at which they were charged."""
        changes = PlanShape.changes(self, used, amounts)
        for costs in self._costs:
            position, own = costs.position, 0
            if costs.has_own:
                is_reported = position in used
                own = used[position] if is_reported else max(amounts[position] - _cost(costs, NOTHING_USED, amounts), 0)
            changes[position] = own + _cost(costs, used, amounts) - amounts[position]
        return changes


def _cost(costs: UnitCosts, used: ReportedUse, amounts: Amounts) -> int:
    """Return the cost of the used units in parts, rounded up to whole millionths; unreported amounts count as used.

    Without a comprehension, which takes as long as the rest: each acquisition calls it twice.
    """
    _, terms, permits, divisor, parts_per_unit, _ = costs
    cost = 0
    for position, weight in terms:
        cost += weight * (used[position] if position in used else amounts[position])
    for position, weight in permits:
        cost += weight * amounts[position]
    return -(-cost // divisor) * parts_per_unit


def _unit_costs(limit: PlannedLimit, shape: PlanShape) -> UnitCosts:
    """Return the costs of a limit in money, in a shape with the units that a request takes."""
    positions: list[tuple[int, int, int]] = []
    for key, price in limit.priced:
        unit = _unit(key, shape)
        if unit is not None:
            positions.append((unit.position, price.numerator, price.denominator * unit.rule.parts_per_unit))
    divisor = lcm(*[denominator for _, _, denominator in positions])
    terms = [
        (position, numerator * divisor // denominator) for position, numerator, denominator in positions if numerator
    ]
    return UnitCosts(
        limit.position,
        tuple([term for term in terms if not shape.limits[term[0]].is_permit]),
        tuple([term for term in terms if shape.limits[term[0]].is_permit]),
        divisor,
        limit.rule.parts_per_unit,
        bool(limit.keys),
    )


def _unit(key: str, shape: PlanShape) -> PlannedLimit | None:
    """Return a limit of a unit whose amount is that of a key alone; None where the request does not take any of it."""
    units = [limit for limit in shape.by_key.get(key, ()) if not (limit.is_sum or limit.rule.is_money)]
    return next((limit for limit in units if not limit.rule.is_soft), units[0] if units else None)
