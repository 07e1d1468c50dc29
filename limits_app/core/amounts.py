"""Amounts: whole numbers, or numbers with at most three decimals, kept exactly as thousandths."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Final

__all__ = ["EXACT", "MAX_AMOUNT", "MILLI", "MULTIPLES", "Amount", "Requested", "from_milli", "shown", "to_milli"]

Amount = int | float
Requested = Mapping[str, Amount] | None
"""What somebody asks for, by key; of limits that are not named, 1, or nothing where it must be said."""

MILLI: Final = 1000
MAX_AMOUNT: Final = 10**12
MULTIPLES: Final[Mapping[str, int]] = {"G": 10**9, "M": 10**6, "k": 10**3, "": 1}
"""What people write behind a number, the largest first."""
EXACT: Final = Context(prec=100)
"""Decimals by the precision of nobody else: what is read from text has fewer digits."""


def to_milli(value: object, *, decimals: bool) -> int:
    """Give `value` in thousandths.

    Raises ValueError with the rule that was broken: not a number, not finite, not whole
    (or more than three decimals where `decimals` are allowed), or beyond 10^12 either way.
    """
    milli = _exact_milli(value, decimals=decimals)
    if abs(milli) > MAX_AMOUNT * MILLI:
        raise ValueError("must not be more than 10^12")
    return milli


def _exact_milli(value: object, *, decimals: bool) -> int:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")  # noqa: TRY004 - one error type for bad input
    if isinstance(value, float | Decimal):
        if not decimals:
            raise ValueError("must be a whole number")
        # Not by repr: numeric libraries write their floats in their own way.
        return _milli_of_decimal(Decimal(float.__repr__(value)) if isinstance(value, float) else value)
    try:
        return operator.index(value) * MILLI  # type: ignore[arg-type]  # anything integer-like, or TypeError
    except TypeError:
        raise ValueError("must be a number") from None


def _milli_of_decimal(value: Decimal) -> int:
    if not value.is_finite():
        raise ValueError("must be a finite number")
    if value and value.adjusted() > 15:
        raise ValueError("must not be more than 10^12")
    if value and value.adjusted() < -3:
        raise ValueError("must have at most three decimals")
    # As a ratio, since multiplying decimals obeys the precision that the surrounding program has set.
    numerator, denominator = value.as_integer_ratio()
    milli, rest = divmod(numerator * MILLI, denominator)
    if rest:
        raise ValueError("must have at most three decimals")
    return milli


def from_milli(milli: int) -> Amount:
    """Give thousandths back as a whole number where they are one, else as a float."""
    whole, rest = divmod(milli, MILLI)
    return whole if rest == 0 else milli / MILLI


def shown(value: object) -> str:
    """Write a value for an error message, short whatever came in."""
    try:
        text = repr(value)
    except ValueError:
        return f"{type(value).__name__} too long to write"
    return text if len(text) <= 80 else f"{text[:77]}..."
