"""Costs are the counted units times the price of their hour, exactly; a decimal oracle computes them by each count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from random import Random
from typing import Any

import pytest
import time_machine
from pytest_django import Settings

from limits_app import limits
from limits_app.engine import BELOW, Batch, Count, given_key
from limits_app.models import Price, UsageSnapshot
from limits_app.services import usage_sums
from limits_app.services.clients import RecentUsage
from limits_app.usage import rollup
from limits_app.usage.one_time_clients import fold
from limits_app.usage.pruning import prunable, prune

pytestmark = pytest.mark.usefixtures("site")

START = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
FIRST_HOUR = int(START.timestamp()) // 3600
EXACT = Context(prec=60)
RESOURCES = ("llm/large", "llm/small", "images")
UNITS = ("input_tokens", "output_tokens", "call_count")

Key = tuple[str, str, str]


def add_price(resource: str, unit: str, amount: str, hours: int = 0, *, per: int = 1_000_000, **fields: Any) -> Price:
    """Add a price that is valid from so many hours after the start."""
    values = {"currency": "usd", "valid_from": START + hours * HOUR} | fields
    return Price.objects.create(resource=resource, unit=unit, amount=Decimal(amount), per=per, **values)


def count(entity: str, hour: int, plan: str = "", *, resource: str = "llm/large", **amounts: int) -> Count:
    """Amounts in thousandths in an hour after the start."""
    return Count(resource, entity, False, None, FIRST_HOUR + hour, amounts, plan)


def add(*counts: Count) -> None:
    rollup.add(Batch(f"batch {Random().random()}", list(counts), False))


SPAN = {"since": START, "until": START + timedelta(days=40)}


def spent(by: tuple[str, ...] = (), period: str = "day", **where: Any) -> dict[tuple[Any, ...], Decimal]:
    """The amounts by currency and group."""
    spends = limits.spend(by=by, period=period, **{**SPAN, **where})
    fields = ["start" if name == "period" else name for name in by]
    return {(spend.currency, *[getattr(spend, name) for name in fields]): spend.amount for spend in spends}


class Oracle:
    """Random prices and counts, and their costs computed one by one."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.prices: dict[tuple[str, str, str], list[tuple[int, Decimal]]] = defaultdict(list)
        for resource in RESOURCES:
            for unit in UNITS:
                for currency in self.random.sample(("usd", "eur"), self.random.randint(0, 2)):
                    self.add_prices(resource, unit, currency)
        self.counts = [self.random_count() for _ in range(300)]

    def add_prices(self, resource: str, unit: str, currency: str) -> None:
        for hour in {0, *self.random.sample(range(1, 24 * 6), self.random.randint(0, 4))}:
            amount = Decimal(self.random.randint(0, 10**12)).scaleb(-9)
            per = self.random.choice((1, 1000, 1_000_000))
            add_price(resource, unit, str(amount), hour, per=per, currency=currency)
            self.prices[resource, unit, currency].append((hour, EXACT.divide(amount, Decimal(per))))

    def random_count(self) -> Count:
        random, plan = self.random, self.random.choice(("", "pro", "free"))
        key = random.choice((*UNITS, "unpriced", given_key("usd"), "usd"))
        resource, entity = random.choice(RESOURCES), random.choice(("key:1", "team:x"))
        below = BELOW if entity == "team:x" and random.random() < 0.5 else ""
        amounts = {key: random.choice((1, -1, 999, random.randint(1, 10**12)))}
        return count(entity, random.randint(0, 24 * 6), below + plan, resource=resource, **amounts)

    def cost(self, counted: Count) -> Iterator[tuple[str, Decimal]]:
        [(key, milli)] = counted.amounts.items()
        if key == given_key("usd"):
            yield "usd", Decimal(milli).scaleb(-9)
        for (resource, unit, currency), prices in self.prices.items():
            if (resource, unit) == (counted.resource, key):
                price = max(price for price in prices if price[0] <= counted.hour - FIRST_HOUR)[1]
                yield currency, EXACT.multiply(Decimal(milli).scaleb(-3), price)

    def spent(self, by: tuple[str, ...], hours: int, entity: str | None = None) -> dict[tuple[Any, ...], Decimal]:
        sums: dict[tuple[Any, ...], Decimal] = defaultdict(Decimal)
        for counted in self.counts:
            is_below = counted.plan.startswith(BELOW)
            if entity not in (None, counted.entity) or (is_below and not {"entity", "below"} & set(by)):
                continue
            start = START + (counted.hour - FIRST_HOUR) // hours * hours * HOUR
            names = {"resource": counted.resource, "entity": counted.entity, "below": is_below, "period": start}
            names["plan"] = counted.plan.removeprefix(BELOW)
            for currency, amount in self.cost(counted):
                place = (currency, *[names[name] for name in by])
                sums[place] = EXACT.add(sums[place], amount)
        return dict(sums)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("period", "hours"), [("hour", 1), ("day", 24)])
