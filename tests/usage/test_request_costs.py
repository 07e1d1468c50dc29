"""Costs of random requests while prices change: usage equals a decimal oracle, and budgets are charged at least it."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from random import Random

import pytest
import time_machine

from limits_app import limits
from limits_app.engine import from_micro
from limits_app.models import Entity, Plan, Price

pytestmark = pytest.mark.usefixtures("site")

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOURS = 40
REQUESTS = 12
EXACT = Context(prec=60)
UNITS = ("input_tokens", "output_tokens")
CLIENTS = {"key:a": "free", "key:b": "pro", "key:c": ""}


class RandomRequests:
    """Requests of some clients of a team in each hour, some of which end in the next one; prices change at times."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.costs: dict[str, Decimal] = defaultdict(Decimal)
        self.by_plan: dict[str, Decimal] = defaultdict(Decimal)
        self.requests = 0
        self.prices = dict.fromkeys(UNITS, Decimal(0))
        team = Entity.objects.create(identifier="team:x")
        for name, plan in CLIENTS.items():
            row = Plan.objects.create(name=plan) if plan else None
            Entity.objects.create(identifier=name, plan=row, parent=team, cascade=True)
        limits.set_resource_limits("llm", ["output_tokens=1G/month"])
        limits.set_entity_limits("team:x", ["usd=1M/month"], counted="total")
        of_plan = ["usd=1M/month", "input_tokens=1G/month", "output_tokens=1G/month"]
        limits.set_plan_limits("pro", of_plan, resource="llm")

    def change_price(self, unit: str, hour: datetime) -> None:
        per = self.random.choice((1, 1_000, 1_000_000))
        amount = Decimal(self.random.randint(0, 10**9)).scaleb(-9)
        Price.objects.create(resource="llm", unit=unit, amount=amount, per=per, currency="usd", valid_from=hour)
        self.prices[unit] = EXACT.divide(amount, Decimal(per))

    def send(self, after: timedelta, traveller: time_machine.Traveller, now: datetime) -> None:
        name = self.random.choice([*CLIENTS])
        amounts = {unit: self.random.randint(0, 5_000) for unit in self.random.sample(UNITS, self.random.randint(1, 2))}
        money = Decimal(self.random.randint(0, 10**6)).scaleb(-6) if self.random.random() < 0.2 else None
        used = {unit: self.random.randint(0, amount) for unit, amount in amounts.items()}
        requested: dict[str, int | Decimal] = {**amounts} if money is None else {**amounts, "usd": money}
        spent = EXACT.add(money or Decimal(0), sum(used[unit] * self.prices[unit] for unit in used))
        with limits.acquire("llm", entity=name, requested=requested) as acquisition:
            traveller.move_to(now + after)
            acquisition.update(used if money is None else {**used, "usd": money})
        traveller.move_to(now)
        self.costs[name] = EXACT.add(self.costs[name], spent)
        self.by_plan[CLIENTS[name]] = EXACT.add(self.by_plan[CLIENTS[name]], spent)
        self.requests += 1


@pytest.mark.parametrize("seed", range(3))
def test_costs_of_requests_equal_an_oracle(seed: int) -> None:
    with time_machine.travel(START, tick=False) as traveller:
        requests = RandomRequests(seed)
        for unit in UNITS:
            requests.change_price(unit, START)
        for number in range(HOURS):
            now = START + number * HOUR
            traveller.move_to(now)
            if number and requests.random.random() < 0.3:
                requests.change_price(requests.random.choice(UNITS), now)
            for _ in range(REQUESTS):
                late = requests.random.random() < 0.1
                requests.send(HOUR if late else timedelta(0), traveller, now)
        limits.roll_up()
        since = {"since": START.replace(hour=0)}
        for period in ("hour", "day"):
            spends = limits.spend("llm", period=period, by="entity", **since)
            total = sum(requests.costs.values())
            assert {spend.entity: spend.amount for spend in spends} == {**requests.costs, "team:x": total}
            spends = limits.spend("llm", period=period, by="plan", **since)
            assert {spend.plan: spend.amount for spend in spends} == requests.by_plan
        [total] = limits.spend(**since)
        assert total.amount == sum(requests.costs.values())
        [of_team] = limits.spend("llm", entity="team:x", by="below", **since)
        assert (of_team.below, of_team.amount) == (True, total.amount)
        charged = limits.status("llm", entity="team:x").limits
        used = charged["total:usd"]["used"]
        most = total.amount + requests.requests * 2 * len(UNITS) * Decimal("0.000001")
        assert total.amount <= Decimal(str(from_micro(round(used * 1_000_000)))) <= most
