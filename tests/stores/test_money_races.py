"""Four processes spend one budget at the same time, in units with a price; never more than it has is spent."""

from __future__ import annotations

from decimal import Decimal
from multiprocessing.connection import Connection
from random import Random

import pytest

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import ScopedLimits, UnitPrice, schema_of, scope_of
from limits_app.engine.limits import CountedUnit, QuotaLimit
from tests.stores.races import FINISH_SECONDS, PROCESSES, STORES, Opener
from tests.stores.support import MULTI_THREADED_FORK, running

RACES = 20
BUDGET = 5_000
"""In millionths."""
PRICE = UnitPrice.of("tokens", "usd", Decimal("2.5"), 1_000_000)


def budget(store: Store, race: int) -> LimitSet:
    limits = QuotaLimit.per_session("usd", Decimal(BUDGET) / 1_000_000, 86_400), CountedUnit("tokens", "tokens")  # type: ignore[arg-type]  # money
    schema = schema_of(limits, store.lease_us)
    return LimitSet.composed([ScopedLimits(scope_of("races", f"{race}"), schema, prices=(PRICE,))], store)


def cost(tokens: int) -> int:
    return -(-tokens * 5 // 2)


def spend(pipe: Connection, open_store: Opener, number: int) -> None:
    """Spend until no token is left in the budget, and report a part of some requests; send what was spent."""
    store, random = open_store(), Random(number)
    pipe.send("ready")
    for race in range(RACES):
        pipe.recv()
        limits, spent, highest = budget(store, race), 0, 40
        while highest:
            tokens = random.randint(1, highest)
            acquisition = limits.try_acquire({"tokens": tokens})
            if not acquisition:
                highest = tokens - 1
                continue
            used = random.randint(0, tokens) if random.random() < 0.3 else tokens
            acquisition.update({"tokens": used})
            acquisition.release()
            spent += cost(used)
        pipe.send(spent)


@pytest.mark.filterwarnings(MULTI_THREADED_FORK)
@pytest.mark.parametrize("kind", ["process", "redis"])
def test_a_budget_is_never_exceeded(kind: str) -> None:
    with STORES[kind]() as open_store:
        spenders = [running(spend, open_store, number) for number in range(PROCESSES)]
        started = [spender.__enter__() for spender in spenders]
        try:
            for spender in started:
                spender.hear()
            for race in range(RACES):
                for spender in started:
                    spender.pipe.send("go")
                spent = sum([spender.hear(FINISH_SECONDS) for spender in started])  # type: ignore[misc]
                charged = budget(open_store(), race).get_stats()["usd"]["used"]
                assert spent == round(charged * 1_000_000) <= BUDGET  # type: ignore[operator]
                assert spent > BUDGET - 2 * PROCESSES * cost(40)
        finally:
            for spender in spenders:
                spender.__exit__(None, None, None)
