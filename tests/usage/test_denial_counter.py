"""RejectionCounts are counted in the process, added to those in the store, and rolled up with usage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from django.db import transaction
from pytest_django import Settings

from limits_app import limits, signals
from limits_app.engine.counting import RejectionCounts
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.models import BucketKind, Denial, UsagePeriod, UsageSnapshot
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from limits_app.usage import writer
from limits_app.usage.denial_counter import Denials, denials
from tests.forking import exit_code_of_child
from tests.seconds import Seconds
from tests.threads import no_more_threads
from tests.usage.tables import missing

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = 3600


@pytest.fixture
def wall() -> Seconds:
    """The system's clock."""
    return Seconds(NOON.timestamp())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def noted(wall: Seconds, clock: FakeClock) -> Denials:
    """Denials that are written when the clock is moved, also in tests."""
    writer.write_in_background(True)
    return Denials(most=5, clock=clock, now=wall)


class Unavailable(MemoryStore):
    """A store that takes no rejections while `is_down` is set."""

    is_down = True

    def add_rejections(self, rejections: RejectionCounts, namespace: str = "") -> None:
        if self.is_down:
            raise StoreUnavailable("the store is down")
        super().add_rejections(rejections, namespace)


def end_process(denials: Denials) -> None:
    """Do what is done when the process ends."""
    denials._at_exit()


def refusal(entity: str | None = "user:1", key: str = "call_count", resource: str = "api") -> Outcome:
    return Outcome(False, (status(entity, key, resource),), ())


def status(entity: str | None = "user:1", key: str = "call_count", resource: str = "api") -> LimitStatus:
    return LimitStatus(key, resource, entity, "system", 1, 1, 0, 1.0, 1.0)


def rows() -> list[tuple[datetime, str, str, str, str, int]]:
    limits.roll_up()
    found = Denial.objects.order_by("minute", "entity", "key")
    return [(one.minute, one.resource, one.bucket, one.entity, one.key, one.count) for one in found]


def refused(period: UsagePeriod) -> dict[tuple[datetime, str], int]:
    limits.roll_up()
    return {(one.start, one.entity): one.refused for one in UsageSnapshot.objects.filter(period=period)}


@pytest.mark.django_db
def test_refusals_are_counted_by_the_minute_with_the_first_and_the_last(noted: Denials, wall: Seconds) -> None:
    for seconds in (10, 20, 20, 45):
        wall.now += seconds
        noted.note(refusal())
    assert noted.flush() == 4
    assert [row[0::5] for row in rows()] == [(NOON, 3), (NOON + timedelta(minutes=1), 1)]
    one = Denial.objects.earliest("minute")
    assert (one.first, one.last) == (NOON + timedelta(seconds=10), NOON + timedelta(seconds=50))


@pytest.mark.django_db
def test_later_writes_are_added(noted: Denials, wall: Seconds) -> None:
    for seconds in (30, 10, -35):
        wall.now += seconds
        noted.note(refusal())
        noted.flush()
        assert sum(row[-1] for row in rows()) > 0
    one = Denial.objects.get()
    assert (one.count, one.first, one.last) == (3, NOON + timedelta(seconds=5), NOON + timedelta(seconds=40))


@pytest.mark.django_db
def test_snapshots_of_hours_and_days_count_rejections(noted: Denials, wall: Seconds) -> None:
    for _ in range(3):
        noted.note(refusal())
        noted.note(refusal("user:2"))
        noted.flush()
        wall.now += HOUR / 2
    later = NOON + timedelta(hours=1)
    users = ("user:1", "user:2")
    assert refused(UsagePeriod.HOUR) == {(NOON, user): 2 for user in users} | {(later, user): 1 for user in users}
    assert refused(UsagePeriod.DAY) == {(NOON.replace(hour=0), user): 3 for user in users}


@pytest.mark.django_db
def test_every_limit_that_refused_is_counted(noted: Denials) -> None:
    noted.note(Outcome(False, (status(), status(None, "tokens")), (status(key="passed"),)))
    noted.flush()
    assert [row[3:] for row in rows()] == [("", "tokens", 1), ("user:1", "call_count", 1)]


@pytest.mark.django_db
def test_names_that_a_database_cannot_store_are_counted_together(noted: Denials) -> None:
    for entity in ("a\0", "a\\x00", "\ud800"):
        noted.note(refusal(entity))
    noted.flush()
    assert [(row[3], row[5]) for row in rows()] == [("\\ud800", 1), ("a\\x00", 2)]


@pytest.mark.django_db
def test_clients_beyond_the_bound_are_counted_as_others(noted: Denials) -> None:
    for number in range(8):
        noted.note(refusal(f"user:{number}"))
    noted.note(refusal("user:0"))
    noted.flush()
    assert [row[2:4] + row[5:] for row in rows()] == [
        ("others", "", 3), ("entity", "user:0", 2), *(("entity", f"user:{number}", 1) for number in range(1, 5))
    ]  # fmt: skip


@pytest.mark.django_db
def test_number_of_counted_resources_is_bounded(noted: Denials) -> None:
    for number in range(300):
        noted.note(refusal(resource=f"made/up/{number}"))
    assert noted.waiting == 300
    noted.flush()
    assert len(rows()) == 5 + 100 + 1
    [last] = [row for row in rows() if row[1] == ""]
    assert last == (NOON, "", BucketKind.OTHERS, "", "", 300 - 105)


