"""Prices: what a unit of a resource costs, as an exact ratio, and which price applies at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from itertools import groupby
from math import gcd
from typing import Final, NamedTuple, Self

from limits_app.engine.amounts import MICRO, shown
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limit_kinds import CALL_KEYS
from limits_app.engine.limits import CallLimit

PRICE_DIGITS: Final = 15
"""The most digits of a price: what databases and JSON keep of a decimal exactly."""
PRICE_DECIMALS: Final = 9
"""The most decimals of a price."""
PRICED_UNITS: Final = (1, 1000, 1_000_000)
"""For how many units a price may be."""
KEYS_OF_REQUESTS: Final = frozenset({"requests", *CALL_KEYS})
"""The units of prices for requests."""
ANY_MEMBER: Final = ""
"""The member in a price that is not for a single member of a pool."""
MEMBER_MARK: Final = "@"
"""A mark in the key of amounts that a member of a pool has served; no key that users write has it."""
_DIGEST_BYTES: Final = 8
_LONGEST_UNIT: Final = 64 - 1 - 2 * _DIGEST_BYTES


def unit_with_mark(unit: str) -> str:
    """Return what the keys of amounts of a unit that members of pools have served begin with."""
    return unit[:_LONGEST_UNIT] + MEMBER_MARK


def member_key(unit: str, pool: str, member: str) -> str:
    """Return the key under which usage has the amount of a unit that a member with a price of its own has served."""
    # The names are too long for a key; that of a member may have any character.
    digest = blake2b(f"{unit}\0{pool}\0{member}".encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    return unit_with_mark(unit) + digest.hexdigest()


@dataclass(frozen=True, slots=True)
class UnitPrice:
    """The price of one unit: millionths of a currency as an exact ratio in lowest terms.

    `unit` is the key that is counted, and `currency` one of `LIMITS["CURRENCIES"]`.
    """

    unit: str
    currency: str
    numerator: int
    denominator: int

    @classmethod
    def of(cls, unit: str, currency: str, amount: Decimal, per: int) -> Self:
        """The price of one unit, where `per` units cost an amount of the currency; InvalidLimit for another amount."""
        check_price(amount, per)
        numerator, denominator = amount.as_integer_ratio()
        numerator, denominator = numerator * MICRO, denominator * per
        divisor = gcd(numerator, denominator)
        return cls(unit, currency, numerator // divisor, denominator // divisor)


def check_price(amount: Decimal, per: int) -> None:
    """Raise InvalidLimit for an amount that is negative or has too many digits, and for another number of units."""
    if per not in PRICED_UNITS:
        raise InvalidLimit(f"per must be one of {', '.join(map(str, PRICED_UNITS))}, not {shown(per)}")
    if not amount.is_finite() or amount.is_signed():
        raise InvalidLimit(f"a price must be 0 or more, not {shown(str(amount))}")
    if _decimals(amount) > PRICE_DECIMALS or amount.adjusted() >= PRICE_DIGITS - PRICE_DECIMALS:
        raise InvalidLimit(
            f"a price must have at most {PRICE_DIGITS - PRICE_DECIMALS} digits before the point and {PRICE_DECIMALS} "
            f"after it, not {shown(str(amount))}: choose another number of units"
        )


def _decimals(amount: Decimal) -> int:
    """How many decimals a finite amount has, without zeros at its end."""
    _, digits, exponent = amount.as_tuple()
    trailing = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return max(-int(exponent) - trailing, 0) if amount else 0


class PricedFor(NamedTuple):
    """What a price is for: a resource, all resources that match a pattern, or the member of a pool.

    `resource` is the name of the pool for a member, and ends in “*” for a pattern.
    """

    resource: str
    member: str = ANY_MEMBER

    @property
    def precedence(self) -> tuple[bool, bool, int]:
        """A value that is higher for the more specific one of two that apply to the same use.

        A member comes before the resource that its pool serves, a resource before patterns, and a longer pattern before
        a shorter one.
        """
        return self.member != ANY_MEMBER, not self.resource.endswith("*"), len(self.resource)


class StoredPrice(NamedTuple):
    """A price, what it is for, and the time from which it applies, in microseconds since 1970."""

    target: PricedFor
    price: UnitPrice
    valid_from_us: int


class PricePeriod(NamedTuple):
    """A price, and when it applies: from a time, until before another (None: without end), in microseconds."""

    price: UnitPrice
    valid_from_us: int
    valid_until_us: int | None


class PriceList:
    """All prices that may apply to a resource, also those of the past and the future, and those of members."""

    __slots__ = ("_prices",)

    def __init__(self, prices: Iterable[StoredPrice] = ()) -> None:
        self._prices = tuple(sorted(prices, key=lambda price: price.valid_from_us))

    def __bool__(self) -> bool:
        return bool(self._prices)

    @property
    def units(self) -> frozenset[str]:
        """The units that have a price at some time."""
        return frozenset([stored.price.unit for stored in self._prices])

    def currencies(self, at_us: int) -> frozenset[str]:
        """The currencies of the prices that have begun at a time, of the resource and of members."""
        return frozenset([stored.price.currency for stored in self._prices if stored.valid_from_us <= at_us])

    def at(self, at_us: int, member: str = ANY_MEMBER) -> tuple[UnitPrice, ...]:
        """The prices that apply at a time, one for each unit and currency, sorted by these.

        Of several, the most specific one applies, and of these the latest one that has begun. `member` is the member
        of the pool that serves the resource.
        """
        chosen: dict[tuple[str, str], StoredPrice] = {}
        for stored in self._of_member(member):
            key = _unit_and_currency(stored.price)
            before = chosen.get(key)
            # They are sorted by their time.
            if stored.valid_from_us <= at_us and (
                before is None or stored.target.precedence >= before.target.precedence
            ):
                chosen[key] = stored
        return tuple([chosen[key].price for key in sorted(chosen)])

    def replaced(self, proposed: Iterable[StoredPrice]) -> PriceList:
        """The prices with proposed ones, each in place of all prices of its unit that are for the same."""
        added = tuple(proposed)
        replaced = {(price.target, _unit_and_currency(price.price)) for price in added}
        kept = [price for price in self._prices if (price.target, _unit_and_currency(price.price)) not in replaced]
        return PriceList([*kept, *added])

    def changes_at(self, at_us: int) -> int | None:
        """The next time after another at which a price of the resource, or of a member, begins; None for never."""
        return next((stored.valid_from_us for stored in self._prices if stored.valid_from_us > at_us), None)

    def periods(self, since_us: int, member: str = ANY_MEMBER) -> tuple[PricePeriod, ...]:
        """The prices that apply from a time on, with the time of each, sorted by unit, currency and time."""
        by_key: dict[tuple[str, str], list[StoredPrice]] = {}
        for stored in self._of_member(member):
            by_key.setdefault(_unit_and_currency(stored.price), []).append(stored)
        return tuple([period for key in sorted(by_key) for period in _periods(by_key[key], since_us)])

    def _of_member(self, member: str) -> list[StoredPrice]:
        members: Collection[str] = (ANY_MEMBER, member)
        return [stored for stored in self._prices if stored.target.member in members]


def _unit_and_currency(price: UnitPrice) -> tuple[str, str]:
    """What prices of the same have in common; all keys of requests are one unit."""
    return CallLimit.key if price.unit in KEYS_OF_REQUESTS else price.unit, price.currency


def _periods(prices: Iterable[StoredPrice], since_us: int) -> list[PricePeriod]:
    """The periods of a unit in a currency, of prices that are sorted by their time."""
    periods: list[PricePeriod] = []
    chosen: StoredPrice | None = None
    for time_us, begun in groupby(prices, key=lambda stored: max(stored.valid_from_us, since_us)):
        for stored in begun:
            if chosen is None or stored.target.precedence >= chosen.target.precedence:
                chosen = stored
        if chosen is None or (periods and periods[-1].price == chosen.price):
            continue
        if periods:
            periods[-1] = periods[-1]._replace(valid_until_us=time_us)
        periods.append(PricePeriod(chosen.price, time_us, None))
    return periods
