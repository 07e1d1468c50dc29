"""What finalizers and signal handlers release within a step of their thread."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.stores.memory import MemoryStore
from limits_app.stores.steps import LateReleases
from tests.stores.support import limits_of


class TakenMeanwhile(deque[Any]):
    """Releases of which another thread takes the last ones before the calling one does."""

    def popleft(self) -> Any:
        if len(self) == 1:
            self.clear()
        return super().popleft()


@pytest.mark.parametrize("number", [1, 3])
def test_another_thread_that_settles_the_last_release_is_no_error_of_a_step(number: int) -> None:
    settled = []
    late = LateReleases(lambda claim, _changes: settled.append(claim))
    claims = [limits_of(MemoryStore(), CallLimit(9, 60)).prepare(None).claim for _ in range(number)]
    late.waiting = TakenMeanwhile([(claim, [-1]) for claim in claims])
    late.settle_all()
    assert settled == claims[:-1]
    assert not late.waiting


def test_failed_settlements_wait_in_their_order() -> None:
    settled, is_down = [], [True]

    def settle(claim: object, _changes: object) -> None:
        if is_down:
            raise StoreUnavailable("no answer")
        settled.append(claim)

    late = LateReleases(settle)
    claims = [limits_of(MemoryStore(), CallLimit(9, 60)).prepare(None).claim for _ in range(3)]
    late.waiting.extend([(claim, [-1]) for claim in claims])
    late.settle_all()
    assert settled == []
    is_down.clear()
    late.settle_all()
    assert settled == claims
