"""Resilient stores: calls are counted and timed, releases are never lost, and an unavailable store is not asked."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from limits_app import conf, signals
from limits_app.acquiring.breaker import BreakerState
from limits_app.acquiring.pool import LimitPool
from limits_app.acquiring.store import Store
from limits_app.engine.change_log import ALL, Change
from limits_app.engine.claims import Claim
from limits_app.engine.errors import NeverAdmissible, StaleConfiguration, StoreBlocked, StoreFull, StoreUnavailable
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.engine.plan import Amounts
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import open_process_store
from limits_app.stores.registry import aliases, forget_stores, resilient_store
from limits_app.stores.resilient import TIMERS, ResilientStore
from limits_app.testing import FakeClock
from tests.acquiring.test_remote_stores import FarStore
from tests.forking import exit_code_of_child
from tests.interruptions import interrupt_anywhere
from tests.stores.support import MULTI_THREADED_FORK, limits_of

DB = ResourceLimit("db", 40)
OPEN, CLOSED, HALF_OPEN = BreakerState.OPEN, BreakerState.CLOSED, BreakerState.HALF_OPEN
Call = tuple[str, str, bool]


class Near(MemoryStore):
    """A store that raises an error while a test sets one, and counts how often it was asked."""

    error: Exception | None = None
    asked = 0

    def acquire(self, claim: Claim) -> bool:
        self._ask()
        return super().acquire(claim)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        self._ask()
        super().settle(claim, changes)

    def version(self, namespace: str = "") -> int:
        self._ask()
        return super().version(namespace)

    def _ask(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


class Site:
    """A resilient store around another one, on a clock of the test."""

    def __init__(self, inner: Store) -> None:
        self.clock = FakeClock()
        self.inner = inner
        self.store = ResilientStore("far", lambda _: self.inner, clock=self.clock, jitter=lambda: 1.0)
        self.store.open()
        self.limits = limits_of(self.store, DB)

    def holders(self) -> object:
        """How many permits are held."""
        return self.limits.get_stats()["db"]["holders"]


@pytest.fixture
def near() -> Near:
    return Near()


@pytest.fixture
def site(near: Near) -> Site:
    return Site(near)


@pytest.fixture
def timed() -> Iterator[list[Call]]:
    """The calls that a timer received: alias, verb, and whether it failed."""
    calls: list[Call] = []

    def receive(alias: str, verb: str, seconds: float, *, failed: bool) -> None:
        assert 0 <= seconds < 60
        calls.append((alias, verb, failed))

    TIMERS.append(receive)
    yield calls
    TIMERS.remove(receive)


def gone() -> StoreUnavailable:
    """What an unavailable store raises."""
    return StoreUnavailable("gone")


def fail(site: Site, near: Near, times: int = 10) -> None:
    """Have so many calls fail."""
    near.error = gone()
    for _ in range(times):
        with pytest.raises(StoreUnavailable):
            site.limits.try_acquire()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_resilient_store_has_the_attributes_of_its_store(site: Site, near: Near) -> None:
    store = site.store
    assert (store.clock, store.line, store.renewer) == (near.clock, near.line, near.renewer)
    assert (store.lease_us, store.poll_us) == (near.lease_us, near.poll_us)
    assert (store.remote, store.counting) == (False, True)
    assert store.open() is store


def test_a_store_is_opened_by_its_first_call() -> None:
    opened: list[str] = []

    def open_store(alias: str) -> Store:
        opened.append(alias)
        return MemoryStore()

    store = ResilientStore("far", open_store)
    assert opened == []
    assert store.version() == store.version()
    assert opened == ["far"]


def test_a_store_that_cannot_be_opened_is_unavailable() -> None:
    def open_store(alias: str) -> Store:
        raise StoreUnavailable("no space left")

    store = ResilientStore("far", open_store, clock=FakeClock())
    for call in (store.open, store.version):
        with pytest.raises(StoreUnavailable, match="the store 'far' is unavailable: no space left"):
            call()
    for _ in range(10):
        store.record_failure(gone())
    with pytest.raises(StoreUnavailable, match="the store 'far' is unavailable: gone"):
        store.open()


def test_after_interruptions_anywhere_the_store_recovers(site: Site, near: Near) -> None:
    def calls() -> None:
        for number in range(50):
            near.error = gone() if number % 3 else None
            if number % 20 == 19:
                site.store.breaker.half_open()
            with suppress(StoreUnavailable):
                site.store.version()

    assert interrupt_anywhere(calls, times=1_000) > 100
    near.error = None
    with suppress(StoreUnavailable):
        site.store.version()
    site.clock.advance(100)
    assert site.store.breaker.state is CLOSED
    assert not site.store.failing
    assert site.limits.try_acquire()


def test_a_choice_between_limit_sets_reaches_the_store() -> None:
    site = Site(FarStore())
    pool = LimitPool([site.limits, limits_of(site.store, DB, entity="user:2")])
    with pool.try_acquire({"db": 1}) as acquisition:
        assert acquisition


def test_every_verb_for_asyncio_reaches_the_store() -> None:
    site = Site(FarStore())

    async def scenario() -> None:
        async with await site.limits.atry_acquire():
            pool = LimitPool([site.limits, limits_of(site.store, DB, entity="user:2")])
            async with await pool.atry_acquire({"db": 1}) as acquisition:
                assert acquisition
        with pytest.raises(NeverAdmissible):
            await site.limits.atry_acquire({"db": 41})

    run(scenario())
    assert site.store.remote
    assert site.holders() == 0


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("verb", ["acquire", "version"])
def test_errors_have_the_alias_the_cause_and_the_retry_time(site: Site, near: Near, verb: str, times: int) -> None:
    call = site.limits.try_acquire if verb == "acquire" else site.store.version
    near.error = gone()
    for _ in range(times):
        with pytest.raises(StoreUnavailable, match=r"^the store 'far' is unavailable: gone$") as caught:
            call()
        assert caught.value.retry_after == site.store.probe_seconds
        assert caught.value.__cause__ is near.error
        assert site.store.error is near.error


def test_while_the_circuit_breaker_is_open_the_store_is_not_asked(site: Site, near: Near) -> None:
    held = site.limits.try_acquire()
    fail(site, near)
    assert site.store.breaker.state is OPEN
    asked = near.asked
    for call in (site.limits.try_acquire, site.store.version, site.store.open, site.limits.get_stats):
        with pytest.raises(StoreUnavailable, match="is unavailable: gone"):
            call()
    held.release()
    assert near.asked == asked
    assert site.store.unsettled == 1


def test_an_unavailable_store_is_probed_until_it_is_available_again(site: Site, near: Near) -> None:
    fail(site, near)
    asked = near.asked
    site.clock.advance(10)
    assert 10 <= near.asked - asked <= 30
    assert site.store.breaker.state is OPEN
    near.error = None
    site.clock.advance(0.6)
    assert site.store.breaker.state is HALF_OPEN
    assert site.limits.try_acquire()
    site.clock.advance(1)
    assert site.store.breaker.state is CLOSED
    assert not site.store.failing
    asked = near.asked
    site.clock.advance(100)
    assert near.asked == asked


def test_half_open_calls_alone_close_the_circuit_breaker(site: Site, near: Near) -> None:
    fail(site, near)
    near.error = None
    site.store.breaker.half_open()
    for _ in range(5):
        assert site.store.failing
        assert site.limits.try_acquire()
    assert site.store.breaker.state is CLOSED
    assert not site.store.failing


def test_a_failure_while_it_is_half_open_opens_it_again(site: Site, near: Near) -> None:
    fail(site, near)
    site.store.breaker.half_open()
    fail(site, near, times=1)
    assert site.store.breaker.state is OPEN


@pytest.mark.parametrize("error", [StaleConfiguration(), KeyError("bug")])
def test_other_errors_are_no_failures(site: Site, near: Near, error: Exception) -> None:
    site.store.record_failure(gone())
    near.error = error
    for _ in range(20):
        with pytest.raises(type(error)):
            site.limits.try_acquire()
    assert site.store.breaker.state is CLOSED


def test_a_store_that_its_caller_blocks_counts_no_failure(site: Site, near: Near) -> None:
    near.error = StoreBlocked("locked by the caller")
    for failing in (False, True):
        for _ in range(20):
            with pytest.raises(StoreBlocked, match=r"^locked by the caller$"):
                site.limits.try_acquire()
        assert site.store.failing is failing
        site.store.record_failure(gone())
        near.error = StoreBlocked("locked by the caller")
    assert site.store.breaker.state is CLOSED


def test_a_full_store_is_no_failure_and_is_logged_once(
    site: Site, near: Near, caplog: pytest.LogCaptureFixture
) -> None:
    near.error = StoreFull("no room")
    for _ in range(30):
        with pytest.raises(StoreFull, match="the store 'far' is full: no room") as caught:
            site.limits.try_acquire()
    assert caught.value.retry_after == site.store.probe_seconds
    assert (site.store.failing, site.store.breaker.state) == (False, CLOSED)
    assert [record.getMessage() for record in caplog.records] == ["the store 'far' is full: no room"]
    near.error = None
    assert site.limits.try_acquire()


def test_the_fallback_lasts_while_a_store_is_full(site: Site, near: Near) -> None:
    near.error = StoreFull("no room")
    fallback = site.store.fallback()
    for _ in range(3):
        with pytest.raises(StoreFull):
            site.limits.try_acquire()
        site.clock.advance(59)
        assert site.store.is_full
        assert site.store.fallback() is fallback
    site.clock.advance(1 + site.store.probe_seconds)
    assert not site.store.is_full
    assert site.store.fallback() is not fallback


def test_one_failure_is_forgotten_after_the_interval(site: Site, near: Near) -> None:
    fail(site, near, times=1)
    near.error = None
    assert site.store.failing
    site.clock.advance(conf.get(conf.BREAKER_INTERVAL_SECONDS) + 2)
    assert not site.store.failing


@pytest.mark.parametrize("is_failing", [True, False])
def test_failed_settlement_is_made_later(
    site: Site, near: Near, caplog: pytest.LogCaptureFixture, *, is_failing: bool
) -> None:
    held = [site.limits.try_acquire({"db": 1}) for _ in range(2)]
    if is_failing:
        site.store.record_failure(gone())
    near.error = gone()
    for acquisition in held:
        acquisition.release()
    assert site.store.unsettled == 2
    assert caplog.text.count("it is settled later") == 1
    near.error = None
    site.clock.advance(2)
    assert site.store.unsettled == 0
    assert site.holders() == 0


def test_failed_settlement_of_a_task_is_made_later() -> None:
    far = FarStore()
    site = Site(far)

    async def scenario() -> None:
        held = [await site.limits.atry_acquire({"db": 1}) for _ in range(30)]
        far.down = True
        for acquisition in held:
            await acquisition.arelease()

    run(scenario())
    assert site.store.unsettled == 30
    assert site.store.breaker.state is OPEN
    far.down = False
    site.clock.advance(5)
    assert site.store.unsettled == 0
    assert site.holders() == 0


def test_remote_store_hands_over_unsettled_changes() -> None:
    far = FarStore()
    site = Site(far)
    assert far.settle_later is not None
    claim = site.limits.try_acquire({"db": 1}).claim
    far.settle_later(claim, [-amount for amount in claim.amounts])
    assert site.store.unsettled == 1


def test_an_owed_version_is_advanced_when_the_store_is_available_again(site: Site, near: Near) -> None:
    version = near.version()
    fail(site, near)
    change = Change.of_client(b"somebody")
    site.store.advance_version_later()
    site.store.advance_version_later([change], "tenant")
    near.error = None
    before = near.advance_version((ALL,), "tenant")
    site.clock.advance(5)
    assert near.version() > version
    assert near.changes_since(before, "tenant") == (near.version("tenant"), (change,))


def test_the_fallback_is_dropped_when_the_store_is_available_again(site: Site, near: Near) -> None:
    fail(site, near)
    fallback = site.store.fallback()
    version = fallback.version()
    assert site.store.fallback() is fallback
    near.error = None
    site.clock.advance(5)
    assert fallback.version() > version
    assert site.store.fallback() is not fallback


def test_degraded_decisions_are_counted_by_policy(site: Site) -> None:
    site.store.count_degraded(conf.OnUnavailable.ALLOW)
    site.store.count_degraded(conf.OnUnavailable.ALLOW)
    assert site.store.degraded == {conf.OnUnavailable.ALLOW: 2}


def test_signals_and_logs_report_once_that_it_is_unavailable_and_once_that_it_is_back(
    site: Site, near: Near, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[str] = []

    def degraded(alias: str, error: object, **_: object) -> None:
        sent.append(f"{alias} degraded: {error}")

    def restored(alias: str, **_: object) -> None:
        sent.append(f"{alias} restored")

    signals.store_degraded.connect(degraded)
    signals.store_restored.connect(restored)
    try:
        fail(site, near)
        site.clock.advance(5)
        near.error = None
        site.clock.advance(5)
    finally:
        signals.store_degraded.disconnect(degraded)
        signals.store_restored.disconnect(restored)
    assert sent == ["far degraded: gone", "far restored"]
    assert caplog.messages == [
        "the store 'far' could not answer: gone",
        "the store 'far' is unavailable: policies decide without it: gone",
        "the store 'far' is available again",
    ]


def test_a_retired_store_counts_and_probes_nothing(site: Site, near: Near, caplog: pytest.LogCaptureFixture) -> None:
    fail(site, near)
    site.store.retire()
    caplog.clear()
    assert not site.store.failing
    site.store.record_failure(gone())
    assert not site.store.failing
    site.store.breaker.half_open()
    asked = near.asked
    site.clock.advance(100)
    assert near.asked == asked
    assert caplog.messages == ["the store 'far' could not answer: gone"]


@pytest.mark.filterwarnings(MULTI_THREADED_FORK)
def test_a_child_settles_nothing_of_its_parent(site: Site, near: Near) -> None:
    held = site.limits.try_acquire()
    fail(site, near)
    held.release()
    fallback = site.store.fallback()
    assert exit_code_of_child(lambda: site.store.unsettled + (site.store.fallback() is fallback)) == 0
    assert site.store.unsettled == 1


def test_each_call_is_timed_with_its_verb(site: Site, timed: list[Call]) -> None:
    with site.limits.acquire({"db": 1}):
        site.limits.get_stats()
    site.store.reset([])
    assert site.store.renew([]) == []
    before = site.store.version()
    assert site.store.advance_version() > before
    assert site.store.changes_since(before) is None
    assert site.store.collect_counts() is None
    site.store.forget_counts("unknown")
    verbs = ["acquire", "peek", "settle", "reset", "renew", "version", "advance_version", "changes_since"]
    verbs += ["collect_counts", "forget_counts"]
    assert timed == [("far", verb, False) for verb in verbs]


def test_calls_of_tasks_are_timed_under_the_same_verbs(timed: list[Call]) -> None:
    site = Site(FarStore())

    async def scenario() -> None:
        async with await site.limits.atry_acquire({"db": 1}):
            pass

    timed.clear()
    run(scenario())
    assert timed == [("far", "acquire", False), ("far", "settle", False)]


def test_refusals_are_no_failures_for_a_timer(timed: list[Call]) -> None:
    limits = limits_of(Site(MemoryStore()).store, CallLimit(1, 60))
    timed.clear()
    assert [bool(limits.try_acquire()) for _ in range(2)] == [True, False]
    assert timed == [("far", "acquire", False)] * 2


@pytest.mark.parametrize(
    ("error", "failed"),
    [(gone(), True), (StaleConfiguration("changed"), False), (StoreBlocked("locked"), True)],
    ids=str,
)
def test_timer_receives_failures_and_only_calls_that_were_made(
    site: Site, near: Near, timed: list[Call], error: Exception, *, failed: bool
) -> None:
    near.error = error
    with pytest.raises(type(error)):
        site.limits.try_acquire()
    assert timed == [("far", "acquire", failed)]
    fail(site, near, times=10)
    timed.clear()
    fail(site, near, times=1)
    assert timed == []


def test_in_another_process_it_is_the_store_itself(tmp_path: Path) -> None:
    store = open_process_store(tmp_path, map_megabytes=1)
    try:
        assert pickle.loads(pickle.dumps(ResilientStore("far", lambda _: store))) is store
    finally:
        store.close()


def test_a_store_in_memory_cannot_be_sent_to_another_process(site: Site) -> None:
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(site.store)


@pytest.fixture
def settings_with(settings: Any) -> Callable[..., None]:
    """Set the stores of the settings, by alias."""

    def set_stores(*names: str) -> None:
        settings.LIMITS = {"STORE": names[0], "STORES": {name: {"KIND": "memory"} for name in names}}

    return set_stores


def test_each_alias_has_one_until_the_settings_change(settings_with: Callable[..., None]) -> None:
    settings_with("near", "far")
    store = resilient_store("far")
    assert resilient_store("far") is store
    assert resilient_store() is resilient_store("near")
    assert store.open().inner is registry.store("far")
    settings_with("near", "far")
    assert resilient_store("far") is not store


def test_an_alias_that_the_settings_do_not_have_is_unavailable(settings_with: Callable[..., None]) -> None:
    settings_with("near")
    with pytest.raises(StoreUnavailable, match=r"LIMITS\['STORES'\] has no 'gone'"):
        resilient_store("gone").version()
    assert aliases() == ["near", "gone"]
    forget_stores()
    assert aliases() == ["near"]


def test_limits_of_an_opened_store_are_those_of_the_store(settings_with: Callable[..., None]) -> None:
    settings_with("near")
    assert limits_of(resilient_store().open(), CallLimit(1, 60)).try_acquire()
    assert not limits_of(registry.store(), CallLimit(1, 60)).try_acquire()
