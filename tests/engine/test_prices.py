"""Prices: exact ratios, and which of several prices applies at a time."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from random import Random

import pytest

from limits_app.engine import PricedFor, PriceList, PricePeriod, StoredPrice, UnitPrice, member_key, unit_with_mark
from limits_app.engine.errors import InvalidLimit

HOUR = 3_600_000_000


@pytest.mark.parametrize(
    ("amount", "per", "micro_per_unit"),
    [
        ("0", 1, "0"),
        ("0.000000000", 1_000_000, "0"),
        ("2", 1, "2000000"),
        ("0.15", 1_000_000, "3/20"),
        ("2.50", 1_000, "2500"),
        ("0.000000001", 1_000_000, "1/1000000000"),
        ("999999.999999999", 1, "999999999999999/1000"),
        ("999999.999999999", 1_000_000, "999999999999999/1000000000"),
        ("1E+2", 1_000, "100000"),
    ],
)
def test_price_of_a_unit_is_an_exact_ratio_in_lowest_terms(amount: str, per: int, micro_per_unit: str) -> None:
    price = UnitPrice.of("tokens", "usd", Decimal(amount), per)
    expected = Fraction(micro_per_unit)
    assert (price.numerator, price.denominator) == (expected.numerator, expected.denominator)


@pytest.mark.parametrize(
    ("amount", "per", "message"),
    [
        ("-0.1", 1, "0 or more"),
        ("-0", 1, "0 or more"),
        ("NaN", 1, "0 or more"),
        ("Infinity", 1, "0 or more"),
        ("0.0000000001", 1, "9 after it"),
        ("1000000", 1, "6 digits before the point"),
        ("1E+300", 1, "6 digits before the point"),
        ("1", 10, "one of 1, 1000, 1000000"),
    ],
)
def test_price_that_is_not_exact_is_an_error(amount: str, per: int, message: str) -> None:
    with pytest.raises(InvalidLimit, match=message):
        UnitPrice.of("tokens", "usd", Decimal(amount), per)


def stored(
    resource: str, micro: int, at_hour: int, *, member: str = "", unit: str = "tokens", currency: str = "usd"
) -> StoredPrice:
    """A price of so many millionths a unit, from an hour on."""
    return StoredPrice(PricedFor(resource, member), UnitPrice(unit, currency, micro, 1), at_hour * HOUR)


def amounts(prices: tuple[UnitPrice, ...]) -> dict[str, int]:
    return {f"{price.unit} {price.currency}": price.numerator for price in prices}


@pytest.mark.parametrize(
    ("prices", "member", "micro"),
    [
        pytest.param([("a/b", 1, 0, ""), ("a/b", 2, 5, "")], "", 2, id="the latest that has begun"),
        pytest.param([("a/b", 2, 5, ""), ("a/b", 1, 0, "")], "", 2, id="in any order"),
        pytest.param([("a/b", 1, 0, ""), ("a/b", 2, 11, "")], "", 1, id="not one of the future"),
        pytest.param([("a/b", 1, 10, "")], "", 1, id="from its hour on"),
        pytest.param([("a/*", 1, 9, ""), ("a/b", 2, 0, "")], "", 2, id="a resource before a later pattern"),
        pytest.param([("a/*", 1, 9, ""), ("a/b/*", 2, 0, "")], "", 2, id="a longer pattern before a later shorter one"),
        pytest.param([("a/b", 1, 9, ""), ("a/b", 2, 0, "x")], "x", 2, id="a member before its resource"),
        pytest.param([("a/b", 1, 0, ""), ("a/b", 2, 0, "x")], "y", 1, id="not another member"),
        pytest.param([("a/b", 1, 0, ""), ("a/b", 2, 0, "x")], "", 1, id="no member"),
    ],
)
def test_most_specific_price_applies(prices: list[tuple[str, int, int, str]], member: str, micro: int) -> None:
    rows = [stored(resource, amount, hour, member=whose) for resource, amount, hour, whose in prices]
    assert amounts(PriceList(rows).at(10 * HOUR, member)) == {"tokens usd": micro}


def test_each_unit_and_currency_has_its_own_price() -> None:
    prices = PriceList(
        [
            stored("a/*", 1, 0),
            stored("a/*", 2, 0, currency="eur"),
            stored("a/b", 3, 0, currency="eur"),
            stored("a/b", 4, 0, unit="images"),
        ]
    )
    assert amounts(prices.at(HOUR)) == {"images usd": 4, "tokens eur": 3, "tokens usd": 1}
    assert prices.units == {"tokens", "images"}


def test_prices_of_requests_are_of_one_unit_whatever_its_key() -> None:
    prices = PriceList([stored("a/*", 1, 0, unit="requests"), stored("a/b", 2, 3, unit="call_count")])
    assert amounts(prices.at(2 * HOUR)) == {"requests usd": 1}
    assert amounts(prices.at(3 * HOUR)) == {"call_count usd": 2}
    periods = [(period.price.unit, period.valid_from_us // HOUR) for period in prices.periods(0)]
    assert periods == [("requests", 0), ("call_count", 3)]
    cheaper = prices.replaced([stored("a/b", 1, 0, unit="calls")])
    assert amounts(cheaper.at(3 * HOUR)) == {"calls usd": 1}


def test_no_price_applies_before_the_first_begins() -> None:
    prices = PriceList([stored("a", 1, 5)])
    assert prices.at(5 * HOUR - 1) == ()
    assert amounts(prices.at(5 * HOUR)) == {"tokens usd": 1}
    assert not PriceList().at(0)


def test_currencies_are_those_of_prices_that_have_begun() -> None:
    prices = PriceList(
        [stored("a", 1, 0), stored("a", 1, 5, currency="eur"), stored("a", 1, 7, member="x", currency="gbp")]
    )
    assert [sorted(prices.currencies(hour * HOUR)) for hour in (4, 5, 7)] == [
        ["usd"],
        ["eur", "usd"],
        ["eur", "gbp", "usd"],
    ]
    assert prices.currencies(-1) == frozenset()


def test_members_with_prices_of_their_own_have_keys_of_their_own() -> None:
    served = [
        ("tokens", "models", "east"), ("tokens", "models", "west"), ("tokens", "others", "east"),
        ("images", "models", "east"), ("tokens", "models", "\udc80"), ("u" * 64, "models", "east"),
    ]  # fmt: skip
    keys = [member_key(*names) for names in served]
    assert len({*keys}) == len(served)
    assert all(key.startswith(unit_with_mark(unit)) for key, (unit, _, _) in zip(keys, served, strict=True))
    assert max(map(len, keys)) == 64
    # Rows of usage have it: another one would lose their costs.
    assert keys[0] == "tokens@b29de54cbc0590bb"


@pytest.mark.parametrize(("at", "change"), [(0, 3), (2, 3), (3, 7), (6, 7), (7, None), (9, None)])
def test_next_change_is_that_of_any_price(at: int, change: int | None) -> None:
    prices = PriceList([stored("a", 1, 0), stored("a", 2, 7), stored("a", 1, 3, member="x")])
    assert prices.changes_at(at * HOUR) == (None if change is None else change * HOUR)


@pytest.mark.parametrize("seed", range(20))
def test_history_agrees_with_the_price_at_each_time(seed: int) -> None:
    drawn = Random(seed)
    prices = PriceList(
        [
            stored(
                drawn.choice(["a/b", "a/*", "a/b/*"]),
                drawn.randint(1, 3),
                drawn.randint(0, 20),
                member=drawn.choice(["", "", "x"]),
                unit=drawn.choice("tu"),
                currency=drawn.choice(["usd", "eur"]),
            )
            for _ in range(30)
        ]
    )
    for member in ("", "x", "y"):
        periods = prices.periods(5 * HOUR, member)
        for hour in range(5, 25):
            time_us = hour * HOUR
            at = [
                period.price
                for period in periods
                if period.valid_from_us <= time_us < (period.valid_until_us or 99 * HOUR)
            ]
            assert tuple(sorted(at, key=lambda price: (price.unit, price.currency))) == prices.at(time_us, member)


def test_history_has_the_price_of_each_hour() -> None:
    prices = PriceList(
        [
            stored("a/*", 1, 0),
            stored("a/*", 2, 4),
            stored("a/b", 9, 6),
            stored("a/*", 3, 8),
            stored("a/b", 9, 9),
            stored("a/b", 7, 12, member="x"),
        ]
    )
    first, second, third = (UnitPrice("tokens", "usd", micro, 1) for micro in (1, 2, 9))
    expected = (
        PricePeriod(first, 2 * HOUR, 4 * HOUR),
        PricePeriod(second, 4 * HOUR, 6 * HOUR),
        PricePeriod(third, 6 * HOUR, None),
    )
    assert prices.periods(2 * HOUR) == expected
    for hour in range(2, 15):
        [price] = prices.at(hour * HOUR)
        period = next(period for period in expected if hour * HOUR < (period.valid_until_us or 99 * HOUR))
        assert price == period.price
    assert [period.price.numerator for period in prices.periods(11 * HOUR, "x")] == [9, 7]
