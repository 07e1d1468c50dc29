"""Extending an acquisition: what is charged, how usage is shared, and every way in which it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from types import FrameType
from typing import Any

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.held_parts import HeldParts
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.engine import LEASE_KEY, LimitUse
from limits_app.engine.claims import Claim
from limits_app.engine.errors import (
    AlreadyReleased,
    InvalidRequest,
    LeaseEnded,
    LimitExceeded,
    LimitsError,
    NeverAdmissible,
    StaleConfiguration,
    StoreUnavailable,
    UsageNotReported,
)
from limits_app.engine.holders import token_holder
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import QuotaLimit, RateLimit, RateLimitAlgorithm
from limits_app.engine.plan import Amounts
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.in_thread import AskedInThread
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.token_leases import elsewhere, with_lease
from tests.acquiring.sets import DB, TPM, limit_set, used
from tests.acquiring.test_remote_stores import FarStore
from tests.forking import exit_code_of_child
from tests.interrupting import Interrupted, interrupted_at_event
from tests.replacing import at_next_call

Extend = Callable[[Acquisition, Mapping[str, Any]], None]


def extend(acquisition: Acquisition, requested: Mapping[str, Any]) -> None:
    acquisition.extend(requested)


def aextend(acquisition: Acquisition, requested: Mapping[str, Any]) -> None:
    asyncio.run(acquisition.aextend(requested))


WAYS = pytest.mark.parametrize("extend", [extend, aextend])
STORES = pytest.mark.parametrize("kind", [MemoryStore, FarStore])


@WAYS
@STORES
def test_amounts_of_extensions_are_part_of_the_acquisition(extend: Extend, kind: type[MemoryStore]) -> None:
    limits = limit_set(kind(clock=FakeClock()))
    acquisition = limits.try_acquire({"tpm": 20})
    extend(acquisition, {"tpm": 30, "rpm": 2})
    extend(acquisition, {"tpm": 10, "db": 1, "call_count": 1})
    assert acquisition.acquisitions == {
        "tpm": LimitUse(60, None),
        "rpm": LimitUse(2, None),
        "call_count": LimitUse(2, None),
        "db": LimitUse(2, None),
    }
    assert used(limits) == {"tpm": 60, "rpm": 2, "call_count": 2, "db": 2}
    acquisition.update({"tpm": 33, "rpm": 1, "call_count": 1})
    asyncio.run(acquisition.arelease()) if extend is aextend else acquisition.release()
    assert acquisition.acquisitions["tpm"] == LimitUse(60, 33)
    assert used(limits) == {"tpm": 33, "rpm": 1, "call_count": 1, "db": 0}


@pytest.mark.parametrize("before", [True, False])
def test_usage_that_was_reported_before_counts_for_the_sum(store: MemoryStore, before: bool) -> None:
    limits = limit_set(store, TPM)
    with limits.try_acquire({"tpm": 20}) as acquisition:
        if before:
            acquisition.update({"tpm": 25})
        acquisition.extend({"tpm": 30})
        if not before:
            acquisition.update({"tpm": 25})
    assert used(limits) == {"tpm": 25}


def test_unused_amounts_are_refunded_to_the_latest_charges(clock: FakeClock, store: MemoryStore) -> None:
    limits = limit_set(store, QuotaLimit.per_session("q", 100, 60))
    acquisition = limits.try_acquire({"q": 40})
    clock.move(61_000_000)
    acquisition.extend({"q": 30})
    acquisition.update({"q": 50})
    acquisition.release()
    assert used(limits) == {"q": 10}, "10 of the session that runs now"


def test_usage_that_was_never_reported_is_an_error_of_all_keys(store: MemoryStore) -> None:
    limits = limit_set(store)
    with pytest.raises(UsageNotReported) as caught, limits.try_acquire({"tpm": 5}) as acquisition:
        acquisition.extend({"rpm": 1})
    assert caught.value.keys == ("rpm", "tpm")
    acquisition = limits.try_acquire({"tpm": 5})
    acquisition.extend({"rpm": 1})
    acquisition.update({"tpm": 1})
    with pytest.raises(UsageNotReported) as caught, acquisition:
        pass
    assert caught.value.keys == ("rpm",)


def test_use_beyond_the_sum_is_debt(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    limits = limit_set(store)
    with limits.try_acquire({"tpm": 20, "call_count": 2}) as acquisition:
        acquisition.extend({"tpm": 30, "call_count": 1})
        acquisition.update({"tpm": 50, "call_count": 3})
        assert not caplog.records
        acquisition.update({"tpm": 130})
        assert "130 used, but only 50 requested" in caplog.text
        with pytest.raises(InvalidRequest, match="between 0 and the 3 requested, not 4"):
            acquisition.update({"call_count": 4})
    assert limits.get_stats()["tpm"]["utilization"] == 1.3


def test_amounts_with_decimals_are_shared_exactly(store: MemoryStore) -> None:
    limits = limit_set(store, RateLimit("x", 10, 60, RateLimitAlgorithm.GCRA))
    with limits.try_acquire({"x": 0.1}) as acquisition:
        acquisition.extend({"x": Decimal("0.2")})
        acquisition.extend({"x": 0.3})
        acquisition.update({"x": 0.25})
    assert not limits.try_acquire({"x": 9.751})
    assert limits.try_acquire({"x": 9.75})


def test_a_soft_limit_is_extended_into_debt(store: MemoryStore) -> None:
    limits = limit_set(store, RateLimit("x", 10, 60, soft=True))
    with limits.try_acquire({"x": 8}) as acquisition:
        acquisition.extend({"x": 8})
        acquisition.update({"x": 16})
    assert limits.get_stats()["x"]["used"] == 16


def test_a_limit_of_two_scopes_is_shared_in_each(store: MemoryStore) -> None:
    scoped = [
        ScopedLimits(scope_of("llm", entity), schema_of((RateLimit("tpm", capacity, 60),), store.lease_us))
        for entity, capacity in (("team", 1000), ("user", 100))
    ]
    with LimitSet.composed(scoped, store).try_acquire({"tpm": 20}) as acquisition:
        acquisition.extend({"tpm": 30})
        acquisition.update({"tpm": 27})
    assert [used(LimitSet.composed([one], store)) for one in scoped] == [{"tpm": 27}, {"tpm": 27}]


@WAYS
@STORES
@pytest.mark.parametrize(
    ("requested", "error", "message"),
    [
        ({"tpm": 90}, LimitExceeded, "tpm"),
        ({"tpm": 101}, NeverAdmissible, "never admit 101"),
        ({"tpm": -1}, InvalidRequest, "negative"),
        ({"tpm": True}, InvalidRequest, "boolean"),
        ({"x": "1"}, InvalidRequest, "number"),
        ({}, InvalidRequest, "map keys to amounts"),
        (["tpm"], InvalidRequest, "map keys to amounts"),
        (None, InvalidRequest, "map keys to amounts"),
    ],
)
def test_rejected_extension_charges_nothing(
    extend: Extend, kind: type[MemoryStore], requested: Any, error: type[Exception], message: str
) -> None:
    limits = limit_set(kind(clock=FakeClock()), TPM, DB)
    acquisition = limits.try_acquire({"tpm": 20})
    with pytest.raises(error, match=message):
        extend(acquisition, requested)
    assert used(limits) == {"tpm": 20, "db": 1}
    assert acquisition.acquisitions["tpm"].requested == 20
    acquisition.cancel()
    assert used(limits) == {"tpm": 0, "db": 0}


@WAYS
def test_rejected_or_released_acquisition_cannot_be_extended(store: MemoryStore, extend: Extend) -> None:
    limits = limit_set(store, TPM)
    refused = limits.try_acquire({"tpm": 60}) and limits.try_acquire({"tpm": 60})
    with pytest.raises(LimitExceeded) as caught:
        extend(refused, {"tpm": 1})
    assert caught.value.outcome == refused.outcome
    released = limits.try_acquire({"tpm": 1})
    released.release()
    with pytest.raises(AlreadyReleased, match="extend it before that"):
        extend(released, {"tpm": 1})
    assert used(limits) == {"tpm": 61}


@WAYS
def test_unknown_keys_are_skipped(store: MemoryStore, extend: Extend, caplog: pytest.LogCaptureFixture) -> None:
    limits = limit_set(store, TPM, DB)
    acquisition = limits.try_acquire({"tpm": 1})
    extend(acquisition, {"other": 5, "db": 0})
    assert "'other' is not one of the limits" in caplog.text
    assert used(limits) == {"tpm": 1, "db": 1}
    free = LimitSet().try_acquire()
    extend(free, {"tpm": 5})
    assert not free.release_unless_held()
    assert not free.extensions
    with pytest.raises(LimitsError):
        extend(free, {"tpm": -5})


@WAYS
@STORES
def test_stale_limits_without_a_source_are_an_error(extend: Extend, kind: type[MemoryStore]) -> None:
    store = kind(clock=FakeClock())
    scoped = [ScopedLimits(scope_of("llm", None), schema_of((TPM,), store.lease_us))]
    acquisition = LimitSet.composed(scoped, store, version=0).try_acquire({"tpm": 20})
    store.advance_version()
    with pytest.raises(StaleConfiguration):
        extend(acquisition, {"tpm": 1})
    assert not acquisition.extensions


def test_a_pool_extends_the_set_that_was_chosen() -> None:
    limits = [RateLimit("tpm", 10, 60)]
    pool = LimitPool([LimitSet(limits, store=MemoryStore(clock=FakeClock())) for _ in range(2)])
    for _ in range(2):
        acquisition = pool.try_acquire({"tpm": 6})
        acquisition.extend({"tpm": 3})
        with pytest.raises(LimitExceeded):
            acquisition.extend({"tpm": 3})
    assert [one["tpm"]["used"] for one in pool.get_stats()["limit_sets"]] == [9, 9]  # type: ignore[index, union-attr]


def test_permits_of_an_extension_count_as_held_inside_the_block(store: MemoryStore) -> None:
    limits = limit_set(store, DB)
    with limits.try_acquire({"db": 0}) as acquisition:
        acquisition.extend({"db": 3})
        with limits.acquire(timeout=0):
            assert used(limits) == {"db": 3}
    assert used(limits) == {"db": 0}
    with limits.acquire(timeout=0):
        assert used(limits) == {"db": 1}


def test_permits_of_an_extension_are_renewed_and_returned_with_the_first(clock: FakeClock, store: MemoryStore) -> None:
    limits = limit_set(store, DB)
    acquisition = limits.try_acquire()
    first = acquisition.fences["db"]
    acquisition.extend({"db": 2})
    assert acquisition.fences["db"] > first
    clock.advance(60)
    assert not limits.try_acquire()
    acquisition.release()
    assert used(limits) == {"db": 0}
    assert not acquisition.lost_lease


def test_a_lost_lease_is_reported(clock: FakeClock, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    limits = limit_set(store, TPM, DB)
    acquisition = limits.try_acquire({"tpm": 1, "db": 0})
    acquisition.extend({"db": 1})
    store.renewer.discard(acquisition.extensions[0].claim)
    clock.move(11_000_000)
    assert limits.try_acquire({"db": 3})
    acquisition.release()
    assert acquisition.lost_lease
    assert "the lease of db ran out" in caplog.text


def test_extension_whose_acquisition_nothing_refers_to_reports_no_lost_lease(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    acquisition = limit_set(store, DB).try_acquire({"db": 1})
    acquisition.extend({"db": 1})
    [extension] = acquisition.extensions
    del acquisition
    gc.collect()
    extension.lose_lease()
    assert "ran out" not in caplog.text


def test_threads_that_extend_an_acquisition_at_the_same_time_hold_both_extensions(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limit_set(store, DB)
    acquisition = limits.try_acquire({"db": 1})

    def extend_meanwhile(make: Callable[..., None], *args: Any) -> None:
        acquisition.extend({"db": 1})
        make(*args)

    at_next_call(monkeypatch, HeldParts, "__init__", extend_meanwhile)
    acquisition.extend({"db": 1})
    assert len(acquisition.extensions) == 2
    acquisition.release()
    assert used(limits) == {"db": 0}


def test_acquisition_that_is_held_elsewhere_has_the_limits_that_were_charged(store: MemoryStore) -> None:
    claim = limit_set(store, DB).try_acquire({"db": 1}).claim
    with pytest.raises(InvalidRequest, match="not those that were charged"):
        Acquisition.held_elsewhere(
            limit_set(store, DB, TPM),
            {"tpm": 1, "db": 1},
            claim.amounts,
            holder=token_holder(60_000_000),
            decided_at=claim.decided_at,
        )


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("kind", [MemoryStore, FarStore])
def test_extensions_of_a_token_whose_lease_has_ended_stay_charged(
    clock: FakeClock, kind: type[MemoryStore], asynchronous: bool
) -> None:
    store = kind(clock=clock)
    limits = with_lease(store, RateLimit("tpm", 100, 86_400))
    token = limits.try_acquire({"tpm": 10})
    extended = elsewhere(token)
    extended.extend({"tpm": 20, LEASE_KEY: 1})
    token.cancel()
    extended.update({"tpm": 0})
    asyncio.run(extended.arelease()) if asynchronous else extended.release()
    assert extended.is_over
    assert used(limits)["tpm"] == 20


def test_extension_of_a_token_whose_lease_has_ended_is_an_error_also_where_its_amount_is_rejected(
    clock: FakeClock,
) -> None:
    limits = with_lease(MemoryStore(clock=clock), RateLimit("tpm", 100, 86_400))
    token = limits.try_acquire({"tpm": 100})
    extended = elsewhere(token)
    token.release()
    with pytest.raises(LeaseEnded):
        extended.extend({"tpm": 1, LEASE_KEY: 1})


class Failing(AskedInThread, MemoryStore):
    """A remote store that fails to settle so many times."""

    remote: bool = True

    failures = 0

    def settle(self, claim: Claim, changes: Amounts) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("down")
        super().settle(claim, changes)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_each_part_is_settled_although_another_one_fails(asynchronous: bool) -> None:
    store = Failing(clock=FakeClock())
    limits = limit_set(store, TPM, DB)
    acquisition = limits.try_acquire({"tpm": 20})
    for _ in range(2):
        acquisition.extend({"tpm": 10, "db": 1})
    store.failures = 1
    acquisition.update({"tpm": 15})
    with pytest.raises(StoreUnavailable):
        asyncio.run(acquisition.arelease()) if asynchronous else acquisition.release()
    assert used(limits) == {"tpm": 20, "db": 1}, "the first part has failed"
    acquisition.release()
    acquisition.release()
    assert used(limits) == {"tpm": 15, "db": 0}


class Interfering(AskedInThread, MemoryStore):
    """A remote store that does something after it has charged a claim."""

    remote: bool = True

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.interfere: Callable[[], None] = lambda: None

    def acquire(self, claim: Claim) -> bool:
        admitted = super().acquire(claim)
        self.interfere()
        return admitted


@WAYS
@pytest.mark.parametrize("remote", [True, False])
def test_extension_after_the_release_is_refunded(extend: Extend, remote: bool) -> None:
    store = Interfering(FakeClock())
    store.remote = remote
    limits = limit_set(store, TPM, DB)
    acquisition = limits.try_acquire({"tpm": 20})
    acquisition.update({"tpm": 20})
    store.interfere = acquisition.release
    with pytest.raises(AlreadyReleased):
        extend(acquisition, {"tpm": 5, "db": 1})
    assert used(limits) == {"tpm": 20, "db": 0}


def test_an_interrupted_extension_is_refunded() -> None:
    store = Interfering(FakeClock())
    limits = limit_set(store, TPM, DB)

    def interrupt() -> None:
        raise KeyboardInterrupt

    acquisition = limits.try_acquire({"tpm": 20})
    store.interfere = interrupt
    with pytest.raises(KeyboardInterrupt), acquisition:
        acquisition.extend({"tpm": 30, "db": 1})
    assert used(limits) == {"tpm": 0, "db": 0}


MODULES = ("acquisition.py", "extending.py", "held_part.py", "held_parts.py")


def in_an_acquisition(frame: FrameType, _event: str) -> bool:
    """Whether a call in the modules of acquisitions begins or ends."""
    return frame.f_code.co_filename.endswith(MODULES)


def test_release_after_an_interruption_returns_everything(clock: FakeClock) -> None:
    number, finished = 0, False
    while not finished:
        limits = limit_set(MemoryStore(clock=clock), TPM, DB)
        acquisition = limits.try_acquire({"tpm": 1, "db": 0})
        acquisition.update({"tpm": 0})
        number += 1
        with suppress(Interrupted), interrupted_at_event(number, in_an_acquisition):
            acquisition.extend({"db": 1, "tpm": 2})
            acquisition.extend({"db": 1})
            acquisition.update({"tpm": 0})
            acquisition.release()
            finished = True
        acquisition.release()
        assert used(limits) == {"tpm": 0, "db": 0}, number
    assert number > 50


def test_forked_child_cannot_extend_permits_of_its_parent(store: MemoryStore) -> None:
    acquisition = limit_set(store, TPM).try_acquire({"tpm": 1})

    def extend() -> int:
        with pytest.raises(AlreadyReleased):
            acquisition.extend({"tpm": 1})
        return 0

    assert exit_code_of_child(extend) == 0
    acquisition.extend({"tpm": 1})
