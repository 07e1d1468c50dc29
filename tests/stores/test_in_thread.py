"""Work of tasks in threads: cancelled tasks leave nothing behind, and a claim is settled by one caller at a time."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from limits_app.engine.claims import Claim
from limits_app.engine.errors import StoreBlocked, StoreUnavailable
from limits_app.engine.limits import ResourceLimit
from limits_app.engine.plan import Amounts
from limits_app.stores.in_thread import give_back, in_thread, keep_unsettled
from tests.acquiring.test_remote_stores import FarStore
from tests.stores.support import limits_of

PATIENCE = 20


class Work:
    """Something that takes as long as a test wants."""

    def __init__(self) -> None:
        self.begun, self.may_end = Event(), Event()
        self.told: list[str | StoreUnavailable] = []
        self.error: StoreUnavailable | None = None

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return "done"

    def task(self) -> asyncio.Task[str]:
        return asyncio.create_task(in_thread(self, self.told.append))


@pytest.fixture
def work() -> Work:
    return Work()


def test_the_result_is_the_task_s(work: Work) -> None:
    work.may_end.set()
    assert asyncio.run(in_thread(work, work.told.append)) == "done"
    assert work.told == []


def test_the_error_is_the_task_s(work: Work) -> None:
    work.error = StoreUnavailable("out of reach")
    work.may_end.set()

    async def scenario() -> None:
        with pytest.raises(StoreUnavailable):
            await work.task()

    asyncio.run(scenario())
    assert work.told == []


@pytest.mark.parametrize("error", [None, StoreUnavailable("out of reach")])
@pytest.mark.parametrize("times", [1, 2])
def test_a_task_that_is_cancelled_is_not_kept_waiting_and_how_it_ends_is_reported(
    work: Work, times: int, error: StoreUnavailable | None
) -> None:
    work.error = error

    async def scenario() -> None:
        task = work.task()
        await asyncio.to_thread(work.begun.wait, PATIENCE)
        for _ in range(times):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.told == []
        work.may_end.set()

    asyncio.run(scenario())  # which waits for threads
    assert work.told == [error or "done"]


def test_an_unread_result_is_reported(work: Work) -> None:
    async def scenario() -> None:
        task = work.task()
        await asyncio.sleep(0)  # the task waits for the thread
        work.may_end.set()
        # The loop does not run meanwhile, so the task does not know that it is done.
        with ThreadPoolExecutor(1) as executor:
            executor.submit(work.begun.wait, PATIENCE).result(PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert work.told == ["done"]


def test_work_that_has_not_begun_is_done_all_the_same(work: Work) -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        other = Work()
        before = other.task()
        task = work.task()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other.may_end.set()
        await before

    work.may_end.set()
    asyncio.run(scenario())
    assert work.told == ["done"]


def test_errors_of_cleanup_are_logged(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: object) -> None:
        raise OSError("no way back")

    async def scenario() -> None:
        task = asyncio.create_task(in_thread(work, fails))
        await asyncio.to_thread(work.begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        work.may_end.set()

    asyncio.run(scenario())
    assert "could not be released" in caplog.text


class Gone(FarStore):
    """A store that settles nothing any more."""

    def settle(self, claim: Claim, changes: Amounts) -> None:
        raise StoreUnavailable("out of reach")


def test_what_a_cancelled_task_was_given_is_released() -> None:
    store = FarStore()
    limits = limits_of(store, ResourceLimit("db", 1))
    give_back(store, limits.try_acquire().claim)
    assert limits.get_stats()["db"]["holders"] == 0
    give_back(store, None)
    give_back(store, StoreUnavailable("out of reach"))


def test_failed_release_is_settled_later_or_is_an_error() -> None:
    store = Gone()
    claim = limits_of(store, ResourceLimit("db", 1)).try_acquire().claim
    with pytest.raises(StoreUnavailable):
        give_back(store, claim)
    later: list[tuple[Claim, Amounts]] = []
    store.settle_later = lambda claim, changes: later.append((claim, changes))
    give_back(store, claim)
    assert later == [(claim, [-1])]
    keep_unsettled(store, claim, [-1], "settled")
    assert len(later) == 1


@pytest.mark.parametrize("error", [StoreUnavailable("out of reach"), StoreBlocked("in a step"), OSError("bug")])
def test_asyncio_complains_of_no_error_that_a_cancelled_task_left(
    work: Work, caplog: pytest.LogCaptureFixture, error: StoreUnavailable
) -> None:
    work.error = error

    async def scenario() -> None:
        tasks = [work.task() for _ in range(3)]
        await asyncio.to_thread(work.begun.wait, PATIENCE)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        work.may_end.set()

    asyncio.run(scenario())
    gc.collect()
    assert [record.name for record in caplog.records if record.name == "asyncio"] == []


def test_another_error_after_a_cancellation_releases_nothing_and_is_logged(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    work.error = OSError("bug")  # type: ignore[assignment]  # not of a store

    async def scenario() -> None:
        task = work.task()
        await asyncio.to_thread(work.begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        work.may_end.set()

    asyncio.run(scenario())
    assert work.told == []
    assert "the store failed after its task was cancelled" in caplog.text
