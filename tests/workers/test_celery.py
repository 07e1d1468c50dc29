"""Workers in the processes of real Celery workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from celery import Celery, current_app

from limits_app.workers import WorkerPool, gather, in_celery
from limits_app.workers.in_celery import InCelery
from tests.celery.site import PATIENCE, CelerySite, celery_site
from tests.servers.redis import until
from tests.workers.people import Clerk, Mortal, memory_set

pytestmark = pytest.mark.product


@pytest.fixture(scope="module")
def site() -> Iterator[CelerySite]:
    """The application of this process sends to a site with one worker."""
    with celery_site() as site:
        site.start_worker(processes=2)
        site.until_ready()
        app = current_app._get_current_object()
        before = app.conf.broker_url, app.conf.result_backend
        site.celery.set_current()
        yield site
        app.set_current()
        assert (app.conf.broker_url, app.conf.result_backend) == before


@pytest.fixture
def clerk(site: CelerySite) -> Iterator[WorkerPool[Clerk]]:
    with Clerk.options(mode="celery", num_retries=3, retry_wait=0).init("Bob") as pool:
        yield pool


def test_calls_run_in_other_processes_and_return_their_results(clerk: WorkerPool[Clerk]) -> None:
    assert gather([clerk.say_name() for _ in range(10)], timeout=PATIENCE) == ["Bob"] * 10
    assert clerk.where().result(PATIENCE)[0] != os.getpid()


def test_objects_and_errors_travel_as_they_are(clerk: WorkerPool[Clerk]) -> None:
    assert clerk.tell({1, 2}).result(PATIENCE)[-1] == {1, 2}
    with pytest.raises(LookupError, match="not this time"):
        clerk.fail("not this time").result(PATIENCE)
    with Mortal.options(mode="celery").init() as mortal, pytest.raises(RuntimeError, match="one and two"):
        mortal.raise_what_cannot_travel().result(PATIENCE)


def test_retries_are_made_where_the_worker_is(site: CelerySite) -> None:
    with Clerk.options(mode="celery", num_retries=2, retry_wait=0).init("Retried") as clerk:
        assert clerk.fail_times(2).result(PATIENCE) == 3


def test_stopping_ends_running_and_waiting_calls(site: CelerySite) -> None:
    mortal = Mortal.options(mode="celery").init()
    calls = [mortal.wait_for_ever() for _ in range(5)]
    until(lambda: mortal.get_pool_stats()["submission_queues"][0]["in_flight"] == 3, "nothing is handed on")
    mortal.stop(timeout=1)
    assert all(call.done() and (call.cancelled() or call.exception() is not None) for call in calls)


@pytest.mark.parametrize("at_once", [1, 3])
def test_calls_sent_during_a_stop_are_ended_too(
    site: CelerySite, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(in_celery, "_MAX_THREADS", at_once)
    begun, go_on, send = Event(), Event(), Celery.send_task

    def send_late(app: Celery, *args: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return send(app, *args, **options)

    monkeypatch.setattr(Celery, "send_task", send_late)
    mortal = Mortal.options(mode="celery").init()
    calls = [mortal.wait_for_ever() for _ in range(3)]
    assert begun.wait(PATIENCE)
    interrupt = InCelery.interrupt
    monkeypatch.setattr(InCelery, "interrupt", lambda worker: (interrupt(worker), go_on.set()))
    mortal.stop(timeout=0)
    assert all(call.done() for call in calls)
    with Clerk.options(mode="celery").init("Bob") as clerk:
        assert gather([clerk.say_name() for _ in range(4)], timeout=PATIENCE) == ["Bob"] * 4
    inspect = site.celery.control.inspect
    until(lambda: not any((inspect().active() or {}).values()), "somebody waits for ever")


def test_a_set_in_memory_cannot_be_sent(site: CelerySite) -> None:
    with pytest.raises(ValueError, match="each of which would use a separate MemoryStore"):
        Clerk.options(mode="celery", limits=memory_set()).init()
