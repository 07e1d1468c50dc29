"""Costs of requests that members of a pool serve at prices of their own: usage equals what each was charged."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
import time_machine
from pytest_django import Settings

from limits_app import limits
from limits_app.models import Entity, Pool, PoolMember, Price, Resource, UsageSnapshot
from limits_app.usage.pruning import prune

pytestmark = pytest.mark.usefixtures("site")

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNITS = ("tokens", "a" * 64)
MEMBERS = ("", "east", "west", "süd 💶")


class PricedPool:
    """A pool that serves a resource, and the prices in force of the resource and of each member."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.pool = Pool.objects.create(name="regions", load_balancing="random")
        for member in MEMBERS[1:]:
            PoolMember.objects.create(pool=self.pool, name=member)
        Resource.objects.create(name="llm", pool=self.pool)
        team = Entity.objects.create(identifier="team:x")
        for name in ("key:a", "key:b"):
            Entity.objects.create(identifier=name, parent=team, cascade=True)
        limits.set_resource_limits("llm", ["usd=1M/month", "tokens=1G/month"])
        limits.set_resource_limits("image", ["usd=1M/month"])
        limits.set_entity_limits("team:x", ["usd=1M/month"], counted="total")
        self.prices: dict[tuple[str, str], Decimal] = {}

    def change_price(self, unit: str, member: str, hour: datetime, amount: str | None = None) -> None:
        price = Decimal(self.random.randint(1, 10**6)).scaleb(-6) if amount is None else Decimal(amount)
        resource = "regions" if member else "llm"
        values = {"unit": unit, "member": member, "amount": price, "per": 1, "currency": "usd", "valid_from": hour}
        Price.objects.create(resource=resource, **values)
        self.prices[unit, member] = price

    def cost(self, member: object, used: dict[str, int]) -> Decimal:
        prices = {unit: self.prices.get((unit, str(member)), self.prices.get((unit, ""), Decimal(0))) for unit in used}
        return sum([amount * prices[unit] for unit, amount in used.items()], Decimal(0))


def spent(by: str, **where: Any) -> dict[str | None, Decimal]:
    rows = limits.spend(**{"since": START.replace(hour=0), **where}, by=by)
    return {getattr(row, by): row.amount for row in rows}


@pytest.mark.parametrize("seed", range(3))
def test_cost_in_usage_is_the_sum_of_the_serving_members(seed: int, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"USAGE_HOURS_KEPT": 24}
    with time_machine.travel(START, tick=False) as traveller:
        pool, costs, requests = PricedPool(seed), defaultdict[str | None, Decimal](Decimal), 0
        for number in range(30):
            now = START + number * HOUR
            traveller.move_to(now)
            for unit in UNITS:
                if pool.random.random() < 0.3 or not number:
                    pool.change_price(unit, pool.random.choice(MEMBERS) if number else "", now)
            for _ in range(4):
                name = pool.random.choice(("key:a", "key:b"))
                requested = {unit: pool.random.randint(0, 50) for unit in UNITS}
                used = {unit: pool.random.randint(0, 60) for unit in UNITS}
                with limits.acquire("llm", entity=name, requested=requested) as acquisition:
                    acquisition.update(used)
                costs[name] += pool.cost(acquisition.config["member"], used)
                requests += 1
        limits.roll_up()
        costs["team:x"] = sum(costs.values(), Decimal(0))
        assert spent("entity", period="hour") == spent("entity", period="day") == costs
        charged = Decimal(str(limits.status("llm", entity="team:x").limits["total:usd"]["used"]))
        assert costs["team:x"] == charged
        traveller.move_to(START + timedelta(days=9))
        assert prune()["usage-hours"]
        assert spent("entity", period="day") == costs


def test_usage_names_units_and_not_the_members_that_served() -> None:
    with time_machine.travel(START, tick=False):
        pool = PricedPool()
        pool.change_price("tokens", "", START, "0.5")
        for member in MEMBERS[1:]:
            pool.change_price("tokens", member, START, "0.25")
        with limits.acquire("llm", entity="key:a", requested={"tokens": 8}) as acquisition:
            acquisition.update({"tokens": 6})
            assert {*acquisition.acquisitions} == {"tokens", "usd"}
        limits.roll_up()
        assert {row.key for row in UsageSnapshot.objects.all()} > {"tokens", "usd"}
        for key in ("tokens", None):
            rows = limits.usage("llm", entity="key:a", key=key, since=START.replace(hour=0), cost=True)
            assert {row.key: row.cost for row in rows if row.cost} == {"tokens": {"usd": Decimal("1.5")}}
            assert {row.key for row in rows} <= {"tokens", "usd"}
        assert {*limits.status("llm", entity="key:a").limits} == {"tokens", "usd", "total:usd"}


def test_several_resources_of_which_a_pool_serves_one() -> None:
    with time_machine.travel(START, tick=False):
        pool = PricedPool()
        pool.change_price("tokens", "", START, "0.5")
        for member in MEMBERS[1:]:
            pool.change_price("tokens", member, START, "0.125")
        Price.objects.create(resource="image", unit="tokens", amount=3, per=1, currency="usd", valid_from=START)
        requested = {"llm": {"tokens": 10}, "image": {"tokens": 5}}
        with limits.acquire(requested, entity="key:a") as acquisition:
            acquisition.update({"llm:tokens": 8, "image:tokens": 2})
        limits.roll_up()
        assert spent("resource", entity="key:a") == {"llm": 1, "image": 6}
        assert limits.status("llm", entity="team:x").limits["total:usd"]["used"] == 7


def test_reports_of_more_than_requested_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    with time_machine.travel(START, tick=False):
        pool = PricedPool()
        pool.change_price("tokens", "", START, "0.5")
        for member in MEMBERS[1:]:
            pool.change_price("tokens", member, START, "0.125")
        acquisition = limits.acquire("llm", entity="other", requested={"tokens": 1})
        acquisition.update({"tokens": 9})
        acquisition.release()
        assert caplog.text.count("9 used") == 1


def test_several_resources_of_one_pool_have_their_own_prices() -> None:
    with time_machine.travel(START, tick=False):
        pool = PricedPool()
        Resource.objects.filter(name="image").update(pool=pool.pool)
        pool.change_price("tokens", "", START, "0.5")
        Price.objects.create(resource="image", unit="tokens", amount=3, per=1, currency="usd", valid_from=START)
        pool.change_price("pictures", "", START, "0.25")
        for member in MEMBERS[1:]:
            pool.change_price("pictures", member, START, "0.125")
        requested = {"llm": {"tokens": 10, "pictures": 2}, "image": {"tokens": 5, "pictures": 4}}
        with limits.acquire(requested, entity="key:a") as acquisition:
            acquisition.update({"llm:tokens": 8, "llm:pictures": 2, "image:tokens": 2, "image:pictures": 4})
        limits.roll_up()
        assert limits.status("image", entity="key:a").limits["usd"]["used"] == 6.5
        assert limits.status("llm", entity="key:a").limits["usd"]["used"] == 4.25
        assert limits.status("llm", entity="team:x").limits["total:usd"]["used"] == 10.75
        assert spent("resource", entity="key:a") == {"llm": Decimal("4.25"), "image": Decimal("6.5")}
