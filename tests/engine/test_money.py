"""Limits in money: six decimals, which are whole millionths for stores."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from limits_app import LimitSet, QuotaLimit, RateLimit
from limits_app.engine import (
    Runtime,
    counts_money,
    given_key,
    installed,
    limit_text,
    parse_limit,
    parse_stored,
    to_micro,
    units_of_usage,
)
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.engine.limits import LimitDefinition, ResourceLimit
from limits_app.stores.memory import MemoryStore


def limit_set(limit: LimitDefinition | str) -> LimitSet:
    return LimitSet([limit], shared=True, store=MemoryStore())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("usd=50/month@Europe/Berlin", ""),
        ("eur=2/day", "eur=2/day@UTC"),
        ("usd=49.990001/month:from=15", "usd=49.990001/month@UTC:from=15"),
        ("usd=0.000001/hour", "usd=0.000001/hour@UTC"),
        ("usd=5.500000/h:rate", "usd=5.5/h:rate"),
        ("usd=1/min:sliding_window:rate", ""),
        ("usd=5/5h:session", ""),
        ("usd=4503599627.370496/month", "usd=4503599627.370496/month@UTC"),
        ("usd=1M/h:rate", ""),
    ],
)
def test_text_of_a_limit_in_money(text: str, written: str) -> None:
    noted = parse_limit(text)
    assert limit_text(noted.limit) == (written or text)
    assert parse_limit(limit_text(noted.limit)) == noted


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("usd=50", "a currency cannot be held as permits"),
        ("usd=1/min", "money is limited per hour, day, week or month"),
        ("usd=0.0000001/day", "at most six decimals"),
        ("usd=4503599628/month", "must not be more than 4503599627"),
        ("usd=1000000.000001/h:rate", "at most 1000000"),
        ("usd=0/day", "must be more than 0"),
    ],
)
def test_invalid_limit_in_money(text: str, error: str) -> None:
    with pytest.raises(InvalidLimit, match=error):
        parse_limit(text)


def test_definitions_take_text_decimals_and_floats() -> None:
    assert len({QuotaLimit.per_month("usd", amount) for amount in ("0.1", 0.1, Decimal("0.100"))}) == 1  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit, match="cannot be held"):
        ResourceLimit("eur", 5)


@pytest.mark.parametrize("amount", ["0.25", Decimal("0.250000"), 0.25])
def test_amounts_are_text_decimals_or_floats(amount: Any) -> None:
    limits = limit_set("usd=1/month")
    with limits.acquire({"usd": amount}) as acquisition:
        acquisition.update({"usd": amount})
    assert limits.get_stats()["usd"]["used"] == 0.25


@pytest.mark.parametrize(
    ("amount", "error"),
    [
        ("a lot", "must be a number such as 0.25"),
        ("0.0000001", "must have at most six decimals"),
        (0.1 + 0.2, "must have at most six decimals"),
        (-1, "must not be negative"),
        (True, "must be a number, not a boolean"),
        (None, "must be a number"),
        ("nan", "must be a number such as 0.25"),
        (Decimal("nan"), "must be a finite number"),
        ("2_5", "must be a number such as 0.25"),
        ("\u0662", "must be a number such as 0.25"),
        ("\uff13.5", "must be a number such as 0.25"),
        ("3." + "0" * 500_000, "of at most 64 characters"),
        ("0e-700000", "must be a number such as 0.25"),
        (Decimal("0e-600000"), "must have at most 64 digits"),
        (Decimal("2." + "0" * 500_000), "must have at most 64 digits"),
        (10**10, "must not be more than 4503599627 of a currency"),
    ],
)
def test_invalid_amount_of_money(amount: Any, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        limit_set("usd=1/month:soft").try_acquire({"usd": amount})


@pytest.mark.parametrize("amount", [Decimal("0e700000"), Decimal("0e-700000"), Decimal("4." + "0" * 300_000)])
def test_decimals_of_many_digits_are_refused_for_other_keys_too(amount: Decimal) -> None:
    with pytest.raises(InvalidRequest, match="must have at most 64 digits"):
        limit_set("tokens=5/min").try_acquire({"tokens": amount})


def test_request_for_one_of_each_has_no_money() -> None:
    limits = LimitSet(["usd=1/month tokens=5/month"], shared=True, store=MemoryStore())
    assert limits.ones == {"usd": 0, "tokens": 1}


def test_currencies_are_those_of_the_runtime() -> None:
    with installed(Runtime(currencies=lambda: ("try",))):
        assert limit_set("try=0.000001/day").try_acquire({"try": "0.000001"})
        assert isinstance(parse_limit("usd=5/day").limit, RateLimit)
        with pytest.raises(InvalidLimit, match="capacity must be a whole number"):
            QuotaLimit.per_day("usd", 0.5)  # type: ignore[arg-type]


def check_against_decimals(requests: int, seed: int) -> None:
    """Random requests, reports and extensions are charged as decimals are added."""
    random, limits = Random(seed), limit_set("usd=900000000/month")
    charged = Fraction(0)
    for _ in range(requests):
        amounts = [Decimal(random.randrange(10 ** random.randrange(1, 9))).scaleb(-6) for _ in range(2)]
        acquisition = limits.try_acquire({"usd": random.choice([float, str, Decimal])(amounts[0])})
        if random.random() < 0.2:
            acquisition.extend({"usd": amounts[1]})  # type: ignore[dict-item]
        used = Decimal(random.randrange(10 ** random.randrange(1, 9))).scaleb(-6)
        acquisition.update({"usd": random.choice([float, str, Decimal])(used)})
        acquisition.release()
        charged += Fraction(used)
    assert Fraction(str(limits.get_stats()["usd"]["used"])) == charged


def test_floats_stand_for_their_shortest_decimal_form() -> None:
    random = Random(3)
    for _ in range(2_000):
        micro = random.randrange(10 ** random.randrange(1, 16))
        amount = micro / 1_000_000
        assert to_micro(amount) == micro == to_micro(repr(amount)), amount


def test_charges_equal_sums_of_decimals() -> None:
    check_against_decimals(2_000, 1)


@pytest.mark.release
def test_charges_equal_sums_of_decimals_over_many_requests() -> None:
    check_against_decimals(1_000_000, 2)


@pytest.mark.parametrize(("key", "currency"), [("EUR", "eur"), ("Eur", "eur"), ("uSD", "usd")])
def test_keys_that_differ_from_a_currency_in_case_are_refused(key: str, currency: str) -> None:
    with pytest.raises(InvalidLimit, match=f"limit '{key}' is no currency: write '{currency}'"):
        parse_limit(f"{key}=7/month")
    with pytest.raises(InvalidLimit, match=f"write '{currency}'"):
        QuotaLimit.per_day(key, 7)
    limit, problem = parse_stored(key, "7/month")
    assert (counts_money(limit), f"write '{currency}'" in str(problem)) == (False, True)


def test_amounts_given_under_a_currency_are_money_too() -> None:
    assert units_of_usage(given_key("usd"), 1_500_000_000) == 1.5
    assert given_key("usd") != "usd"
