"""Charging money for units: the shape of requests of which limits in money are charged for units with prices.

The cost of a request, or of one extension of it, is the sum of its amounts times their prices, rounded up once to a
millionth of the currency. Amounts under the key of the currency itself are added as they are. Below this module, stores
see one more whole number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import lcm

from limits_app.engine.plan import Amounts, PlannedLimit, PlanShape, ReportedUse
from limits_app.engine.scoped_limits import PlannedScope

Term = tuple[int, int]
"""The position of a unit in the request and its weight: its price for one part of it in millionths times a divisor."""


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """What the limit in money at a position is charged for the units of a request, in parts.

    The terms have one `divisor`; the `permits` are those whose whole amount is used. A millionth is `parts_per_unit`
    parts of the limit, and `has_own` says whether the request names an amount under the currency.
    """

    position: int
    terms: tuple[Term, ...]
    permits: tuple[Term, ...]
    divisor: int
    parts_per_unit: int
    most_parts: int
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
        self.is_priced = True
        if self.fixed_amounts is not None:
            self.fixed_amounts, self.fits = self.amounts({})

    # Without functions for the sums, which would take as long as these: each acquisition does both.

    def charged(self, amounts: list[int], fits: bool = True) -> tuple[list[int], bool]:
        """See `PlanShape.charged`."""
        for costs in self._costs:
            position, cost = costs.position, 0
            for unit, weight in costs.terms:
                cost += weight * amounts[unit]
            for unit, weight in costs.permits:
                cost += weight * amounts[unit]
            parts = amounts[position] - -cost // costs.divisor * costs.parts_per_unit
            if parts > costs.most_parts:
                limit = self.limits[position]
                parts, fits = limit.bounded(parts), fits and limit.rule.is_soft
            amounts[position] = parts
        return amounts, fits

    def own_amounts(self, amounts: Amounts) -> Amounts:
        """See `PlanShape.own_amounts`."""
        own, unpriced = [*amounts], [*amounts]
        for costs in self._costs:
            unpriced[costs.position] = 0
        charged, _ = self.charged(unpriced)
        for costs in self._costs:
            own[costs.position] = max(amounts[costs.position] - charged[costs.position], 0)
        return own

    def changes(self, used: ReportedUse, amounts: Amounts) -> list[int]:
        """See `PlanShape.changes`: used units cost what they did when they were charged; unreported ones are used."""
        changes = super().changes(used, amounts)
        for costs in self._costs:
            position, cost = costs.position, 0
            for unit, weight in costs.terms:
                cost += weight * (used[unit] if unit in used else amounts[unit])
            for unit, weight in costs.permits:
                cost += weight * amounts[unit]
            own = 0
            if costs.has_own:
                own = used[position] if position in used else self.own_amounts(amounts)[position]
            changes[position] = own - -cost // costs.divisor * costs.parts_per_unit - amounts[position]
        return changes


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
        limit.rule.most_parts,
        bool(limit.keys),
    )


def _unit(key: str, shape: PlanShape) -> PlannedLimit | None:
    """Return a limit of a unit whose amount is that of a key alone; None where the request does not take any of it."""
    units = [limit for limit in shape.by_key.get(key, ()) if not (limit.is_sum or limit.rule.is_money)]
    return next((limit for limit in units if not limit.rule.is_soft), units[0] if units else None)
