"""Slices of budgets: units with a price, and money, are charged in advance and counted as they are spent."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from random import Random

import pytest

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import PricedFor, PriceList, ScopedLimits, StoredPrice, UnitPrice, schema_of, scope_of
from limits_app.engine.limits import QuotaLimit
from limits_app.policies.priced_limits import PricedUnits
from limits_app.stores.memory import MemoryStore
from limits_app.stores.resilient import ResilientStore
from limits_app.stores.slices import sliced
from limits_app.testing import FakeClock

PRICES = PriceList(
    [
        StoredPrice(PricedFor("llm"), UnitPrice.of("tokens", "usd", Decimal("2.5"), 1_000_000), 0),
        StoredPrice(PricedFor("pool", "east"), UnitPrice.of("tokens", "usd", Decimal("3.5"), 1_000_000), 0),
    ]
)


def budget(store: Store, millionths: int, *, member: str = "") -> LimitSet:
    """A budget of a client that a process spends in slices of two seconds."""
    limit = QuotaLimit.per_month("usd", Decimal(millionths) / 1_000_000)  # type: ignore[arg-type]  # money
    applied, slice_us = sliced([(limit, 2)])
    priced = PricedUnits.of(PRICES, 1, own=applied, others=(), members=("east",), pool="pool")
    schema = schema_of((*applied, *priced.beside(applied)), store.lease_us, counts_usage=True)
    prices = PRICES.at(1, member)
    scoped = ScopedLimits(scope_of("llm", None), schema, slice_us=slice_us, prices=prices, member=member)
    return LimitSet.composed([scoped], store)


def cost(tokens: int, *, tenths: int = 25) -> int:
    return -(-tokens * tenths // 10)


class Processes:
    """Processes that spend the same budget."""

    def __init__(self, millionths: int, *, member: str = "") -> None:
        self.clock = FakeClock()
        self.shared = MemoryStore(clock=self.clock)
        self.stores = [
            ResilientStore("far", lambda _: self.shared, clock=self.clock, jitter=lambda: 1.0).open() for _ in range(3)
        ]
        self.sets = [budget(store, millionths, member=member) for store in self.stores]

    def charged(self) -> int:
        """What the budget was charged, in millionths, after all slices have ended."""
        self.clock.advance(5)
        return round(self.sets[0].get_stats()["usd"]["used"] * 1_000_000)  # type: ignore[operator]

    def counted(self) -> Counter[str]:
        """The usage by key, in thousandths."""
        amounts = Counter[str]()
        for count in self.shared.collect_counts().counts:
            amounts.update(count.amounts)
        return amounts


@pytest.mark.parametrize("seed", range(3))
def test_slices_charge_spent_amounts(seed: int) -> None:
    random, processes, spent = Random(seed), Processes(50_000_000), Counter[str]()
    for _ in range(2_000):
        tokens, given = random.randint(0, 80), random.choice([0, 0, 0, random.randint(1, 30)])
        requested = {"tokens": tokens} | ({"usd": Decimal(given).scaleb(-6)} if given else {})
        acquisition = random.choice(processes.sets).try_acquire(requested)
        assert acquisition
        used = random.choice([tokens, random.randint(0, tokens)])
        acquisition.update({**requested, "tokens": used})
        acquisition.release()
        spent.update({"usd": cost(used) + given, "tokens": used, "usd+": given})
        processes.clock.advance(random.choice([0, 0, 0, 0.01, 0.5, 3]))
    assert processes.charged() == spent["usd"]
    assert processes.counted() == Counter({key: amount * 1000 for key, amount in spent.items()})


def test_all_of_a_budget_is_spent_in_slices_and_no_more() -> None:
    processes = Processes(50_000)
    admitted = 0
    for _ in range(30):
        admitted += sum([bool(limits.try_acquire({"tokens": 10})) for limits in processes.sets for _ in range(40)])
        processes.clock.advance(0.1)
    processes.clock.advance(5)
    while processes.sets[0].try_acquire({"tokens": 10}):
        admitted += 1
    assert (admitted, processes.charged()) == (2_000, 50_000)


def test_reset_keeps_amounts_of_slices_charged_until_their_return() -> None:
    processes = Processes(50_000_000)
    limits = processes.sets[0]
    for _ in range(200):
        limits.try_acquire({"tokens": 10}).release()
    [scope] = limits.scopes
    out = processes.stores[0].slices.unspent()[scope.key, "usd"]
    charged = round(limits.get_stats()["usd"]["used"] * 1_000_000)  # type: ignore[operator]
    processes.shared.reset([scope.key], None)
    of_slice = round(limits.get_stats()["usd"]["used"] * 1_000_000)  # type: ignore[operator]
    assert 0 < out < of_slice < charged
    assert processes.charged() == of_slice - out


def test_slices_of_a_member_with_a_price_of_its_own() -> None:
    processes = Processes(50_000_000, member="east")
    for _ in range(200):
        processes.sets[0].try_acquire({"tokens": 7}).release()
    assert processes.charged() == 200 * cost(7, tenths=35)
    assert sorted(processes.counted().values()) == [1_400_000, 1_400_000, 200 * cost(7, tenths=35) * 1000]
