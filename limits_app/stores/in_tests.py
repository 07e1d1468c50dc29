"""The stores while a test runner runs in this process: in memory, and unused again when another test begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from limits_app import signals
from limits_app.acquiring import on_fork
from limits_app.conf import test_runner
from limits_app.engine.locks import RLock
from limits_app.stores.memory import MemoryStore
from limits_app.stores.steps import Steps

if TYPE_CHECKING:
    from limits_app.engine import Amounts, Changes, Claim

R = TypeVar("R")


class TestStores:
    """One store for each alias, shared by all threads of a test, those of a live server included."""

    def __init__(self) -> None:
        self._stores: dict[str, _TestStore] = {}
        self._test: object | None = None
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make a new lock in a child process, which has the test of its parent until it begins another one."""
        self._lock = RLock()  # receivers of the signal may use a store

    def store(self, alias: str) -> MemoryStore:
        """Return the store of an alias, opened on first use."""
        self.begin_test()
        with self._lock:
            return self._stores.setdefault(alias, _TestStore(self))

    def begin_test(self) -> None:
        """Forget what an earlier test has counted, once another one runs."""
        test = test_runner.current_test()
        if test is None or test is self._test:
            return
        with self._lock:
            if test is self._test:
                return
            self._test = test
            for store in self._stores.values():
                store.clear()
            signals.test_began.send_robust(sender=None)


class _TestSteps(Steps):
    """Steps before each of which a memory store looks whether another test has begun."""

    def __init__(self, settle: Callable[[Claim, Amounts], object], begin_test: Callable[[], None]) -> None:
        super().__init__(settle)
        self._begin_test = begin_test

    def run(self, work: Callable[..., R], *args: object) -> R:
        self._begin_test()
        return super().run(work, *args)


class _TestStore(MemoryStore):
    """A memory store that is unused again when another test begins."""

    def __init__(self, stores: TestStores) -> None:
        self._all = stores
        super().__init__()

    def new_steps(self) -> Steps:
        return _TestSteps(self.settle, self._all.begin_test)

    def acquire(self, claim: Claim) -> bool:
        self._all.begin_test()
        return super().acquire(claim)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        self._all.begin_test()
        super().settle(claim, changes)

    def version(self, namespace: str = "") -> int:
        self._all.begin_test()
        return super().version(namespace)

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        self._all.begin_test()
        return super().changes_since(version, namespace)


test_stores: Final = TestStores()
