"""Runs of limited tasks without a broker: as functions, eagerly, and what a worker does when things fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from time import monotonic, time
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import Celery, states
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError
from pytest_django import Settings

from limits_app import (
    CallLimit,
    InvalidRequest,
    LimitExceeded,
    LimitSet,
    LimitTimeout,
    RateLimit,
    ResourceLimit,
    StoreUnavailable,
    limits,
)
from limits_app.integrations.celery import LimitedTask, TaskRefused, limited_task
from limits_app.integrations.celery.task import PLACES, REQUEUED
from limits_app.integrations.celery.task_limits import TaskLimits, entered
from limits_app.policies import resolver
from limits_app.services.task_waiting import Waiting, a_little_later
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def app(settings: Settings, transactional_db: None) -> Iterator[Celery]:
    """An application whose broker is in memory, with limits of its own."""
    settings.LIMITS = {"STORE": "runs", "STORES": {"runs": {"KIND": "memory"}}}
    app = Celery("runs", broker="memory://", backend="cache+memory://", set_as_current=False)
    resolver.clear()
    yield app
    app.close()
    resolver.clear()


def count(app: Celery, resource: str, **options: Any) -> Any:
    """A task that says how much its limits have left."""

    @limited_task(resource, app=app, bind=True, name=f"count.{resource}", **options)
    def counting(self: LimitedTask, depth: int = 0) -> list[Any]:
        left = [status.remaining for status in self.limits.outcome.passed]
        return [*left, *(self(depth - 1) if depth else [])]

    return counting


def in_worker(task: Any, *args: Any, **request: Any) -> Any:
    """Run a task as a worker does."""
    task.push_request(id="one", args=args, kwargs={}, called_directly=False, **request)
    try:
        return task(*args)
    finally:
        task.pop_request()


def test_a_direct_call_is_charged_and_so_is_each_call_inside_it(app: Celery) -> None:
    limits.set_resource_limits("direct", [CallLimit.per_day(5)])
    task = count(app, "direct")
    assert task(2) == [4, 3, 2]
    assert in_worker(task, 1) == [1, 0]


def test_an_eager_call_is_charged_and_waits_only_as_long_as_it_may(app: Celery) -> None:
    limits.set_resource_limits("eager", [CallLimit.per_day(1)])
    task = count(app, "eager", patience_seconds=0.01)
    assert task.apply().get() == [0]
    with pytest.raises(LimitTimeout):
        task.apply().get()


def test_outside_of_a_task_limits_admit_everything(app: Celery) -> None:
    task = count(app, "outside")
    assert task.limits.outcome.allowed
    assert task.limits.entity is None
    assert repr(task.limits) == "<TaskLimits of None for None>"
    with pytest.raises(InvalidRequest):
        task.limits.acquire()


def test_a_task_may_ask_for_more_and_give_back_early(app: Celery) -> None:
    limits.set_resource_limits("more", [ResourceLimit("desk", 2), RateLimit("tpm", 100, 3600)])

    @limited_task("more", app=app, bind=True)
    def more(self: LimitedTask) -> list[Any]:
        self.limits.update({"tpm": 1})
        with self.limits.acquire({"tpm": 0, "desk": 1}) as second:
            second.update({"tpm": 0})
            first = bool(self.limits.try_acquire({"desk": 1}))
        self.limits.release()
        return [first, self.limits.config, limits.status("more").limits]

    first, config, _ = more()
    assert (first, config) == (False, {})


def test_a_refused_task_is_sent_again_as_it_was_and_counts_no_retry(app: Celery) -> None:
    limits.set_resource_limits("again", [CallLimit.per_hour(60, burst=1)])
    task = count(app, "again", acks_late=True, max_retries=0)
    in_worker(task)
    with pytest.raises(Retry) as retry:
        in_worker(task, retries=2, headers={"mine": 1, REQUEUED: 4}, chord={"c": 1}, group="g", expires=None)
    options = retry.value.sig.options
    assert (options["task_id"], options["retries"], options["group_id"], options["chord"]) == ("one", 2, "g", {"c": 1})
    [[place, delay]] = options["headers"].pop(PLACES).values()
    assert (options["headers"], delay) == ({"mine": 1, REQUEUED: 5}, 0)
    assert 0 <= place - time() * 1_000_000 <= 62_000_000
    assert 55 <= options["countdown"] <= 62


def test_retry_of_an_admitted_task_takes_a_place_of_its_own(app: Celery) -> None:
    limits.set_resource_limits("own", [CallLimit.per_hour(60)])

    @limited_task("own", app=app, bind=True, name="own.retry")
    def failing(self: LimitedTask) -> None:
        raise self.retry(countdown=1)

    with pytest.raises(Retry) as retry:
        in_worker(failing, headers={"mine": 1, PLACES: {"a line": [1, 0]}})
    assert retry.value.sig.options["headers"] == {"mine": 1}


def test_task_joins_a_line_without_being_tried_while_others_are_rejected(app: Celery) -> None:
    limits.set_resource_limits("lined", [CallLimit.per_hour(60, burst=1), ResourceLimit("slots", 1)])
    task = count(app, "lined")
    in_worker(task)
    places = []
    for _ in range(3):
        with pytest.raises(Retry) as retry:
            in_worker(task)
        places += [place for place, _ in retry.value.sig.options["headers"][PLACES].values()]
    assert places == sorted(places)
    limits.roll_up()
    assert [denied.count for denied in limits.denials("lined")] == [1]


def test_task_that_is_a_little_early_waits_for_its_turn(app: Celery) -> None:
    limits.set_resource_limits("early", [CallLimit.per_second(4, burst=1)])
    task = count(app, "early")
    in_worker(task)
    with pytest.raises(Retry) as retry:
        in_worker(task)
    again = retry.value.sig.options
    began = monotonic()
    in_worker(task, headers=again["headers"])
    assert monotonic() - began >= again["countdown"] - 0.1
    with pytest.raises(Retry):
        in_worker(task)  # a new one


def test_what_the_body_is_refused_counts_as_if_it_had_been_asked_before(app: Celery) -> None:
    limits.set_resource_limits("later", [RateLimit("tpm", 10, 60)])

    @app.task(base=LimitedTask, bind=True, name="later")
    def later(self: LimitedTask, tokens: int) -> bool:
        with self.limits.acquire({"tpm": tokens}, resource="later") as acquisition:
            acquisition.update({"tpm": tokens})
        return True

    assert in_worker(later, 10)
    with pytest.raises(Retry):
        in_worker(later, 1)
    with pytest.raises(TaskRefused):
        in_worker(later, 11)


@pytest.mark.parametrize("options", [{}, {"dont_autoretry_for": (KeyError,)}], ids=["alone", "beside_others"])
def test_automatic_retries_are_not_used_up_by_refusals(app: Celery, options: dict[str, Any]) -> None:
    name = f"auto.{len(options)}"
    limits.set_resource_limits(name, [RateLimit("tpm", 10, 60)])

    @app.task(base=LimitedTask, bind=True, name=name, autoretry_for=(Exception,), max_retries=2, **options)
    def auto(self: LimitedTask, tokens: int) -> bool:
        if not tokens:
            raise ConnectionError("not a refusal")
        with self.limits.acquire({"tpm": tokens}, resource=name) as acquisition:
            acquisition.update({"tpm": tokens})
        return True

    @app.task(base=LimitedTask, bind=True, name=f"own.{name}", max_retries=2)
    def own(self: LimitedTask, tokens: int, countdown: float | None = None) -> None:
        try:
            self.limits.acquire({"tpm": tokens}, resource=name)
        except LimitExceeded as error:
            raise self.retry(exc=error, countdown=countdown) from error

    assert in_worker(auto, 10)
    for tokens, counted in ((1, 1), (0, 2)):
        with pytest.raises(Retry) as retry:
            in_worker(auto, tokens, retries=1)
        assert retry.value.sig.options["retries"] == counted
    with pytest.raises(TaskRefused):
        in_worker(auto, 11)
    with pytest.raises(TaskRefused):
        in_worker(own, 11)
    for countdown, least in ((None, 5), (1, 5), (90, 90)):
        with pytest.raises(Retry) as retry:
            in_worker(own, 1, countdown, retries=1)
        assert (retry.value.sig.options["retries"], least <= retry.value.when <= least * 1.4) == (1, True)
    for run in (auto, lambda tokens: auto.apply((tokens,)).get()):
        with pytest.raises(LimitExceeded):
            run(1)


class Down(MemoryStore):
    """A store that is unavailable."""

    def acquire(self, claim: Any) -> bool:
        raise StoreUnavailable("down", retry_after=3)

    def settle(self, claim: Any, changes: Any) -> None:
        raise StoreUnavailable("down")


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (Exception,), "max_retries": 0}], ids=["plain", "retrying"])
def test_a_store_that_is_down_when_the_body_asks_uses_up_no_retry(app: Celery, options: dict[str, Any]) -> None:
    @app.task(base=LimitedTask, bind=True, name=f"asking.{len(options)}", **options)
    def asking(self: LimitedTask) -> None:
        self.limits.acquire(resource="asking")

    limits.set_resource_limits("asking", [CallLimit.per_day(1)])
    with registry.instead(lambda alias: Down()):
        with pytest.raises(Retry) as retry:
            in_worker(asking, retries=1)
        with pytest.raises(StoreUnavailable):
            asking()
    assert retry.value.sig.options["retries"] == 1
    assert retry.value.sig.options["headers"] == {REQUEUED: 1}


async def coroutine(number: int) -> int:
    return number


def generator(number: int) -> Iterator[int]:
    yield number


async def asynchronous_generator(number: int) -> AsyncIterator[int]:
    yield number


@pytest.mark.parametrize("body", [coroutine, generator, asynchronous_generator])
def test_a_body_that_celery_would_call_and_never_run_is_refused_where_it_is_defined(
    app: Celery, body: Callable[..., Any]
) -> None:
    class Defined(LimitedTask):
        name = f"defined.{body.__name__}"
        run = staticmethod(body)

    for define in (limited_task("bodies"), limited_task("bodies", app=app)):
        with pytest.raises(TypeError, match=f"Celery cannot run {body.__name__} .* plain function"):
            define(body)
    with pytest.raises(TypeError, match="plain function"):
        app.register_task(Defined())


def test_a_coroutine_runs_in_a_plain_function(app: Celery) -> None:
    @limited_task("bodies", app=app)
    def plain(number: int) -> int:
        return async_to_sync(coroutine)(number)

    assert plain(3) == 3


def test_a_blocked_task_does_not_wait(app: Celery) -> None:
    limits.set_resource_limits("shut", [], effect="blocked")
    with pytest.raises(TaskRefused, match="blocked"):
        in_worker(count(app, "shut"))

    @app.task(base=LimitedTask, bind=True, name="knocking")
    def knocking(self: LimitedTask) -> None:
        self.limits.acquire(resource="shut")

    with pytest.raises(TaskRefused, match="blocked"):
        in_worker(knocking)


def test_no_message_waits_longer_than_the_broker_grants(app: Celery) -> None:
    limits.set_resource_limits("capped", [CallLimit.per_day(1)])
    task = count(app, "capped", acks_late=True)
    in_worker(task)
    for granted, most in ((None, 900), (100, 50)):
        app.conf.broker_transport_options = {} if granted is None else {"visibility_timeout": granted}
        with pytest.raises(Retry) as retry:
            in_worker(task)
        assert most * 0.9 <= retry.value.when <= most
    task.longest_countdown = 10
    with pytest.raises(Retry) as retry:
        in_worker(task)
    assert 9 <= retry.value.when <= 10


def test_a_final_refusal_is_an_expected_error_to_celery(app: Celery) -> None:
    """Celery logs those without a traceback."""
    assert count(app, "expected").throws == (TaskRefused,)
    assert count(app, "expected.too", throws=(KeyError,)).throws == (TaskRefused, KeyError)


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_task_that_cannot_be_sent_again_goes_back_where_that_is_possible(acks_late: bool) -> None:
    nobody = Celery("nobody", broker="amqp://127.0.0.1:1//", set_as_current=False, task_publish_retry=False)
    nobody.conf.broker_transport_options = {"max_retries": 0, "interval_start": 0, "interval_step": 0}
    resource = f"unsent.{acks_late}"
    limits.set_resource_limits(resource, [CallLimit.per_day(1)])
    task = count(nobody, resource, acks_late=acks_late)
    in_worker(task)
    with pytest.raises(Reject if acks_late else OperationalError):
        in_worker(task)


def test_a_store_that_is_down_makes_tasks_wait_and_fails_none_that_is_done(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    limits.set_resource_limits("down", [ResourceLimit("desk", 1)])
    task = count(app, "down", acks_late=True)
    held = LimitSet([ResourceLimit("desk", 1)], store=MemoryStore()).try_acquire()
    held.limit_set.store = Down()
    with entered(TaskLimits(held)):
        pass
    assert "could not be settled" in caplog.text
    with registry.instead(lambda alias: Down()), pytest.raises(Retry):
        in_worker(task)


def test_a_task_that_was_queued_again_and_is_done_does_not_run_twice(app: Celery) -> None:
    app.conf.worker_deduplicate_successful_tasks = True
    task = count(app, "twice", acks_late=True)
    type(task.backend).persistent = True
    task.backend.store_result("one", None, states.SUCCESS)
    with pytest.raises(Ignore):
        in_worker(task, headers={REQUEUED: 1})
    assert in_worker(task) == []


def test_polls_for_a_permit_become_rarer() -> None:
    slots = LimitSet([ResourceLimit("slots", 1)], store=MemoryStore())
    assert slots.try_acquire()
    with slots.try_acquire({"slots": 1}) as refused:
        waits = [Waiting({}).seconds_to_retry(refused, tries) for tries in (0, 1, 2, 3, 4, 50)]
    for wait, polled in zip(waits, (0.25, 0.5, 1, 2, 4, 4), strict=True):
        assert polled <= wait <= 1.1 * polled + 0.01


def test_jitter_is_a_tenth_and_at_most_a_second() -> None:
    assert all(10 <= a_little_later(10) <= 11 for _ in range(100))
    assert all(0 <= a_little_later(0) <= 0.01 for _ in range(100))
    assert all(1e6 <= a_little_later(1e6) <= 1e6 + 1 for _ in range(100))
