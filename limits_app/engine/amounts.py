"""Amounts: whole numbers, or numbers with at most three decimals, kept exactly as thousandths."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Final

from limits_app.engine.errors import InvalidRequest

Amount = int | float
Requested = Mapping[str, Amount] | None
"""The requested amounts by key; None requests the default amounts."""


class PermitsOnly(dict[str, Amount]):
    """The amounts of a request of which only the permits are taken, and no amounts of other limits."""


MILLI: Final = 1000
MAX_AMOUNT: Final = 10**12
MULTIPLES: Final[Mapping[str, int]] = {"G": 10**9, "M": 10**6, "k": 10**3, "": 1}
"""Suffixes of numbers, the largest first."""
_EXACT: Final = Context(prec=100)
"""A decimal context that does not depend on the precision that the surrounding program has set."""


def to_milli(value: object, *, decimals: bool) -> int:
    """Return `value` in thousandths.

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
        # Not by repr: numeric libraries write their floats in their own way.
        exact = Decimal(float.__repr__(value)) if isinstance(value, float) else value
        if not decimals and not (exact.is_finite() and exact == exact.to_integral_value()):
            raise ValueError("must be a whole number")
        return _milli_of_decimal(exact)
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
    """Return thousandths as a whole number where they are one, else as a float."""
    whole, rest = divmod(milli, MILLI)
    return whole if rest == 0 else milli / MILLI


def exact_product(digits: str, factor: int | Decimal) -> Amount:
    """Return a number in text, times a factor; ValueError as for `to_milli`."""
    return from_milli(to_milli(_EXACT.multiply(Decimal(digits), factor), decimals=True))


def shown(value: object) -> str:
    """Return the representation of a value for an error message, shortened to 80 characters."""
    try:
        text = repr(value)
    except ValueError:
        return f"{type(value).__name__} too long to write"
    return text if len(text) <= 80 else f"{text[:77]}..."


def checked_amount(key: object, amount: object, *, decimals: bool) -> int:
    """Return a requested or reported amount in thousandths; InvalidRequest names its key and the broken rule."""
    try:
        milli = to_milli(amount, decimals=decimals)
    except ValueError as error:
        raise InvalidRequest(f"amount of {shown(key)} {error}, not {shown(amount)}") from None
    if milli < 0:
        raise InvalidRequest(f"amount of {shown(key)} must not be negative, not {shown(amount)}")
    return milli


def check_amounts(name: str, amounts: object) -> None:
    """Check amounts that belong to no limit: InvalidRequest unless `amounts` maps keys to amounts of 0 or more."""
    if not isinstance(amounts, Mapping):
        raise InvalidRequest(f"{name} must map keys to amounts, not {shown(amounts)}")
    for key, amount in amounts.items():
        checked_amount(key, amount, decimals=True)