@pytest.mark.django_db(transaction=True)
def test_a_store_that_is_unavailable_loses_nothing(
    noted: Denials, caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    down = Unavailable()
    with registry.instead(lambda alias: down):
        for _ in range(3):
            noted.note(refusal())
            clock.advance(2)
        assert noted.waiting == 3
        assert caplog.text.count("rejection counts cannot be written") == 1
        down.is_down = False
        registry.forget_stores()  # with the circuit breaker, which is open
        clock.advance(2)
        assert noted.waiting == 0
        assert [row[5] for row in rows()] == [3]


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_down_loses_nothing(noted: Denials) -> None:
    noted.note(refusal())
    noted.flush()
    with missing("limits_app_denial"), pytest.raises(Exception, match="limits_app_denial"):
        limits.roll_up()
    assert UsageSnapshot.objects.count() == 0, "a batch is added in one transaction"
    assert [row[5] for row in rows()] == [1]


@pytest.mark.django_db
def test_without_a_store_that_counts_rejections_are_rolled_up_immediately(noted: Denials) -> None:
    store = MemoryStore()
    store.counting = False
    with registry.instead(lambda alias: store):
        noted.note(refusal())
        noted.note(refusal())
        assert noted.flush() == 2
    assert [(row.entity, row.count) for row in Denial.objects.all()] == [("user:1", 2)]
    assert refused(UsagePeriod.DAY) == {(NOON.replace(hour=0), "user:1"): 2}


@pytest.mark.django_db(transaction=True)
def test_they_are_written_within_a_second_without_being_asked(noted: Denials, clock: FakeClock) -> None:
    noted.note(refusal())
    noted.note(refusal())
    assert rows() == []
    clock.advance(1)
    assert [row[5] for row in rows()] == [2]
    noted.note(refusal())
    clock.advance(1)
    assert [row[5] for row in rows()] == [3]


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_writing_begins_after_the_commit(noted: Denials, clock: FakeClock) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        noted.note(refusal())
        _ = 1 / 0
    clock.advance(5)
    assert noted.waiting == 1, "the thread is not started after a rollback"
    with transaction.atomic():
        noted.note(refusal())
        clock.advance(5)
        assert noted.waiting == 2
    clock.advance(1)
    assert [row[5] for row in rows()] == [2]


@pytest.mark.django_db(transaction=True)
def test_remaining_counts_are_written_at_the_end_of_the_process(noted: Denials) -> None:
    noted.note(refusal())
    end_process(noted)
    assert [row[5] for row in rows()] == [1]


def test_an_end_without_a_store_is_an_end(noted: Denials) -> None:
    down = Unavailable()
    with registry.instead(lambda alias: down):
        noted.note(refusal())
        end_process(noted)
    registry.forget_stores()
    assert noted.waiting == 1


def test_the_end_of_a_process_waits_for_writes_for_a_bounded_time(noted: Denials) -> None:
    noted.exit_seconds = 0.01
    writing, go_on = Event(), Event()

    class Slow(MemoryStore):
        def add_rejections(self, rejections: RejectionCounts, namespace: str = "") -> None:
            writing.set()
            go_on.wait(10)

    slow = Slow()
    with registry.instead(lambda alias: slow), ThreadPoolExecutor(1) as executor:
        noted.note(refusal())
        executor.submit(noted.flush)
        assert writing.wait(10)
        noted.note(refusal())
        end_process(noted)
        assert noted.waiting == 1
        go_on.set()
    registry.forget_stores()


def test_while_tests_run_no_thread_writes(wall: Seconds, clock: FakeClock) -> None:
    noted = Denials(clock=clock, now=wall)
    noted.note(refusal())
    clock.advance(5)
    assert noted.waiting == 1


def test_where_no_thread_can_be_started_no_request_fails(wall: Seconds) -> None:
    writer.write_in_background(True)
    noted = Denials(now=wall)
    with no_more_threads():
        noted.note(refusal())
    assert noted.waiting == 1


def test_a_forked_child_writes_nothing_of_its_parents(noted: Denials) -> None:
    noted.note(refusal())
    assert exit_code_of_child(lambda: noted.waiting) == 0
    assert noted.waiting == 1


@pytest.mark.django_db
def test_without_usage_nothing_is_counted(noted: Denials, settings: Settings) -> None:
    settings.LIMITS = {"USAGE": False}
    noted.note(refusal())
    assert noted.waiting == 0


@pytest.mark.usefixtures("site")
def test_every_refusal_that_is_reported_is_counted() -> None:
    limits.set_resource_limits("api", [CallLimit(1, HOUR)])
    limits.set_entity_limits("tenant:1", [CallLimit(1, HOUR)], resource="api")
    told: list[Outcome] = []
    receiver = lambda outcome, **details: told.append(outcome)  # noqa: E731 - kept alive by its name
    signals.limit_exceeded.connect(receiver)
    try:
        for _ in range(3):
            limits.try_acquire("api", entity="user:1")
            limits.try_acquire("api", entity="tenant:1")
            limits.try_acquire({"api": None}, entity="user:2")
        with pytest.raises(TimeoutError):
            limits.acquire("api", entity="user:1", timeout=0.01)
    finally:
        signals.limit_exceeded.disconnect(receiver)
    denials.flush()
    assert [row[3:] for row in rows()] == [
        ("tenant:1", "call_count", 2), ("user:1", "call_count", 3), ("user:2", "call_count", 2)
    ]  # fmt: skip
    assert len(told) == 7


@pytest.mark.usefixtures("site")
def test_peek_counts_no_rejection() -> None:
    limits.set_resource_limits("api", [RateLimit("tokens", 5, HOUR)])
    assert limits.try_acquire("api", requested={"tokens": 5})
    assert not limits.check("api", requested={"tokens": 1}).allowed
    assert denials.waiting == 0
