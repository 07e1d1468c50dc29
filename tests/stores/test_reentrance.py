"""Calls within a step of the same thread, and what another process has done to the file meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from limits_app.core import engine
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit
from limits_app.core.plan import ScopedLimits
from limits_app.core.record import Record
from limits_app.core.store import Store
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.process.files import data_file, file_number, set_aside
from limits_app.stores.process.state_file import Txn
from limits_app.testing import FakeClock
from tests.stores.support import entries, limits_of, used


class Asking(FakeClock):
    """A clock that does something when it is read, as a signal handler may."""

    deed: Callable[[], object] | None = None

    def __call__(self) -> int:
        if self.deed is not None:
            deed, self.deed = self.deed, None
            deed()
        return super().__call__()


@pytest.mark.parametrize("kind", ["memory", "process"])
def test_nobody_is_admitted_in_the_middle_of_a_step(kind: str, tmp_path: Path) -> None:
    clock = Asking()
    store: Store = MemoryStore(clock=clock)
    if kind == "process":
        store = ProcessStore(tmp_path, clock=clock, map_megabytes=1)
    limits = LimitSet([CallLimit(2, 3600)], store=store)

    def ask() -> None:
        with pytest.raises(StoreUnavailable, match="within a step"):
            limits.try_acquire()

    clock.deed = ask
    assert [bool(limits.try_acquire()) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("kind", ["memory", "process"])
def test_a_release_within_a_step_that_fails_is_settled_after_it(kind: str, tmp_path: Path) -> None:
    clock = Asking()
    store: Store = MemoryStore(clock=clock)
    if kind == "process":
        store = ProcessStore(tmp_path, clock=clock, map_megabytes=1)
    limits = limits_of(store, RateLimit("x", 10, 86_400))
    acquired = limits.try_acquire({"x": 4})
    acquired.update({"x": 0})

    def release_and_fail() -> None:
        acquired.release()
        raise KeyboardInterrupt

    clock.deed = release_and_fail
    with pytest.raises(KeyboardInterrupt):
        limits.try_acquire({"x": 1})
    store.version()  # the process store makes up for it after the next step
    assert used(limits, "x") == 0


def test_a_scope_whose_first_step_was_interrupted_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(clock=FakeClock())
    insert = store._insert

    def interrupted(scope: ScopedLimits, record: Record, now: int) -> None:
        monkeypatch.setattr(store, "_insert", insert)
        store._to_check.append(scope.key)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_insert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        limits_of(store, CallLimit(2, 3600), entity="first").try_acquire()
    for entity in ("second", "third", "first"):
        assert limits_of(store, CallLimit(2, 3600), entity=entity).try_acquire()


@pytest.mark.parametrize("verb", ["collect_counts", "reset"])
def test_within_a_step_of_memory_nothing_else_reads_or_changes_records(verb: str) -> None:
    clock = Asking()
    store = MemoryStore(clock=clock)
    limits = LimitSet([CallLimit(2, 3600)], store=store)
    asked = {"collect_counts": store.collect_counts, "reset": lambda: store.reset(["scope"])}[verb]

    def ask() -> None:
        with pytest.raises(StoreUnavailable, match="within a step"):
            asked()

    clock.deed = ask
    assert limits.try_acquire()
    assert clock.deed is None


def test_a_file_that_another_process_has_replaced_stays(tmp_path: Path) -> None:
    store = ProcessStore(tmp_path, map_megabytes=1)
    state = tmp_path / "state"
    number = file_number(state)
    set_aside(state, ValueError("damaged"), number + 1)
    assert file_number(state) == number
    store.close()


def test_a_file_may_be_opened_anew_before_it_is_open(tmp_path: Path) -> None:
    store = ProcessStore(tmp_path, map_megabytes=1)
    limits = LimitSet([CallLimit(2, 3600)], store=store)
    assert limits.try_acquire()
    for _ in range(2):
        store._file._close()
    assert [bool(limits.try_acquire()) for _ in range(2)] == [True, False]
    store.close()


class TestAReleaseWithinAStep:
    @pytest.fixture
    def clock(self) -> Asking:
        return Asking()

    @pytest.fixture
    def process_store(self, tmp_path: Path, clock: Asking) -> Iterator[ProcessStore]:
        store = ProcessStore(tmp_path, clock=clock, map_megabytes=1)
        yield store
        store.close()

    def test_it_is_settled_once_and_after_the_step(self, process_store: ProcessStore, clock: Asking) -> None:
        limits = limits_of(process_store, RateLimit("x", 10, 3600))
        acquired = limits.try_acquire({"x": 4})
        acquired.update({"x": 1})

        def release() -> None:
            acquired.release()
            assert acquired.claim.settled
            process_store.settle(acquired.claim, [-3 * limits.scoped[0].schema.rules[0].parts_per_unit])

        clock.deed = release
        assert limits.try_acquire({"x": 2})
        acquired.release()
        assert used(limits, "x") == 3

    def test_it_is_settled_later_when_the_file_cannot_be_used(
        self,
        process_store: ProcessStore,
        clock: Asking,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        limits = limits_of(process_store, RateLimit("x", 10, 3600))
        acquired = limits.try_acquire({"x": 4})
        acquired.update({"x": 1})
        clock.deed = acquired.release

        def fail(*_: object) -> bool:
            raise StoreUnavailable("no room")

        with monkeypatch.context() as failing:
            failing.setattr(engine, "settle", fail)
            assert limits.try_acquire({"x": 2})
            assert acquired.claim.settled
            assert used(limits, "x") == 6
        assert "repeated after the next step" in caplog.text
        assert limits.try_acquire({"x": 1})
        assert used(limits, "x") == 4

    def test_a_call_that_fails_is_logged_and_made_once(
        self, process_store: ProcessStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls: list[int] = []

        def fail() -> None:
            calls.append(1)
            raise ValueError("of a hook")

        process_store._file.do_later(fail)
        for _ in range(2):
            process_store.version()
        assert calls == [1]
        assert "of a hook" in caplog.text

    @pytest.mark.parametrize("by_another_thread", [False, True])
    def test_a_call_that_takes_steps_is_made_once(self, process_store: ProcessStore, by_another_thread: bool) -> None:
        calls: list[int] = []

        def make() -> None:
            calls.append(process_store.version())
            if by_another_thread:  # which has removed the call meanwhile
                process_store._file._later.clear()

        process_store._file.do_later(make)
        process_store.version()
        assert process_store.version() == 0
        assert calls == [0]

    def test_a_settling_that_was_undone_is_repeated_after_the_file_was_mended(
        self, process_store: ProcessStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = limits_of(process_store, RateLimit("x", 10, 3600))
        acquired = limits.try_acquire({"x": 4})
        acquired.update({"x": 1})
        failures = iter([lmdb.MapResizedError("larger elsewhere")])

        def fail_once(*_: object) -> bool:
            for error in failures:
                raise error
            return False

        monkeypatch.setattr("limits_app.stores.process.store.any_watchers", fail_once)
        acquired.release()
        assert used(limits, "x") == 1


class TestUndo:
    def test_a_step_that_was_committed_is_not_undone(self, process_store: ProcessStore) -> None:
        undone: list[bytes] = []

        def interrupted(txn: Txn, key: bytes) -> None:
            txn.put(key, b"value")
            txn.commit()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            process_store._file.transact(interrupted, b"key", undo=undone.append)
        assert undone == []
        assert entries(process_store, b"key") == [b"key"]

    def test_a_step_that_was_interrupted_before_is_undone(self, process_store: ProcessStore) -> None:
        undone: list[bytes] = []

        def interrupted(txn: Txn, key: bytes) -> None:
            txn.put(key, b"value")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            process_store._file.transact(interrupted, b"key", undo=undone.append)
        assert set(undone) == {b"key"}
        assert entries(process_store, b"key") == []

    def test_a_step_whose_file_cannot_be_opened_is_undone(self, process_store: ProcessStore) -> None:
        undone: list[bytes] = []
        process_store.close()
        data_file(process_store.directory / "state").unlink()
        data_file(process_store.directory / "state").mkdir()
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            process_store._file.transact(lambda _txn, _key: None, b"key", undo=undone.append)
        assert set(undone) == {b"key"}
        data_file(process_store.directory / "state").rmdir()
