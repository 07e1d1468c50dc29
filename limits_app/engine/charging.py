"""Charging money for units: the shape of requests of which limits in money are charged for units with prices.

The cost of a request, or of one extension of it, is the sum of its amounts times their prices, rounded up once to a
millionth of the currency. Amounts under the key of the currency itself are added as they are. Below this module, stores
see one more whole number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import lcm
from typing import NamedTuple

from limits_app.engine.plan import Amounts, PlannedLimit, PlannedScope, PlanShape, ReportedUse


class UnitCosts(NamedTuple):
    """What a limit in money is charged for the units of a request, in parts.

    Each term is the place of a unit in the request and its weight, which is its price for one part of it, in parts of
    the limit times `divisor`.
    """

    limit: PlannedLimit
    terms: tuple[tuple[int, int], ...]
    divisor: int

    def of(self, amounts: Amounts) -> int:
        """Return the cost of amounts in parts of the limit: whole millionths, rounded up."""
        cost = sum([weight * amounts[place] for place, weight in self.terms])
        return -(-cost // self.divisor) * self.limit.rule.parts_per_unit


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
    ) -> None:
        super().__init__(limits, scopes, positions, named, many_calls=many_calls)
        self._costs = tuple([_unit_costs(limit, self) for limit in self.limits if limit.priced])
        if self.fixed_amounts is not None:
            self.fixed_amounts, self.fits = self._charged([*self.fixed_amounts], self.fits)

    def amounts(self, requested: Mapping[str, object]) -> tuple[Amounts, bool]:
        """See `PlanShape.amounts`."""
        amounts, fits = super().amounts(requested)
        return self._charged([*amounts], fits)

    def own_amounts(self, amounts: Amounts) -> Amounts:
        """See `PlanShape.own_amounts`."""
        own = [*amounts]
        for costs in self._costs:
            place = costs.limit.place
            own[place] = max(own[place] - costs.of(amounts), 0)
        return own

    def changes(self, used: ReportedUse, amounts: Amounts) -> list[int]:
        """See `PlanShape.changes`: the cost of the used units is at the prices at which they were charged."""
        changes = super().changes(used, amounts)
        units = [*amounts]
        for place in used:
            if not self.limits[place].is_permit:  # permits that were held are used
                units[place] = used[place]
        for costs in self._costs:
            place, cost = costs.limit.place, costs.of(amounts)
            own = used[place] if place in used else max(amounts[place] - cost, 0)
            changes[place] = own + costs.of(units) - amounts[place]
        return changes

    def _charged(self, amounts: list[int], fits: bool) -> tuple[Amounts, bool]:
        """Return amounts with the costs of units, and whether they can ever fit."""
        for costs in self._costs:
            limit = costs.limit
            parts = amounts[limit.place] = limit.bounded(amounts[limit.place] + costs.of(amounts))
            fits = fits and parts <= limit.rule.most_parts
        return amounts, fits


def _unit_costs(limit: PlannedLimit, shape: PlanShape) -> UnitCosts:
    """Return the costs of a limit in money, in a shape with the units that a request takes."""
    places: list[tuple[int, int, int]] = []
    for key, price in limit.priced:
        unit = _unit(key, shape)
        if unit is not None:
            places.append((unit.place, price.numerator, price.denominator * unit.rule.parts_per_unit))
    divisor = lcm(*[denominator for _, _, denominator in places])
    terms = [(place, numerator * divisor // denominator) for place, numerator, denominator in places if numerator]
    return UnitCosts(limit, tuple(terms), divisor)


def _unit(key: str, shape: PlanShape) -> PlannedLimit | None:
    """Return a limit of a unit whose amount is that of a key alone; None where the request does not take any of it."""
    units = [limit for limit in shape.by_key.get(key, ()) if not (limit.is_sum or limit.rule.is_money)]
    return next((limit for limit in units if not limit.rule.is_soft), units[0] if units else None)
