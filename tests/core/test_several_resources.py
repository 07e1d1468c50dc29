"""Sets over several resources: amounts are named by resource, and everything is taken together or not at all."""

from __future__ import annotations

import pytest

from limits_app.core.errors import UsageNotReported
from limits_app.core.keys import scope_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, Limit, RateLimit, ResourceLimit
from limits_app.core.plan import ScopedLimits
from limits_app.core.record import schema_of
from limits_app.stores.memory import MemoryStore
from tests.core.sets import used

TPM = RateLimit("tpm", 10, 10**7)
CALLS = CallLimit(3, 10**7)
DB = ResourceLimit("db", 2)


def over(store: MemoryStore, **resources: tuple[Limit, ...]) -> LimitSet:
    """A set over several resources."""
    scoped = [
        ScopedLimits(scope_of(name, "someone"), schema_of(limits, store.lease_us), "resource", f"{name}:")
        for name, limits in resources.items()
    ]
    return LimitSet.composed(scoped, store)


def test_amounts_are_named_by_resource(store: MemoryStore) -> None:
    limits = over(store, one=(TPM, CALLS), other=(TPM, DB))
    with limits.acquire({"one:tpm": 3, "other:tpm": 5, "other:db": 2}) as acquisition:
        assert acquisition.acquisitions["one:call_count"].requested == 1
        acquisition.update({"one:tpm": 2, "other:tpm": 5})
    assert used(limits) == {"one:tpm": 2, "one:call_count": 1, "other:tpm": 5, "other:db": 0}


def test_a_refusal_by_one_charges_nothing_of_the_other(store: MemoryStore) -> None:
    limits = over(store, one=(TPM,), other=(TPM,))
    assert limits.try_acquire({"other:tpm": 10})
    refused = limits.try_acquire({"one:tpm": 3, "other:tpm": 1})
    assert not refused
    (violation,) = refused.outcome.violations
    assert (violation.resource, violation.key) == ("other", "tpm")
    assert used(limits) == {"one:tpm": 0, "other:tpm": 10}


def test_the_state_is_that_of_each_resource_alone(store: MemoryStore) -> None:
    both, alone = over(store, one=(DB,), other=(DB,)), over(store, one=(DB,))
    held = alone.acquire({"one:db": 2})
    assert not both.try_acquire({"other:db": 1, "one:db": 1})
    held.release()
    assert both.try_acquire({"other:db": 1, "one:db": 1})


def test_many_calls_of_one_resource_must_be_reported_and_one_of_another_need_not(store: MemoryStore) -> None:
    limits = over(store, one=(CALLS,), other=(CALLS,))
    with pytest.raises(UsageNotReported, match="one:call_count"), limits.acquire({"one:call_count": 2}):
        pass
    with limits.acquire({"one:call_count": 1}):
        pass
    assert used(limits) == {"one:call_count": 3, "other:call_count": 2}
