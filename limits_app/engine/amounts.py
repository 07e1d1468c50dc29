"""Amounts: whole numbers, or numbers with at most three decimals, kept exactly as thousandths.

Amounts of money have at most six decimals. Stores count them in millionths, as whole numbers.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from functools import partial
from types import MappingProxyType
from typing import Final

from limits_app.engine.errors import InvalidRequest
from limits_app.engine.runtime import present

Amount = int | float
GivenAmount = Amount | Decimal | str
"""What may be requested or reported: text and decimals too, which money has; results are an `Amount`."""

Requested = Mapping[str, GivenAmount] | None
"""The requested amounts by key; None requests the default amounts."""


NOTHING: Final[Mapping[str, GivenAmount]] = MappingProxyType({})
"""The amounts of a request that names none, and takes nothing from rates; callers who pass `{}` have forgotten them."""


class OfClass(dict[str, GivenAmount]):
    """The amounts of a request that names its class, `priority`; `is_default` where it names no amounts."""

    priority: str | None = None
    is_default = False


class PermitsOnly(OfClass):
    """The amounts of a request of which only the permits are taken, and no amounts of other limits."""


def class_named(requested: Requested) -> str | None:
    """Return the class that a request names; None for that of its rule, plan or resource."""
    return requested.priority if isinstance(requested, OfClass) else None


def keys_of_nothing(requested: Mapping[str, GivenAmount]) -> tuple[str, ...] | None:
    """Return the keys of a request without amounts: None where it requests the default amounts."""
    return None if isinstance(requested, OfClass) and requested.is_default else ()


MILLI: Final = 1000
MICRO: Final = 1_000_000
MAX_MICRO: Final = 2**52
"""The largest amount of money, in millionths: what stores can record as use."""
MAX_AMOUNT: Final = 10**12
MULTIPLES: Final[Mapping[str, int]] = {"G": 10**9, "M": 10**6, "k": 10**3, "": 1}
"""Suffixes of numbers, the largest first."""
_DECIMALS: Final[Mapping[int, str]] = {MILLI: "three", MICRO: "six"}
_MOST_DIGITS: Final = 64
_MONEY: Final = re.compile(r"[+-]?[0-9]{1,16}(?:\.[0-9]{1,42})?(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
GIVEN_MARK: Final = "+"
"""What follows a currency in the key of amounts that were given under it; no key that users write has it."""
EXACT: Final = Context(prec=100)
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
        return _of_decimal(exact, MILLI)
    return _of_integer(value) * MILLI


def _of_integer(value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # anything integer-like, or TypeError
    except TypeError:
        raise ValueError("must be a number") from None


def _of_decimal(value: Decimal, scale: int) -> int:
    """Return a decimal in thousandths or millionths, exactly."""
    if not value.is_finite():
        raise ValueError("must be a finite number")
    if value and value.adjusted() > 15:
        raise ValueError("must not be more than 10^12")
    # A ratio of more digits, or of zeros, takes time that grows with their square.
    _, digits, exponent = value.as_tuple()
    is_tiny = value and value.adjusted() < -6
    if not is_tiny and (len(digits) > _MOST_DIGITS or abs(int(exponent)) > _MOST_DIGITS):
        raise ValueError(f"must have at most {_MOST_DIGITS} digits")
    # As a ratio, since multiplying decimals obeys the precision that the surrounding program has set.
    numerator, denominator = value.as_integer_ratio() if not is_tiny else (1, 0)
    parts, rest = divmod(numerator * scale, denominator) if denominator else (0, 1)
    if rest:
        raise ValueError(f"must have at most {_DECIMALS[scale]} decimals")
    return parts


def is_currency(key: str) -> bool:
    """Return whether the key of a limit is a currency, so that its amounts are money.

    The key may be that of a request about several resources, or of a total, with a prefix that ends with ":", and that
    of amounts given under the currency.
    """
    return key.rpartition(":")[2].removesuffix(GIVEN_MARK) in present().currencies()


def given_key(currency: str) -> str:
    """Return the key under which usage has what requests gave under a currency itself, apart from computed charges."""
    return currency + GIVEN_MARK


def currency_like(key: str) -> str | None:
    """Return the currency from which a key differs in case only; None for others, and for currencies."""
    currencies = present().currencies()
    return None if key in currencies else next((name for name in currencies if name.lower() == key.lower()), None)


def to_micro(value: object) -> int:
    """Return an amount of money in millionths; a float stands for its shortest decimal form, and text for a decimal.

    Raises ValueError with the rule that was broken.
    """
    if type(value) is float and abs(value) < MAX_MICRO // MICRO:
        micro = round(value * MICRO)
        if micro / MICRO == value:  # the only float of this decimal, without the way over text
            return micro
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")  # noqa: TRY004 - one error type for bad input
    if isinstance(value, str) and not _MONEY.fullmatch(value):
        raise ValueError(f"must be a number such as 0.25, of at most {_MOST_DIGITS} characters")
    if isinstance(value, float | Decimal | str):
        exact = Decimal(float.__repr__(value) if isinstance(value, float) else value)
        micro = _of_decimal(exact, MICRO)
    else:
        micro = _of_integer(value) * MICRO
    if abs(micro) > MAX_MICRO:
        raise ValueError(f"must not be more than {MAX_MICRO // MICRO} of a currency")
    return micro


def micro_of(amount: Amount) -> int:
    """Return an amount of a definition in millionths, whether it is money or not."""
    return _of_decimal(Decimal(float.__repr__(amount) if isinstance(amount, float) else amount), MICRO)


def from_micro(micro: int) -> Amount:
    """Return millionths as a whole number where they are one, else as a float, whose shortest form is exact."""
    whole, rest = divmod(micro, MICRO)
    return whole if rest == 0 else _quotient(micro, MICRO)


def units_of_usage(key: str, milli: int) -> Amount:
    """Return usage in units, given thousandths of what stores count: units, or millionths of a currency."""
    return from_micro(milli // MILLI) if is_currency(key) else from_milli(milli)


def usage_of_units(key: str, amount: object) -> int:
    """Return an amount as usage has it: the opposite of `units_of_usage`; ValueError for an invalid amount."""
    return to_micro(amount) * MILLI if is_currency(key) else to_milli(amount, decimals=True)


def from_milli(milli: int) -> Amount:
    """Return thousandths as a whole number where they are one, else as a float."""
    whole, rest = divmod(milli, MILLI)
    return whole if rest == 0 else _quotient(milli, MILLI)


def _quotient(parts: int, divisor: int) -> float:
    """Return the float that is nearest to a quotient.

    `/` would not be exact in a compiled module, where it divides the nearest floats of both.
    """
    quotient: float = operator.truediv(parts, divisor)
    return quotient


def exact_product(digits: str, factor: int | Decimal) -> Amount:
    """Return a number in text, times a factor; ValueError as for `to_milli`."""
    return from_milli(to_milli(EXACT.multiply(Decimal(digits), factor), decimals=True))


def exact_amount(digits: str, factor: int) -> Amount:
    """Return a number in text with at most six decimals, times a factor; ValueError names the error."""
    micro = _of_decimal(EXACT.multiply(Decimal(digits), factor), MICRO)
    if micro > MAX_AMOUNT * MICRO:
        raise ValueError("must not be more than 10^12")
    return from_micro(micro)


def shown(value: object) -> str:
    """Return the representation of a value for an error message, shortened to 80 characters."""
    try:
        text = repr(value)
    except ValueError:
        return f"{type(value).__name__} too long to write"
    return text if len(text) <= 80 else f"{text[:77]}..."


def checked_amount(key: object, amount: object, *, decimals: bool) -> int:
    """Return a requested or reported amount in thousandths; InvalidRequest names its key and the broken rule."""
    return _checked(key, amount, partial(to_milli, decimals=decimals))


def checked_money(key: object, amount: object) -> int:
    """`checked_amount` of a currency, in millionths."""
    return _checked(key, amount, to_micro)


def _checked(key: object, amount: object, convert: Callable[[object], int]) -> int:
    try:
        parts = convert(amount)
    except ValueError as error:
        raise InvalidRequest(f"amount of {shown(key)} {error}, not {shown(amount)}") from None
    if parts < 0:
        raise InvalidRequest(f"amount of {shown(key)} must not be negative, not {shown(amount)}")
    return parts


def check_amounts(name: str, amounts: object) -> None:
    """Check amounts that belong to no limit: InvalidRequest unless `amounts` maps keys to amounts of 0 or more."""
    if not isinstance(amounts, Mapping):
        raise InvalidRequest(f"{name} must map keys to amounts, not {shown(amounts)}")
    for key, amount in amounts.items():
        if isinstance(key, str) and is_currency(key):
            checked_money(key, amount)
        else:
            checked_amount(key, amount, decimals=True)
