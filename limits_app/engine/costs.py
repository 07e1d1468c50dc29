"""Costs: what counted amounts cost at a price, as exact numbers of a currency."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from typing import Final

from limits_app.engine.amounts import GIVEN_MARK, MICRO, MILLI
from limits_app.engine.prices import UnitPrice

_EXACT: Final = Context(prec=200)
"""A decimal context that does not depend on the precision that the surrounding program has set."""


def cost_of(milli: int, price: UnitPrice) -> Fraction:
    """Return what an amount in thousandths of a unit costs at the price of one unit, in units of the currency."""
    return Fraction(milli * price.numerator, price.denominator * MILLI * MICRO)


def given_cost(milli: int) -> Fraction:
    """Return what an amount that was given under a currency costs, as usage has it."""
    return Fraction(milli, MILLI * MICRO)


def given_currency(key: str) -> str | None:
    """Return the currency of a key of `given_key`; None for any other key."""
    return key.removesuffix(GIVEN_MARK) if key.endswith(GIVEN_MARK) else None


def exact_decimal(value: Fraction) -> Decimal:
    """Return a sum of costs as a decimal, exactly: prices are decimals, so that it has an end."""
    quotient = _EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))
    return Decimal(f"{quotient.normalize(_EXACT):f}")
