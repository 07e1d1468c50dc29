"""Money: limits that are charged for units with prices, and units that are counted without a limit."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import DAY, HOUR, Prices, ScopedLimits, UnitPrice, schema_of, scope_of, total_scope
from limits_app.engine.limits import AnyLimit, CallLimit, CountedUnit, QuotaLimit, RateLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import Contract, available, limits_in, limits_of, used

_PRICES: Final = (
    UnitPrice.of("cached", "usd", Decimal("0.000001"), 1000),
    UnitPrice.of("tokens", "usd", Decimal("2.5"), 1_000_000),
)
_COUNTED: Final = (CountedUnit("cached", "cached"), CountedUnit("tokens", "tokens"))


def _budget(
    store: Store, *limits: AnyLimit, total: AnyLimit | None = None, prices: Prices = _PRICES, counts: bool = False
) -> LimitSet:
    schema = schema_of(limits, store.lease_us, counts)
    scoped = [ScopedLimits(scope_of("conformance", "someone"), schema, prices=prices)]
    if total is not None:
        scope = total_scope("someone", of_system=False)
        scoped.append(ScopedLimits(scope, schema_of((total,), store.lease_us), prices=prices))
    return limits_in(store, *scoped)


class Money(Contract):
    """A limit in money is one more whole number for a store."""

    def test_units_are_charged_in_money_with_their_own_limits(self, store: Store) -> None:
        limits = _budget(
            store,
            RateLimit("tokens", 1000, DAY),
            CountedUnit("cached", "cached"),
            QuotaLimit.per_month("usd", 1),
            total=QuotaLimit.per_month("usd", 2),
        )
        with limits.try_acquire({"tokens": 600, "cached": 1, "usd": "0.5"}) as acquired:
            acquired.update({"tokens": 200, "cached": 0, "usd": "0.25"})
        stats = limits.get_stats()
        assert [stats[key]["used"] for key in ("usd", "total:usd")] == [0.2505, 0.2505]
        assert available(limits, "tokens") == 800
        assert not limits.try_acquire({"tokens": 801})
        assert not limits.try_acquire({"tokens": 800, "usd": "0.747501"})
        assert limits.try_acquire({"tokens": 800, "usd": "0.7475"})
        assert used(limits, "usd") == 1

    def test_the_part_of_a_millionth_is_charged_as_a_whole_one(self, store: Store) -> None:
        limits = _budget(store, *_COUNTED, QuotaLimit.per_day("usd", 0.000003))
        assert [bool(limits.try_acquire({"cached": 1})) for _ in range(4)] == [True, True, True, False]

    def test_a_rate_in_money_refills(self, store: Store, clock: FakeClock) -> None:
        limits = _budget(store, *_COUNTED, RateLimit("usd", 0.0025, HOUR))
        assert limits.try_acquire({"tokens": 1000})
        assert not limits.try_acquire({"tokens": 1})
        clock.advance(HOUR / 2)
        assert limits.try_acquire({"tokens": 500})

    def test_counted_units_admit_everything(self, store: Store, clock: FakeClock) -> None:
        limits = _budget(store, CallLimit(3, HOUR), *_COUNTED)
        for _ in range(3):
            acquired = limits.try_acquire({"tokens": 10**12})
            acquired.update({"tokens": 10**12})
            acquired.release()
        assert used(limits, "tokens") == 0
        assert not limits.try_acquire({"tokens": 1})
        clock.advance(HOUR)
        assert limits.try_acquire({"tokens": 1})

    def test_use_of_a_limit_outlasts_the_time_in_which_its_unit_is_counted(self, store: Store) -> None:
        limit = QuotaLimit.per_month("tokens", 1000)
        assert limits_of(store, limit).try_acquire({"tokens": 900})
        assert _budget(store, *_COUNTED).try_acquire({"tokens": 5000})
        assert not limits_of(store, limit).try_acquire({"tokens": 101})
        assert limits_of(store, limit).try_acquire({"tokens": 100})
