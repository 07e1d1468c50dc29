"""Who is told of decisions: watchers of all, and receivers of the signal that a limit is near its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from pytest_django import Settings

from limits_app import limits, signals
from limits_app.engine.errors import LimitExceeded, StoreUnavailable
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.models import Pool, PoolMember
from limits_app.services import near_limits
from limits_app.services.near_limits import Thresholds, thresholds
from limits_app.services.notify import OBSERVERS
from limits_app.stores.registry import resilient_store
from limits_app.testing import FakeClock, freeze_limits, fresh_limits
from limits_app.usage.denial_counter import denials
from tests.replacing import at_next_call

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600
NOON = 1_772_366_400.0
FIXED = RateLimitAlgorithm.FIXED_WINDOW
Near = list[tuple[str, float]]


@pytest.fixture(autouse=True)
def clock() -> Iterator[FakeClock]:
    thresholds.clear()
    with freeze_limits(at=NOON) as clock:
        yield clock
    denials.clear()


@pytest.fixture
def near() -> Iterator[Near]:
    """Which limits were told of, by key and threshold."""
    told: Near = []

    def receive(status: LimitStatus, threshold: float, **details: object) -> None:
        told.append((f"{status.entity or status.member} {status.key}", threshold))

    signals.limit_near.connect(receive)
    yield told
    signals.limit_near.disconnect(receive)


class Seen:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def admitted(self, resource: str, priority: str = "") -> None:
        self.all.append(("admitted", resource, priority) if priority else ("admitted", resource))

    def refused(self, outcome: Outcome, *, waited: bool) -> None:
        self.all.append(("timed out" if waited else "refused", outcome.violations[0].resource))

    def waited(self, seconds: float) -> None:
        assert seconds >= 0
        self.all.append("waited")


@pytest.fixture
def seen() -> Iterator[Seen]:
    watcher = Seen()
    OBSERVERS.append(watcher)
    yield watcher
    OBSERVERS.remove(watcher)


def has(*some: LimitDefinition, resource: str = "api") -> None:
    limits.set_resource_limits(resource, some)


def use(times: int, entity: str = "user:1", **kwargs: Any) -> None:
    for _ in range(times):
        with limits.acquire("api", entity=entity, **kwargs) as acquisition:
            acquisition.update(kwargs.get("requested", {}))


def test_a_limit_that_is_near_its_end_is_reported_once(near: Near) -> None:
    has(CallLimit(10, HOUR, FIXED))
    use(7)
    assert near == []
    use(3)
    assert near == [("user:1 call_count", 0.8)]


def test_each_threshold_is_reported_and_the_highest_of_several_together(near: Near, settings: Settings) -> None:
    settings.LIMITS = {"NEAR_THRESHOLDS": [1, 0.5, 0.9]}
    has(CallLimit(10, HOUR, FIXED))
    use(10)
    assert [threshold for _, threshold in near] == [0.5, 0.9, 1]
    has(RateLimit("tokens", 100, HOUR, FIXED))
    use(1, requested={"tokens": 95})
    assert near[3:] == [("user:1 tokens", 0.9)]


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        pytest.param(CallLimit(10, HOUR, FIXED), HOUR, id="fixed window"),
        pytest.param(CallLimit(10, HOUR), HOUR, id="token bucket"),
        pytest.param(CallLimit(10, HOUR, RateLimitAlgorithm.SLIDING_WINDOW), HOUR + 60, id="sliding window"),
    ],
)
def test_it_is_reported_again_in_the_next_window(
    near: Near, clock: FakeClock, limit: LimitDefinition, seconds: int
) -> None:
    has(limit)
    for expected in (1, 2, 3):
        use(9)
        assert len(near) == expected
        clock.advance(seconds)


def test_a_window_that_ends_early_for_the_last_one_is_reported(near: Near, clock: FakeClock) -> None:
    has(CallLimit(10, HOUR, FIXED))
    use(1)
    clock.advance(HOUR - 10)
    use(9)
    clock.advance(20)
    use(9)
    assert len(near) == 2


@pytest.mark.parametrize("period", ["hour", "day", "week", "month", None])
def test_quotas_are_reported(near: Near, period: str | None) -> None:
    has(QuotaLimit("budget", 10, period, session_seconds=None if period else 60))
    use(3, requested={"budget": 3})
    assert near == [("user:1 budget", 0.8)]


def test_permits_are_reported_once_a_minute(near: Near, clock: FakeClock) -> None:
    has(ResourceLimit("db", 2))
    for expected in (1, 1, 2):
        with limits.acquire("api", entity="user:1"), limits.acquire("api", entity="user:1", requested={"db": 1}):
            assert len(near) == expected
        clock.advance(31)


def test_thresholds_of_buckets_are_reported_separately(near: Near) -> None:
    has(CallLimit(10, HOUR, FIXED), RateLimit("tokens", 10, HOUR, FIXED))
    use(8, "user:1", requested={"tokens": 1})
    use(8, "user:2", requested={"tokens": 0})
    assert sorted(near) == [("user:1 call_count", 0.8), ("user:1 tokens", 0.8), ("user:2 call_count", 0.8)]


def test_a_threshold_reported_by_another_process_is_not_repeated(near: Near) -> None:
    has(CallLimit(10, HOUR, FIXED))
    use(8)
    thresholds.clear()  # as one that has told of nothing yet
    use(1)
    assert len(near) == 1


def test_use_that_is_reported_later_is_reported_with_the_next_request(near: Near) -> None:
    has(RateLimit("tokens", 100, HOUR, FIXED))
    with limits.acquire("api", entity="user:1", requested={"tokens": 0}) as acquisition:
        acquisition.update({"tokens": 90})
    assert near == []
    use(1, requested={"tokens": 0})
    assert near == [("user:1 tokens", 0.8)]


def test_reported_thresholds_are_bounded(near: Near) -> None:
    few = Thresholds(most=2)
    has(CallLimit(1, HOUR, FIXED))
    acquired = [limits.acquire("api", entity=f"user:{number}") for number in range(5)]
    assert all(few.crossings(acquisition) for acquisition in acquired)
    assert few.crossings(acquired[-1]) == []
    assert few.crossings(acquired[0])


def test_repeated_request_is_reported_once(near: Near, seen: Seen) -> None:
    has(CallLimit(1, HOUR))
    for _ in range(3):
        assert limits.try_acquire("api", entity="user:1", idempotency_key="order 7")
    assert near == [("user:1 call_count", 0.8)]
    assert len(seen.all) >= 1


def test_peeking_reports_no_threshold(near: Near, seen: Seen) -> None:
    has(CallLimit(1, HOUR))
    limits.check("api", entity="user:1")
    assert (near, seen.all) == ([], [])


def test_a_decision_without_the_store_is_near_nothing(near: Near, seen: Seen, settings: Settings) -> None:
    has(CallLimit(1, HOUR))
    settings.LIMITS = {"ON_UNAVAILABLE": "allow", "BREAKER_MIN_CALLS": 1}
    resilient_store().record_failure(StoreUnavailable("gone"))
    assert limits.acquire("api", entity="user:1").outcome.degraded
    assert (near, seen.all) == ([], [("admitted", "api")])


def test_a_failing_store_does_not_affect_requests(
    near: Near, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has(CallLimit(1, HOUR))

    def fail(*_: object) -> None:
        raise StoreUnavailable("gone")

    at_next_call(monkeypatch, near_limits.Crossing, "send", fail)
    assert limits.acquire("api", entity="user:1")
    assert "the limit_near signal could not be sent" in caplog.text
    assert near == []


def test_in_asyncio_it_is_reported_from_a_thread(near: Near, seen: Seen) -> None:
    has(CallLimit(1, HOUR))

    async def work() -> None:
        assert await limits.atry_acquire("api", entity="user:1")
        assert not await limits.atry_acquire("api", entity="user:1")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: None)
        await loop.shutdown_default_executor()

    async_to_sync(work)()
    assert near == [("user:1 call_count", 0.8)]
    assert seen.all == [("admitted", "api"), ("refused", "api")]


def test_without_receivers_a_task_notifies_watchers_only(seen: Seen) -> None:
    has(CallLimit(1, HOUR))
    assert async_to_sync(limits.atry_acquire)("api", entity="user:1")
    assert seen.all == [("admitted", "api")]


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        pytest.param(lambda: limits.try_acquire("api"), ["admitted"], id="try"),
        pytest.param(lambda: limits.acquire("api", timeout=1), ["waited", "admitted"], id="wait"),
        pytest.param(lambda: async_to_sync(limits.aacquire)("api", timeout=1), ["waited", "admitted"], id="await"),
        pytest.param(
            lambda: limits.try_acquire({"api": None, "reports": None}), ["admitted", "admitted"], id="together"
        ),
        pytest.param(lambda: limits.try_acquire("free"), ["admitted"], id="free"),
        pytest.param(lambda: limits.pool("pool").try_acquire(), ["admitted"], id="pool"),
        pytest.param(lambda: limits.pool("pool").acquire(timeout=1), ["waited", "admitted"], id="pool wait"),
        pytest.param(
            lambda: async_to_sync(limits.pool("pool").aacquire)(timeout=1), ["waited", "admitted"], id="pool await"
        ),
    ],
)
def test_every_way_to_acquire_is_watched(seen: Seen, ask: Callable[[], object], expected: list[str]) -> None:
    has(CallLimit(2, HOUR))
    has(CallLimit(2, HOUR), resource="reports")
    pool = Pool.objects.create(name="pool")
    member = PoolMember.objects.create(pool=pool, name="eu")
    member.limits.create(key="call_count", text="2/h:gcra")
    ask()
    assert [one if isinstance(one, str) else one[0] for one in seen.all] == expected


def test_refusals_are_watched_whether_they_waited_or_not(seen: Seen) -> None:
    with fresh_limits():  # whose time moves by itself
        has(CallLimit(1, HOUR))
        limits.acquire("api")
        assert not limits.try_acquire("api")
        with pytest.raises(LimitExceeded):
            limits.acquire("api")
        with pytest.raises(TimeoutError):
            limits.acquire("api", timeout=0.01)
    assert seen.all[1:] == [("refused", "api"), ("refused", "api"), "waited", ("timed out", "api")]