def test_costs_equal_a_decimal_oracle(seed: int, period: str, hours: int) -> None:
    oracle = Oracle(seed)
    for first in range(0, len(oracle.counts), 50):
        add(*oracle.counts[first : first + 50])
    for by in [
        (),
        ("resource",),
        ("entity",),
        ("plan",),
        ("period",),
        ("entity", "resource", "plan", "below", "period"),
    ]:
        assert spent(by, period) == oracle.spent(by, hours), by
        rows: dict[tuple[Any, ...], Decimal] = defaultdict(Decimal)
        for use in limits.usage(by=by, period=period, cost=True, **SPAN):
            for currency, amount in (use.cost or {}).items():
                fields = ["start" if name == "period" else name for name in by]
                place = (currency, *[getattr(use, name) for name in fields])
                rows[place] = EXACT.add(rows[place], amount)
        assert dict(rows) == oracle.spent(by, hours), by


def test_costs_of_many_changes_are_read_in_several_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_sums, "_PARTS_TOGETHER", 2)
    oracle = Oracle(9)
    add(*oracle.counts)
    for by in [("resource",), ("entity", "period")]:
        assert spent(by) == oracle.spent(by, 24)


@pytest.mark.parametrize(("period", "hours"), [("hour", 1), ("day", 24)])
@pytest.mark.parametrize("site_database", ["postgres", "mariadb"], indirect=True)
def test_costs_on_database_servers_equal_a_decimal_oracle(site_database: str, period: str, hours: int) -> None:
    oracle = Oracle(5)
    add(*oracle.counts)
    for by in [(), ("entity",), ("period",), ("entity", "resource", "plan", "below", "period")]:
        assert spent(by, period) == oracle.spent(by, hours), by
        assert spent(by, period, entity="key:1") == oracle.spent(by, hours, "key:1"), by


def test_a_price_may_change_every_day_for_years() -> None:
    days = 1_010
    Price.objects.bulk_create(
        Price(
            resource="llm/large",
            unit="input_tokens",
            amount=Decimal(1 + day % 7),
            per=1,
            currency="usd",
            valid_from=START + (24 * day + 13) * HOUR,
        )
        for day in range(days)
    )
    add(*[count("key:1", 24 * day + hour, input_tokens=1_000) for day in range(days) for hour in (12, 13)])
    amounts = [1 + day % 7 for day in range(days)]
    expected = sum(amounts) + sum(amounts[:-1])  # an hour before the first change costs nothing
    span = {"since": START, "until": START + timedelta(days=days)}
    assert spent(**span) == {("usd",): expected}
    assert sum(spent(("period",), **span).values()) == expected
    assert sum(spent(("period",), entity="key:1", **span).values()) == expected


