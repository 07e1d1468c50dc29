"""Limits in money are charged for units with prices, exactly, and never rounded in favour of the client."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from math import ceil
from random import Random

import pytest

from limits_app import LimitSet
from limits_app.acquiring import Acquisition, BoundLimits
from limits_app.engine import (
    GivenAmount,
    Prices,
    Runtime,
    Scope,
    ScopedLimits,
    UnitPrice,
    checked_limits,
    given_key,
    installed,
    of_class,
    schema_of,
)
from limits_app.engine.errors import InvalidRequest, LimitExceeded, UsageNotReported
from limits_app.engine.limits import AnyLimit, CountedUnit
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock

PRICES = (
    UnitPrice.of("input_tokens", "usd", Decimal("2.50"), 1_000_000),
    UnitPrice.of("cached_tokens", "usd", Decimal("1.25"), 1_000_000),
    UnitPrice.of("output_tokens", "usd", Decimal(10), 1_000_000),
    UnitPrice.of("call_count", "usd", Decimal("0.0000015"), 1),
)
TOKENS = PRICES[:3]
COUNTED: tuple[AnyLimit, ...] = tuple(
    [CountedUnit(price.unit, price.unit) for price in PRICES] + [CountedUnit(given_key("usd"), "usd", is_money=True)]
)


def priced_set(
    limits: str, prices: Prices = PRICES, store: MemoryStore | None = None, counted: tuple[AnyLimit, ...] = COUNTED
) -> LimitSet:
    defined: tuple[AnyLimit, ...] = checked_limits(limits)
    limited = {limit.key for limit in defined}
    units = tuple([unit for unit in counted if unit.key not in limited])
    schema = schema_of((*defined, *units), counts_usage=True)
    return LimitSet.composed(
        [ScopedLimits(Scope("client"), schema, prices=prices)], MemoryStore() if store is None else store
    )


class OtherLimits:
    """Where an extension finds other limits, whose prices have changed."""

    def __init__(self, limits: LimitSet) -> None:
        self.limits = limits

    def is_over(self, limits: BoundLimits) -> bool:
        return limits is not self.limits

    def latest(self, stale: BoundLimits) -> BoundLimits:
        return self.limits

    async def alatest(self, stale: BoundLimits) -> BoundLimits:
        return self.limits

    def report(self, extension: Acquisition, *, in_task: bool) -> None:
        assert extension.successful


def used(limits: LimitSet, key: str = "usd") -> object:
    return limits.get_stats()[key]["used"]


@pytest.mark.parametrize(
    ("requested", "charged"),
    [
        ({"input_tokens": 1000}, "0.002502"),
        ({"input_tokens": 1000, "output_tokens": 500}, "0.007502"),
        ({"input_tokens": 1000, "cached_tokens": 4000, "output_tokens": 1}, "0.007512"),
        ({"input_tokens": 1}, "0.000004"),
        ({"input_tokens": 0}, "0.000002"),
        ({"input_tokens": 1, "call_count": 0}, "0.000003"),
        ({"call_count": 3}, "0.000005"),
        ({}, "0.000002"),
        (None, "0.000002"),
        ({"usd": "0.25"}, "0.250002"),
        ({"usd": "0.25", "input_tokens": 400_000}, "1.250002"),
        ({"input_tokens": 0.5, "call_count": 0}, "0.000002"),
    ],
)
def test_cost_of_a_request(requested: dict[str, GivenAmount] | None, charged: str) -> None:
    limits = priced_set("usd=50/month")
    assert limits.try_acquire(requested)
    assert used(limits) == float(charged)


def test_units_with_limits_are_charged_too() -> None:
    limits = priced_set(
        "usd=50/month input_tokens=1000/h:sliding_window output_tokens=1000/h:fixed_window calls=10/month"
    )
    assert limits.try_acquire({"input_tokens": 800, "output_tokens": 100})
    assert [used(limits, key) for key in ("usd", "input_tokens", "output_tokens")] == [0.003002, 800, 100]


@pytest.mark.parametrize(
    ("usage", "charged"),
    [
        ({"input_tokens": 1000, "output_tokens": 4000}, 0.0425),
        ({"input_tokens": 1000, "output_tokens": 700}, 0.0095),
        ({"input_tokens": 0, "output_tokens": 0}, 0),
        ({"input_tokens": 1000, "output_tokens": 5000}, 0.0525),
        ({"output_tokens": 1}, 0.00251),
        ({}, 0.0425),
    ],
)
def test_update_charges_or_refunds_the_difference(usage: Mapping[str, GivenAmount], charged: float) -> None:
    limits = priced_set("usd=50/month", TOKENS)
    acquisition = limits.try_acquire({"input_tokens": 1000, "output_tokens": 4000})
    acquisition.update(usage)
    acquisition.release()
    assert used(limits) == charged


def test_later_reports_replace_earlier_ones() -> None:
    limits = priced_set("usd=50/month", TOKENS)
    with limits.try_acquire({"input_tokens": 1000, "output_tokens": 4000, "usd": 1}) as acquisition:
        acquisition.update({"output_tokens": 10, "usd": "0.5"})
        acquisition.update({"input_tokens": 1000, "output_tokens": 4000})
        assert acquisition.acquisitions["usd"].requested == 1.0425
        assert acquisition.acquisitions["usd"].used == 0.5425
    assert used(limits) == 0.5425


def test_units_without_a_limit_must_be_reported() -> None:
    limits = priced_set("usd=50/month", TOKENS)
    with pytest.raises(RuntimeError, match="input_tokens") as raised, limits.acquire({"input_tokens": 10}):
        pass
    assert "usd" not in str(raised.value)
    with limits.acquire({"input_tokens": 10}) as acquisition:
        acquisition.update({"input_tokens": 10})


def test_several_calls_must_be_reported_beside_a_budget_too() -> None:
    limits = priced_set("calls=9/min usd=50/month")
    with limits.acquire() as acquisition:
        pass
    with pytest.raises(UsageNotReported, match="call_count"), limits.acquire({"call_count": 3}):
        pass
    with limits.acquire({"call_count": 3}) as acquisition:
        acquisition.update({"call_count": 2})


def test_requests_of_a_budget_wait_in_the_order_of_their_priorities() -> None:
    for limits in (priced_set("usd=50/month"), priced_set("usd=50/month calls=9/min", TOKENS)):
        ranks = [limits.prepare(of_class({"input_tokens": 1}, name)).shape.rank for name in ("high", "normal", "low")]
        assert ranks == [0, 1, 2]


def test_a_failed_block_is_refunded_without_the_calls() -> None:
    limits = priced_set("usd=50/month")
    with pytest.raises(ZeroDivisionError), limits.acquire({"input_tokens": 1000, "usd": 3}):
        raise ZeroDivisionError
    assert used(limits) == 0.000002
    limits.acquire({"input_tokens": 1000}).cancel()
    assert used(limits) == 0.000004


def test_a_budget_that_is_used_up_rejects() -> None:
    limits = priced_set("usd=1/month", TOKENS)
    assert limits.try_acquire({"output_tokens": 99_999})
    rejected = limits.try_acquire({"output_tokens": 2})
    assert (rejected.successful, [status.key for status in rejected.outcome.violations]) == (False, ["usd"])
    assert rejected.outcome.violations[0].requested == 0.00002
    assert [status.key for status in rejected.outcome.passed] == []
    assert limits.try_acquire({"output_tokens": 1})
    with pytest.raises(ValueError, match="can never admit"):
        limits.try_acquire({"output_tokens": 100_001})


def test_extensions_are_charged_and_refunded_at_their_own_prices() -> None:
    store = MemoryStore()
    before = priced_set("usd=50/month", (UnitPrice.of("output_tokens", "usd", Decimal(1), 1000),), store)
    after = priced_set("usd=50/month", (UnitPrice.of("output_tokens", "usd", Decimal(2), 1000),), store)
    before.changes_at = 0
    acquisition = before.try_acquire({"output_tokens": 100})
    acquisition.source = OtherLimits(after)
    assert used(before) == 0.1
    acquisition.extend({"output_tokens": 100})
    assert used(before) == 0.3
    acquisition.update({"output_tokens": 150})
    assert (acquisition.acquisitions["usd"].requested, acquisition.acquisitions["usd"].used) == (0.3, 0.2)
    acquisition.release()
    assert used(before) == 0.2


HOURS = UnitPrice.of("gpus", "usd", Decimal(3), 1), UnitPrice.of("disks", "usd", Decimal("0.5"), 1)


@pytest.mark.parametrize(
    ("requested", "charged"),
    [({"gpus": 2, "disks": 4}, 8), ({"gpus": 2, "disks": 1, "input_tokens": 400_000}, 7.5), ({"gpus": 1}, 3.5)],
)
def test_permits_with_prices_are_charged_as_requested_and_not_as_reported(
    requested: dict[str, GivenAmount], charged: float
) -> None:
    limits = priced_set("gpus=9 disks=9 usd=50/month", (*HOURS, *TOKENS))
    with limits.acquire(requested) as acquisition:
        assert used(limits) == charged
        acquisition.update({key: 0 for key in requested if key.endswith("tokens")})
    assert used(limits) == charged - (1 if "input_tokens" in requested else 0)


@pytest.mark.parametrize("rate", ["input_tokens=10/min:soft", "input_tokens=10M/min", "input_tokens=10/min:soft x=1/s"])
def test_units_are_charged_whether_their_own_limit_rejects_or_not(rate: str) -> None:
    limits = priced_set(f"{rate} usd=50/month", TOKENS)
    assert limits.try_acquire({"input_tokens": 400_000, **({"x": 1} if "x=" in rate else {})})
    assert used(limits) == 1


@pytest.mark.parametrize(
    ("first", "second", "reported", "charged"),
    [
        pytest.param("0.25", "0.25", "0.40", 0.15, id="the first charge is used up first"),
        pytest.param("0.25", "0.25", "0.60", 0.35, id="what exceeds the sum is of the last one"),
        pytest.param("0.25", "0.25", "0.20", 0, id="the last one is refunded first"),
        pytest.param(None, "0.25", "0.25", 0.25, id="a charge without money has no share"),
    ],
)
def test_reported_money_is_of_the_earlier_charge_up_to_its_own_amount(
    first: str | None, second: str, reported: str, charged: float
) -> None:
    clock = FakeClock()
    limits = priced_set("usd=50/day", store=MemoryStore(clock=clock))
    acquisition = limits.try_acquire({"input_tokens": 400_000, **({"usd": first} if first else {})})
    clock.advance(86_400)  # to the next day, which has the use of the second charge alone
    acquisition.extend({"input_tokens": 800_000, "usd": second})
    acquisition.update({"usd": reported})
    acquisition.release()
    assert used(limits) == 2 + charged


@pytest.mark.parametrize(("reported", "charged"), [("0.10", 0.1), ("0.25", 0.25), ("0.60", 0.6)])
def test_reported_money_stays_with_the_last_charge_that_named_some(reported: str, charged: float) -> None:
    limits = priced_set("usd=50/month", TOKENS)
    acquisition = limits.try_acquire({"input_tokens": 400_000, "usd": "0.25"})
    acquisition.extend({"output_tokens": 100_000})
    acquisition.update({"usd": reported})
    acquisition.release()
    assert used(limits) == 2 + charged


def test_an_extension_beyond_the_budget_is_rejected() -> None:
    limits = priced_set("usd=1/month", TOKENS)
    with limits.acquire({"output_tokens": 90_000}) as acquisition:
        with pytest.raises(LimitExceeded):
            acquisition.extend({"output_tokens": 20_000})
        acquisition.extend({"output_tokens": 10_000})
        acquisition.update({"output_tokens": 100_001})
    assert used(limits) == 1.00001


def test_rounding_is_once_for_each_part_and_up() -> None:
    limits = priced_set("usd=1/month", (UnitPrice.of("output_tokens", "usd", Decimal("0.01"), 1_000_000),))
    acquisition = limits.try_acquire({"output_tokens": 1})
    acquisition.extend({"output_tokens": 1})
    assert used(limits) == 0.000002
    for _ in range(98):
        acquisition.extend({"output_tokens": 1})
    assert used(limits) == 0.0001


def test_other_currencies_and_units_without_a_price_are_not_charged() -> None:
    prices = (*TOKENS, UnitPrice.of("input_tokens", "eur", Decimal(1), 1))
    limits = priced_set("usd=50/month tokens=5/min", prices)
    assert limits.try_acquire({"tokens": 5, "input_tokens": 400})
    assert used(limits) == 0.001


@pytest.mark.parametrize("requested", [None, {}])
def test_nothing_is_requested_of_a_budget(requested: Mapping[str, GivenAmount] | None) -> None:
    with pytest.raises(InvalidRequest, match="nothing is requested of usd"):
        priced_set("usd=50/month", TOKENS).try_acquire(requested)


def test_a_resource_without_a_price_is_an_error_or_free() -> None:
    limits = priced_set("usd=50/month calls=9/min tokens=100/min", (UnitPrice.of("tokens", "eur", Decimal(1), 1),))
    with pytest.raises(InvalidRequest, match=r"has no price in usd.*request an amount of 'usd'.*UNPRICED"):
        limits.try_acquire({"tokens": 5})
    assert limits.try_acquire({"tokens": 5, "usd": 0})
    with installed(Runtime(unpriced_is_free=lambda: True)):
        assert limits.try_acquire({"tokens": 5})
    assert used(limits) == 0


def test_limits_of_code_have_no_prices() -> None:
    limits = LimitSet(["usd=50/month", "calls=9/min"])
    assert limits.try_acquire({"call_count": 1})


def test_the_charge_is_the_decimal_cost_rounded_up() -> None:
    random = Random(50)
    for _ in range(200):
        check_random_requests(random, 300)


def check_random_requests(random: Random, count: int) -> None:
    """Compare what limits with random prices charge with the cost as a decimal."""
    units = [f"unit_{number}" for number in range(random.randint(1, 4))]
    per = {unit: random.choice([1, 1000, 1_000_000]) for unit in units}
    amounts = {unit: Decimal(random.randrange(10 ** random.randint(1, 9))) / 10**9 * per[unit] for unit in units}
    prices = tuple([UnitPrice.of(unit, "usd", _rounded(amounts[unit]), per[unit]) for unit in units])
    rates = [f" {unit}=1G/{random.choice(['min', 'h:gcra', 'min:sliding_window'])}" for unit in units[1:]]
    counted = (CountedUnit(units[0], units[0]), CountedUnit(given_key("usd"), "usd", is_money=True))
    limits = priced_set(f"usd=4G/month{''.join(rates)}", prices, counted=counted)
    for _ in range(count):
        requested = {unit: random.randrange(10 ** random.randint(1, 7)) for unit in units}
        given = random.randrange(10**6) if random.random() < 0.3 else 0
        asked: dict[str, GivenAmount] = {**requested}
        if given:
            asked["usd"] = Decimal(given).scaleb(-6)
        claim = limits.prepare(asked)
        used_units = {unit: random.randrange(2 * amount + 1) for unit, amount in requested.items()}
        assert _charged(claim) == given + _cost(prices, requested)
        claim.admitted = True
        _report(claim, used_units)
        settled = claim.shape.changes(claim.used, claim.amounts)
        place = next(limit.position for limit in claim.shape.limits if limit.priced)
        assert settled[place] + claim.amounts[place] == given + _cost(prices, used_units)


def _report(claim: Acquisition, usage: Mapping[str, int]) -> None:
    used_places: dict[int, int] = {}
    for limit in claim.shape.limits:
        if limit.key in usage:
            used_places[limit.position] = usage[limit.key] * limit.rule.parts_per_unit
    claim.used = used_places


def _charged(claim: Acquisition) -> int:
    return next(claim.amounts[limit.position] for limit in claim.shape.limits if limit.priced)


def _cost(prices: Prices, amounts: Mapping[str, int]) -> int:
    cost = sum(
        [Decimal(amounts[price.unit] * price.numerator) / Decimal(price.denominator) for price in prices], Decimal(0)
    )
    return ceil(cost)


def _rounded(amount: Decimal) -> Decimal:
    return min(amount.quantize(Decimal("0.000000001"), rounding=ROUND_CEILING), Decimal(999_999))
