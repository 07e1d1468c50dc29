"""Whoever asks in the middle of a step, and what another process has done to the file meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit
from limits_app.core.store import Store
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.process.files import file_number, set_aside
from limits_app.testing import FakeClock


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