def test_each_hour_of_a_day_has_its_price() -> None:
    add_price("llm/*", "input_tokens", "2.5")
    add_price("llm/large", "input_tokens", "0.1", 13, per=1000)
    add_price("llm/large", "input_tokens", "7", 48)
    add(*[count("key:1", hour, input_tokens=3_000) for hour in (0, 12, 13, 47, 48)])
    assert spent(("period",)) == {
        ("usd", START): Decimal("0.000315"),
        ("usd", START + 24 * HOUR): Decimal("0.0003"),
        ("usd", START + 48 * HOUR): Decimal("0.000021"),
    }
    assert spent(until=START + 24 * HOUR) == {("usd",): Decimal("0.000315")}
    assert spent(period="hour", since=START + 12 * HOUR, until=START + 14 * HOUR) == {("usd",): Decimal("0.0003075")}


def test_given_money_costs_itself_and_charges_of_budgets_are_not_added() -> None:
    add_price("llm/large", "input_tokens", "1", per=1)
    add(count("key:1", 0, input_tokens=2_000, usd=2_250_000_000), count("key:1", 1, **{given_key("usd"): 250_000_000}))
    assert spent() == {("usd",): Decimal("2.25")}
    costs = {use.key: use.cost for use in limits.usage(cost=True, **SPAN)}
    assert costs == {"input_tokens": {"usd": 2}, given_key("usd"): {"usd": Decimal("0.25")}, "usd": {}}


def test_amounts_in_shared_buckets_and_members_are_not_added() -> None:
    add_price("llm/large", "input_tokens", "1", per=1)
    hour = FIRST_HOUR
    add(
        count("key:1", 0, input_tokens=2_000),
        Count("llm/large", None, True, None, hour, {"input_tokens": 2_000}),
        Count("llm/large", None, True, "eu", hour, {"input_tokens": 2_000}),
    )
    assert spent() == {("usd",): 2}


def test_spend_of_a_client_is_read_by_filters() -> None:
    add_price("llm/large", "input_tokens", "1", per=1)
    add(count("key:1", 0, "pro", input_tokens=2_000), count("key:2", 0, input_tokens=1_000))
    add(count("team:x", 0, BELOW, input_tokens=3_000))
    assert spent() == {("usd",): 3}
    assert spent(entity="team:x") == {("usd",): 3}
    assert spent(entity="key:*") == {("usd",): 3}
    assert spent(plan="pro") == {("usd",): 2}
    assert [spend.entity for spend in limits.spend(by="entity", most=2, **SPAN)] == ["team:x", "key:1"]
    assert limits.spend(by="entity", most=1, **SPAN)[0].as_dict() == {
        "currency": "usd",
        "resource": None,
        "entity": "team:x",
        "plan": None,
        "below": None,
        "start": None,
        "amount": "3",
    }


def test_pruning_keeps_the_hours_that_the_cost_of_a_day_needs(settings: Settings) -> None:
    settings.LIMITS = {"USAGE_HOURS_KEPT": 24, "USAGE_DAYS_KEPT": 20}
    add_price("llm/*", "input_tokens", "1", per=1)
    add_price("llm/*", "input_tokens", "5", 24 * 2, per=1)  # at midnight
    add_price("llm/large", "input_tokens", "3", 24 * 5 + 13, per=1)
    add_price("llm/*", "output_tokens", "3", 24 * 7 + 1, per=1)
    hours = [24 * day + hour for day in range(10) for hour in (0, 12, 13, 23)]
    add(*[count("key:1", hour, input_tokens=1_000, unpriced=1_000) for hour in hours])
    add(*[count("key:1", hour, resource="llm/small", input_tokens=1_000) for hour in hours])
    before = spent(("period", "resource"))
    assert prune(now=START + timedelta(days=10, hours=12))["usage-hours"] == 3 * len(hours) - 4 - 3 * 3
    assert spent(("period", "resource")) == before
    kept = UsageSnapshot.objects.filter(period="hour", start__lt=START + timedelta(days=9))
    assert {(row.resource, row.key, row.start.day, row.start.hour) for row in kept} == {
        ("llm/large", "input_tokens", 6, hour) for hour in (0, 12, 13, 23)
    }
    assert prunable(now=START + timedelta(days=10, hours=12))["usage-hours"] == 0
    prune(now=START + timedelta(days=60))
    assert not UsageSnapshot.objects.exists()


