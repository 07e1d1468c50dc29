"""What was acquired: reporting usage, releasing it, and leaving blocks in every way."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from threading import Lock
from typing import Any, NoReturn

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.claims import Claim
from limits_app.engine.errors import AlreadyReleased, InvalidRequest, StoreUnavailable, UsageNotReported
from limits_app.engine.limit_use import LimitUse
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.plan import Amounts
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import CALLS, DB, KEEPING, REFUNDING, RPM, TPM, ChangeRuntime, limit_set, used
from tests.acquiring.test_remote_stores import FarStore

TOKEN_BUCKET = RateLimitAlgorithm.TOKEN_BUCKET
SLIDING_WINDOW = RateLimitAlgorithm.SLIDING_WINDOW

INTERRUPTIONS = [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, MemoryError]

Leave = Callable[[Acquisition, BaseException | None], None]


def leave(acquisition: Acquisition, error: BaseException | None = None) -> None:
    """Leave a block, with or without an error."""
    with acquisition:
        if error is not None:
            raise error


def leave_async(acquisition: Acquisition, error: BaseException | None = None) -> None:
    """The same in a coroutine, which is driven by hand, since a loop would swallow some errors."""

    async def block() -> None:
        async with acquisition:
            if error is not None:
                raise error

    with pytest.raises(StopIteration):
        block().send(None)


WAYS = [pytest.param(leave, id="with"), pytest.param(leave_async, id="async_with")]


def test_an_acquisition_shows_its_state_and_amounts(store: MemoryStore) -> None:
    limits = limit_set(store, TPM, DB)
    acquisition = limits.try_acquire({"tpm": 60})
    assert repr(acquisition) == "<Acquisition admitted: tpm=60, db=1>"
    assert repr(limits.try_acquire({"tpm": 60})) == "<Acquisition rejected: tpm=60, db=1>"
    acquisition.release()
    assert repr(acquisition) == "<Acquisition released: tpm=60, db=1>"
    assert repr(Acquisition(limits, acquisition.plan, (0, 0))).startswith("<Acquisition undecided: ")


def test_requested_and_used_amounts_can_be_read(store: MemoryStore) -> None:
    acquisition = limit_set(store).try_acquire({"tpm": 30, "rpm": 1.5})
    assert acquisition.acquisitions == {
        "tpm": LimitUse(30, None),
        "rpm": LimitUse(1.5, None),
        "call_count": LimitUse(1, None),
        "db": LimitUse(1, None),
    }
    acquisition.update({"tpm": 12.25})
    assert acquisition.acquisitions["tpm"] == LimitUse(requested=30, used=12.25)
    acquisition.update({"rpm": 0})
    acquisition.release()
    assert acquisition.acquisitions["rpm"] == LimitUse(1.5, 0)


def test_the_configuration_is_a_copy_in_depth_but_for_objects_that_may_have_no_copy(store: MemoryStore) -> None:
    client = Lock()
    given: dict[str, Any] = {"regions": [{"name": "eu"}], "client": client}
    limits = limit_set(store, TPM, config=given)
    given["regions"][0]["name"] = "us"
    acquisition = limits.try_acquire({"tpm": 1})
    seen: Any = acquisition.config
    seen["regions"][0]["name"] = "us"
    seen["regions"].append({})
    limits.config["client"] = None
    assert acquisition.config is seen, "one copy for each acquisition"
    assert limits.try_acquire({"tpm": 1}).config == limits.config == {"regions": [{"name": "eu"}], "client": client}
    assert limit_set(store, TPM).config == {}


def test_the_last_report_of_a_key_counts_from_the_release_on(store: MemoryStore) -> None:
    limits = limit_set(store, TPM, RPM)
    with limits.try_acquire({"tpm": 50, "rpm": 5}) as acquisition:
        acquisition.update({"tpm": 40})
        acquisition.update({"rpm": 4, "tpm": 10})
        acquisition.update({"tpm": 20})
        assert used(limits) == {"tpm": 50, "rpm": 5}
    assert used(limits) == {"tpm": 20, "rpm": 4}


@pytest.mark.parametrize("usage", [20, 20.0, Decimal(20), 50, 0, 50.0, 0.001])
def test_usage_may_be_any_amount(usage: float, store: MemoryStore) -> None:
    limits = limit_set(store, TPM)
    with limits.try_acquire({"tpm": 50}) as acquisition:
        acquisition.update({"tpm": usage})
    assert used(limits) == {"tpm": float(usage)}


@pytest.mark.parametrize(
    ("usage", "rule"),
    [
        (-1, "must not be negative"),
        (True, "not a boolean"),
        ("5", "must be a number"),
        (float("nan"), "must be a finite number"),
        (0.0001, "at most three decimals"),
        (10**12 + 1, "not be more than 10^12"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_usage_that_cannot_be_takes_over_nothing(usage: Any, rule: str, order: int, store: MemoryStore) -> None:
    limits = limit_set(store, TPM, RPM)
    acquisition = limits.try_acquire({"tpm": 50, "rpm": 5})
    acquisition.update({"rpm": 4})
    with pytest.raises(InvalidRequest, match="amount of 'tpm' ") as caught:
        acquisition.update(dict([("tpm", usage), ("rpm", 1)][::order]))
    assert rule in str(caught.value)
    assert acquisition.acquisitions == {"tpm": LimitUse(50, None), "rpm": LimitUse(5, 4)}


@pytest.mark.parametrize("finish", [Acquisition.release, leave, leave_async, Acquisition.cancel])
def test_usage_cannot_change_after_the_release(finish: Callable[[Acquisition], None], store: MemoryStore) -> None:
    limits = limit_set(store)
    acquisition = limits.try_acquire({"tpm": 50})
    acquisition.update({"tpm": 20})
    finish(acquisition)
    before = used(limits)
    with pytest.raises(AlreadyReleased, match="report usage before"):
        acquisition.update({"tpm": 30})
    acquisition.release()
    assert used(limits) == before
    assert issubclass(AlreadyReleased, RuntimeError)


@pytest.mark.parametrize("requested", [{}, {"tpm": 50}])
@pytest.mark.parametrize("finish", [Acquisition.release, Acquisition.release_unless_held, leave, leave_async])
def test_usage_cannot_change_after_a_release_that_settled_nothing(
    finish: Callable[[Acquisition], None], requested: dict[str, int], store: MemoryStore
) -> None:
    limits = limit_set(store, *([TPM] if requested else [CALLS]))
    acquisition = limits.try_acquire(requested)
    acquisition.update(requested)
    finish(acquisition)
    acquisition.release()
    with pytest.raises(AlreadyReleased):
        acquisition.update(requested)


def test_an_unknown_key_warns_once_for_requests_and_once_for_usage(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    limits = limit_set(store)
    for _ in range(2):
        with limits.try_acquire({"tpm": 5, "db": 0, "typo": 1}) as acquisition:
            acquisition.update({"typo": 5, "tpm": 3})
            acquisition.update({"typo": 0.5})
            with pytest.raises(InvalidRequest, match="'typo' must not be negative"):
                acquisition.update({"typo": -5, "tpm": 4})
    assert len(caplog.messages) == 2
    assert all(message.startswith("key 'typo' is not one of the limits") for message in caplog.messages)
    assert used(limits)["tpm"] == 6


def test_usage_that_was_not_requested_is_skipped(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    limits = limit_set(store, TPM, RPM)
    with limits.try_acquire({"tpm": 5}) as acquisition:
        acquisition.update({"tpm": 5, "rpm": 3})
    assert used(limits) == {"tpm": 5, "rpm": 0}
    assert caplog.messages == ["key 'rpm' was not requested: its usage is not recorded"]


@pytest.mark.parametrize("limit", [TPM, CALLS])
@pytest.mark.parametrize("before", [False, True])
def test_usage_must_be_a_mapping(limit: LimitDefinition, before: bool, store: MemoryStore) -> None:
    key = limit.key
    acquisition = limit_set(store, limit).try_acquire({key: 1})
    if before:
        acquisition.update({key: 0.5})
    others: list[Any] = [None, 5, [("tpm", 1)], ["tpm"], "tpm", "t", b"t", {"tpm"}]
    for usage in others:
        with pytest.raises(InvalidRequest, match="usage must map keys to amounts, not "):
            acquisition.update(usage)
    assert acquisition.acquisitions == {key: LimitUse(1, 0.5 if before else None)}


def test_the_errors_of_a_mapping_are_its_own(store: MemoryStore) -> None:
    class Broken(dict[str, float]):
        """A mapping that is broken."""

        def __getitem__(self, _: object) -> NoReturn:
            raise TypeError("broken")

        def items(self) -> NoReturn:
            raise TypeError("broken")

    with pytest.raises(TypeError, match="broken"):
        limit_set(store, TPM).try_acquire({"tpm": 1}).update(Broken(tpm=1))


def test_unknown_usage_is_never_an_error(
    store: MemoryStore, change_runtime: ChangeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    acquisition = limit_set(store).try_acquire({"tpm": 5})
    change_runtime(unknown_keys_raise=lambda: True)
    acquisition.update({"tpm": 3, "typo": 5})
    acquisition.update({"tpm": 3, "rpm": 5})
    assert acquisition.acquisitions["tpm"] == LimitUse(5, 3)
    assert [message.split(":")[0] for message in caplog.messages] == [
        "key 'typo' is not one of the limits of this request and is skipped; the set has",
        "key 'rpm' was not requested",
    ]


def test_over_use_is_a_warning(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    with limit_set(store, TPM).try_acquire({"tpm": 5}) as acquisition:
        acquisition.update({"tpm": 15})
    assert caplog.messages == ["tpm: 15 used, but only 5 requested: the rest is recorded as debt"]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_rate_may_have_any_name(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("call_count", "blocked"):
        limits = limit_set(store, RateLimit(name, 10, 60))
        with limits.try_acquire({name: 5}) as acquisition:
            acquisition.update({name: 7})
        assert used(limits) == {name: 7}
        assert limits.get_stats()[name]["type"] == "rate"
        assert limits.try_acquire({name: 4}).outcome.summary() == (
            f"'{name}' has 3 of 10 left, 4 requested: retry in 6 s"
        )
    permits = limit_set(store, ResourceLimit("call_count", 3))
    with permits.try_acquire({"call_count": 2}):
        pass
    assert used(permits) == {"call_count": 0}


@pytest.mark.parametrize("requested", [None, {"call_count": 1}, {"call_count": 1.0}, {"call_count": Decimal(1)}])
def test_one_call_need_not_be_reported(requested: dict[str, float] | None, store: MemoryStore) -> None:
    limits = limit_set(store, CALLS)
    with limits.try_acquire(requested):
        pass
    assert used(limits) == {"call_count": 1}


@pytest.mark.parametrize("several", [2, 3, 1.5, 3.0, Decimal(2), Decimal("1.5")])
def test_several_calls_must_be_reported(several: float, store: MemoryStore) -> None:
    limits = limit_set(store, CALLS, DB)
    with (
        pytest.raises(UsageNotReported, match="no usage was reported for 'call_count'"),
        limits.try_acquire({"call_count": several}),
    ):
        pass
    assert used(limits) == {"call_count": float(several), "db": 0}


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_several_calls_may_have_been_fewer(calls: int, store: MemoryStore) -> None:
    limits = limit_set(store, CALLS)
    with limits.try_acquire({"call_count": 3}) as acquisition:
        acquisition.update({"call_count": calls})
    assert used(limits) == {"call_count": calls}


@pytest.mark.parametrize("finish", [Acquisition.release, leave, leave_async])
def test_one_call_may_have_been_none(finish: Callable[[Acquisition], None], store: MemoryStore) -> None:
    for limits, requested in ((limit_set(store, CALLS), None), (limit_set(store), {"db": 1})):
        acquisition = limits.try_acquire(requested)
        acquisition.update({"call_count": 0})
        finish(acquisition)
        assert used(limits)["call_count"] == 0


@pytest.mark.parametrize("usage", [4, 3.5, 10**12])
def test_calls_cannot_be_more_than_requested(usage: float, store: MemoryStore) -> None:
    acquisition = limit_set(store).try_acquire({"call_count": 3, "db": 2, "tpm": 5})
    with pytest.raises(InvalidRequest, match="usage of 'call_count' must be between 0 and the 3 requested"):
        acquisition.update({"tpm": 3, "call_count": usage})
    assert acquisition.acquisitions["tpm"] == LimitUse(5, None)


@pytest.mark.parametrize("usage", [0, 1, 2, 3])
def test_permits_are_returned_after_any_report(
    usage: int, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    limits = limit_set(store, DB)
    with limits.try_acquire({"db": 2}) as acquisition:
        acquisition.update({"db": usage})
        assert acquisition.acquisitions == {"db": LimitUse(2, usage)}
    assert used(limits) == {"db": 0}
    warning = "db: 3 used, but only 2 requested: the rest is not counted"
    assert caplog.messages == ([warning] if usage == 3 else [])


def test_releasing_without_a_report_leaves_everything_spent_and_gives_permits_back(store: MemoryStore) -> None:
    limits = limit_set(store)
    limits.try_acquire({"tpm": 30, "call_count": 3}).release()
    assert used(limits) == {"tpm": 30, "rpm": 0, "call_count": 3, "db": 0}


def test_releasing_again_changes_nothing(store: MemoryStore) -> None:
    limits = limit_set(store)
    acquisition = limits.try_acquire({"tpm": 30})
    other = limits.try_acquire({"tpm": 30, "db": 2})
    acquisition.update({"tpm": 10})
    for finish in (acquisition.release, acquisition.release, acquisition.cancel, lambda: leave(acquisition)):
        finish()
        assert used(limits) == {"tpm": 40, "rpm": 0, "call_count": 2, "db": 2}
    other.release()


@pytest.mark.parametrize("end", ["release", "undo"])
def test_a_release_that_could_not_be_done_can_be_done_later(clock: FakeClock, end: str) -> None:
    class Down(MemoryStore):
        """A store that cannot be reached for a while."""

        down = True

        def settle(self, claim: Claim, changes: Amounts) -> None:
            if self.down:
                raise StoreUnavailable("out of reach")
            super().settle(claim, changes)

    unreachable = Down(clock=clock)
    limits = limit_set(unreachable, TPM, DB)
    acquisition = limits.try_acquire({"tpm": 30, "db": 2})
    acquisition.update({"tpm": 10})
    with pytest.raises(StoreUnavailable, match="out of reach"):
        getattr(acquisition, end)()
    assert used(limits) == {"tpm": 30, "db": 2}
    unreachable.down = False
    getattr(acquisition, end)()
    assert used(limits) == {"tpm": 10 if end == "release" else 0, "db": 0}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StoreUnavailable])
@pytest.mark.parametrize("extends", [False, True])
def test_a_release_in_a_task_that_a_signal_handler_has_interrupted_can_be_repeated(
    clock: FakeClock, error: type[BaseException], *, extends: bool
) -> None:
    class Interrupted(MemoryStore):
        """A store during whose settlements a signal handler raises for a while."""

        interrupted = True

        def settle(self, claim: Claim, changes: Amounts) -> None:
            if self.interrupted:
                raise error
            super().settle(claim, changes)

    store = Interrupted(clock=clock)
    limits = limit_set(store, TPM, DB)
    acquisition = limits.try_acquire({"tpm": 30, "db": 2})
    if extends:
        acquisition.extend({"db": 1})
    with suppress(error):
        acquisition.arelease().send(None)
    assert not acquisition.is_released
    store.interrupted = False
    asyncio.run(acquisition.arelease())
    assert used(limits) == {"tpm": 30, "db": 0}


def test_a_release_during_one_that_fails_leaves_everything_to_later_ones(clock: FakeClock) -> None:
    class Busy(MemoryStore):
        """A store that leaves a claim to the first caller that settles it, and fails that one at first."""

        callers = 0
        down = True

        def settle(self, claim: Claim, changes: Amounts) -> None:
            self.callers += 1
            if self.callers > 1:
                return
            acquisition.cancel()
            self.callers = 0
            if self.down:
                raise StoreUnavailable("out of reach")
            super().settle(claim, changes)

    store = Busy(clock=clock)
    limits = limit_set(store, TPM, DB)
    acquisition = limits.try_acquire({"tpm": 20, "db": 1})
    with pytest.raises(StoreUnavailable, match="out of reach"):
        acquisition.cancel()
    store.down = False
    acquisition.cancel()
    assert used(limits) == {"tpm": 0, "db": 0}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("requested", "reports", "missing"),
    [
        ({"tpm": 30}, {}, ("tpm",)),
        ({"tpm": 30, "rpm": 1}, {}, ("rpm", "tpm")),
        ({"tpm": 30, "rpm": 1}, {"tpm": 3}, ("rpm",)),
        ({"tpm": 30, "call_count": 2}, {}, ("call_count", "tpm")),
        ({"tpm": 0}, {}, ("tpm",)),
        ({"budget": 2}, {}, ("budget",)),
    ],
)
def test_a_block_that_reports_no_usage_ends_with_an_error_after_everything_was_released(
    way: Leave, requested: dict[str, float], reports: dict[str, float], missing: tuple[str, ...], store: MemoryStore
) -> None:
    limits = limit_set(store, TPM, RPM, CALLS, DB, QuotaLimit.per_day("budget", 5))
    acquisition = limits.try_acquire(requested)
    acquisition.update(reports)
    with pytest.raises(UsageNotReported) as caught:
        way(acquisition, None)
    assert caught.value.keys == missing
    names = ", ".join(repr(key) for key in missing)
    assert str(caught.value) == f"no usage was reported for {names}: call update({{key: used}}) before the block ends"
    nothing = {"tpm": 0, "rpm": 0, "budget": 0, "call_count": 1}
    assert used(limits) == nothing | requested | reports | {"db": 0}
    with pytest.raises(AlreadyReleased):
        acquisition.update(dict.fromkeys(missing, 0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, SLIDING_WINDOW])  # one that refunds, one that does not
def test_error_of_a_block_is_raised_and_refunds_unreported_amounts(
    algorithm: RateLimitAlgorithm, kind: type[BaseException], way: Leave, store: MemoryStore
) -> None:
    limits = limit_set(store, RateLimit("tpm", 100, 60, algorithm), RPM, CALLS, DB)
    acquisition = limits.try_acquire({"tpm": 30, "rpm": 5, "db": 2, "call_count": 3})
    acquisition.update({"rpm": 1})
    error = kind("what really happened")
    with pytest.raises(kind, match="what really happened") as caught:
        way(acquisition, error)
    assert caught.value is error
    assert error.__context__ is None
    spent = 0 if algorithm in REFUNDING else 30
    assert used(limits) == {"tpm": spent, "rpm": 1, "call_count": 0, "db": 0}
    with pytest.raises(AlreadyReleased):
        acquisition.update({"tpm": 1})


FAILED_BLOCKS = [
    *[pytest.param(RateLimit("k", 9, 60, algorithm), 4, 0, id=f"rate_{algorithm}") for algorithm in REFUNDING],
    *[pytest.param(CallLimit(9, 60, algorithm), 4, 0, id=f"calls_{algorithm}") for algorithm in REFUNDING],
    pytest.param(QuotaLimit.per_day("k", 9), 4, 0, id="quota"),
    pytest.param(QuotaLimit.per_session("k", 9, 60), 4, 0, id="session"),
    pytest.param(QuotaLimit.per_day("k", 9, soft=True), 4, 0, id="soft_quota"),
    pytest.param(RateLimit("k", 9, 60, soft=True), 4, 0, id="soft_rate"),
    pytest.param(ResourceLimit("k", 9), 1, 0, id="permit"),
    pytest.param(ResourceLimit("k", 9), 4, 0, id="permits"),
    *[pytest.param(RateLimit("k", 9, 60, algorithm), 4, 4, id=f"rate_{algorithm}") for algorithm in KEEPING],
    *[pytest.param(CallLimit(9, 60, algorithm), 4, 4, id=f"calls_{algorithm}") for algorithm in KEEPING],
    *[pytest.param(CallLimit(9, 60, algorithm), 1, 1, id=f"call_{algorithm}") for algorithm in RateLimitAlgorithm],
    pytest.param(CallLimit(9, 60, soft=True), 1, 1, id="soft_call"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("limit", "amount", "spent"), FAILED_BLOCKS)
def test_a_failed_block_is_refunded(
    limit: LimitDefinition, amount: int, spent: int, way: Leave, store: MemoryStore
) -> None:
    limits = limit_set(store, limit)
    with pytest.raises(OSError, match="refused"):
        way(limits.try_acquire({limit.key: amount}), OSError("refused"))
    assert used(limits) == {limit.key: spent}


@pytest.mark.parametrize("kind", [OSError, StoreUnavailable])
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_store_errors_mask_none(way: Leave, far: bool, kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FarStore if far else MemoryStore):  # type: ignore[misc]
        """A store that fails to settle."""

        def settle(self, claim: Claim, changes: Amounts) -> None:
            raise kind("disk full")

        async def asettle(self, claim: Claim, changes: Amounts) -> None:
            raise kind("disk full")

    limits = limit_set(Broken(), TPM)
    acquisition = limits.try_acquire({"tpm": 30})
    with pytest.raises(ValueError, match="what really happened"):
        way(acquisition, ValueError("what really happened"))
    assert caplog.messages == ["the amounts of a block that raised could not be refunded"]
    assert "disk full" in caplog.text
    other = limits.try_acquire({"tpm": 30})
    other.update({"tpm": 5})
    with pytest.raises(kind, match="disk full"):
        way(other, None)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [None, ValueError("of the block")])
def test_a_rejected_try_holds_and_refunds_nothing(way: Leave, error: Exception | None, store: MemoryStore) -> None:
    limits = limit_set(store)
    held = limits.try_acquire({"tpm": 100, "db": 2})
    before = used(limits)
    refused = limits.try_acquire({"tpm": 50, "db": 1})
    assert (bool(refused), refused.successful, refused.fences) == (False, False, {})
    if error is None:
        way(refused, None)
    else:
        with pytest.raises(ValueError, match="of the block"):
            way(refused, error)
    refused.release()
    refused.cancel()
    assert used(limits) == before
    held.release()


def test_usage_of_a_rejected_try_is_only_validated(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    limits = limit_set(store, TPM, CALLS)
    limits.try_acquire({"tpm": 100})
    with limits.try_acquire({"tpm": 1}) as refused:
        refused.update({"tpm": 1})
        refused.update({"tpm": 5})
        with pytest.raises(InvalidRequest, match="must not be negative"):
            refused.update({"tpm": -1})
        with pytest.raises(InvalidRequest, match="between 0 and the 1 requested"):
            refused.update({"call_count": 2})
    assert refused.acquisitions == {"tpm": LimitUse(1, None), "call_count": LimitUse(1, None)}
    assert caplog.messages == []


@pytest.mark.parametrize("far", [False, True])
def test_a_block_that_was_cancelled_need_not_report(far: bool) -> None:
    year = 366 * 86_400
    limits = limit_set(FarStore() if far else MemoryStore(), RateLimit("tpm", 100, year), RateLimit("rpm", 10, year))
    with limits.acquire({"tpm": 4, "rpm": 2}) as acquisition:
        acquisition.update({"tpm": 1.5})
        acquisition.cancel()

    async def scenario() -> None:
        async with await limits.aacquire({"tpm": 4}) as other:
            await other.acancel()

    asyncio.run(scenario())
    assert used(limits) == pytest.approx({"tpm": 1.5, "rpm": 0}, abs=0.01)


def test_a_copy_of_an_acquisition_is_settled_once(store: MemoryStore) -> None:
    limits = limit_set(store, DB)
    acquisition = limits.try_acquire({"db": 2})
    copied = copy.copy(acquisition)
    copied.release()
    acquisition.release()
    assert used(limits) == {"db": 0}


def composed(store: MemoryStore, *sets: Sequence[Any]) -> LimitSet:
    """One set of the scopes of several."""
    return LimitSet.composed([scoped for limits in sets for scoped in limit_set(store, *limits).scoped], store)


def test_a_key_of_two_scopes_is_charged_and_settled_in_both(store: MemoryStore) -> None:
    tenant = limit_set(store, RateLimit("tpm", 1000, 60), CALLS)
    user = limit_set(store, TPM, DB)
    limits = LimitSet.composed([*user.scoped, *tenant.scoped], store)
    assert limits["tpm"] == TPM
    with limits.try_acquire({"tpm": 50}) as acquisition:
        assert [status.key for status in acquisition.outcome.passed] == ["tpm", "db", "tpm", "call_count"]
        assert used(user) == {"tpm": 50, "db": 1}
        assert used(tenant) == {"tpm": 50, "call_count": 1}
        assert limits.get_stats()["tpm"]["available"] == 50, "of the first scope that has it"
        acquisition.update({"tpm": 20})
    assert used(user) == {"tpm": 20, "db": 0}
    assert used(tenant) == {"tpm": 20, "call_count": 1}


def test_usage_is_checked_in_every_scope(store: MemoryStore) -> None:
    limits = composed(store, (CallLimit(9, 60),), (RateLimit("call_count", 9, 60),))
    acquisition = limits.try_acquire({"call_count": 2})
    with pytest.raises(InvalidRequest, match="usage of 'call_count' must be between 0 and the 2 requested"):
        acquisition.update({"call_count": 3})
