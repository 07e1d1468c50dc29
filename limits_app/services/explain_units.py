"""The units of a resource that have a price, and what its limits in money have no price for, in explanations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from limits_app.acquiring import LimitSet
from limits_app.engine import exact_decimal
from limits_app.engine.limits import CountedUnit
from limits_app.services.limit_words import limit_name


@dataclass(frozen=True, slots=True)
class ExplainedUnit:
    """A unit with a price: `per_million` are what a million of it costs, by currency.

    One that `is_unlimited` has no limit of the entity on the resource, and is only counted.
    """

    key: str
    is_unlimited: bool
    per_million: Mapping[str, Decimal]

    def as_dict(self) -> dict[str, object]:
        """The unit as plain data, for JSON."""
        costs = {currency: f"{cost:f}" for currency, cost in self.per_million.items()}
        return {"key": self.key, "is_unlimited": self.is_unlimited, "per_million": costs}

    def text(self) -> str:
        """The unit in a sentence."""
        costs = " or ".join([f"{cost:f} {currency.upper()}" for currency, cost in self.per_million.items()])
        unlimited = "unlimited and counted; " if self.is_unlimited else ""
        return f"{limit_name(self.key)}: {unlimited}1,000,000 cost {costs}."


def explained_units(limits: LimitSet) -> tuple[ExplainedUnit, ...]:
    """The units that have a price in the effective limits of a request."""
    per_million: dict[str, dict[str, Decimal]] = {}
    for scoped in limits.scoped[:1]:
        for price in scoped.prices or ():
            # As many of a currency for a million units as millionths for one.
            cost = exact_decimal(Fraction(price.numerator, price.denominator))
            per_million.setdefault(price.unit, {})[price.currency] = cost
    counted = {key for scoped in limits.scoped for rule in scoped.schema.rules for key in scoped.keys_of(rule)}
    limited = {
        rule.key for scoped in limits.scoped for rule in scoped.schema.rules if not isinstance(rule.limit, CountedUnit)
    }
    return tuple(
        [ExplainedUnit(key, key not in limited, costs) for key, costs in sorted(per_million.items()) if key in counted]
    )


def unpriced(limits: LimitSet) -> Iterator[str]:
    """The currencies that a request is limited in, and in which its resource has no price."""
    for scoped in limits.scoped:
        for rule in scoped.schema.rules:
            if rule.is_money and not rule.is_counted and not scoped.priced_keys(rule):
                yield rule.key