def test_folding_keeps_the_total_cost() -> None:
    add_price("llm/large", "input_tokens", "1", 5, per=1)
    add(*[count(f"key:{number}", hour, input_tokens=1_000) for number in range(9) for hour in (4, 5)])
    fold(now=START + timedelta(days=2), hour_kept=2, day_kept=2)
    assert spent() == {("usd",): 9}


def test_costs_of_many_clients_are_read_in_few_queries(django_assert_max_num_queries: Any) -> None:
    for resource in RESOURCES:
        add_price(resource, "input_tokens", "1")
        add_price(resource, "input_tokens", "2", 24)
    add(*[count(f"key:{number}", hour, input_tokens=1_000) for number in range(99) for hour in (4, 30)])
    with django_assert_max_num_queries(5):
        assert len(limits.usage(by=("entity", "resource"), cost=True, **SPAN)) == 99


def test_pruning_keeps_the_hours_of_a_day_with_an_import(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"USAGE_HOURS_KEPT": 24}
    values = {"unit": "input_tokens", "amount": Decimal(1), "per": 1, "currency": "usd", "valid_from": START + 9 * HOUR}
    Price.objects.bulk_create([Price(resource=f"llm/{number}", **values) for number in range(2000)])
    add(*[count("user:ann", hour, resource="llm/7", input_tokens=1000) for hour in range(48)])
    fold(now=START + timedelta(days=3))
    before = spent(("period",))
    assert prune(now=START + timedelta(days=10))["usage-hours"] == 24
    assert spent(("period",)) == before == {("usd", START): 15, ("usd", START + timedelta(days=1)): 24}


def test_pruning_keeps_the_cost_of_units_whose_price_did_not_change(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"USAGE_HOURS_KEPT": 24}
    add_price("llm/large", "input_tokens", "1", per=1)
    add_price("llm/large", "output_tokens", "10", per=1)
    add_price("llm/large", "input_tokens", "2", 9, per=1)
    add(*[count("user:ann", hour, input_tokens=1000, output_tokens=1000) for hour in (8, 9, 10, 30)])
    before = spent(("period",))
    assert before == {("usd", START): 35, ("usd", START + timedelta(days=1)): 12}
    assert prune(now=START + timedelta(days=10))["usage-hours"]
    assert spent(("period",)) == before


@pytest.mark.parametrize("limit", ["", "5/min", "calls=1k/month"])
def test_requests_cost_one_price_whatever_its_unit_is_named(limit: str) -> None:
    with time_machine.travel(START + HOUR, tick=False):
        add_price("llm/*", "requests", "0.5", per=1)
        add_price("llm/large", "call_count", "0.25", 1, per=1)
        limits.set_resource_limits("llm/large", ["usd=5/month", *limit.split()])
        with limits.acquire("llm/large", entity="key:1"):
            pass
        assert limits.status("llm/large", entity="key:1").limits["usd"]["used"] == 0.25
        limits.roll_up()
        assert spent() == {("usd",): Decimal("0.25")}


def test_recent_costs_of_a_client_are_those_of_its_hours_where_prices_change_within_days() -> None:
    days, random = 7, Random(4)
    add_price("llm/*", "call_count", "3", per=1)
    add_price("images", "call_count", "5", per=1)
    for hours in (30, 31, 48, 77, 24 * days - 2):
        add_price("llm/large", "call_count", f"{random.randint(1, 99)}", hours, per=1)
    for hour in range(24 * days):
        add(*[count("user:1", hour, resource=name, call_count=1_000) for name in ("llm/large", "images")])
    with time_machine.travel(START + timedelta(days=days) - HOUR, tick=False):
        uses = RecentUsage("user:1").in_units({})
    since = min(use.start for use in uses if use.start)
    exact = spent(("resource", "period"), "hour", entity="user:1", since=since)
    by_day: defaultdict[tuple[str | None, Any], Decimal] = defaultdict(Decimal)
    for (_currency, resource, start), amount in exact.items():
        by_day[resource, start.replace(hour=0)] += amount
    assert {(use.resource, use.start): (use.cost or {})["usd"] for use in uses} == by_day
