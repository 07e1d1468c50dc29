"""Steps that get in each other's way: the same again, at another time each, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from limits_app.core.errors import StoreUnavailable
from limits_app.stores.database import steps
from limits_app.stores.database.links import Failure
from limits_app.stores.database.steps import Steps


class Deadlock(Exception):
    """What a driver raises for those whom the database has chosen to give way."""


class Link:
    """A link whose step is given way to others so many times."""

    error = Deadlock
    promise = None

    def __init__(self, deadlocks: int) -> None:
        self.deadlocks = deadlocks
        self.tried = 0

    def step(self) -> str:
        self.tried += 1
        if self.tried <= self.deadlocks:
            raise Deadlock("try again")
        return "done"

    def meaning(self, _error: Exception) -> Failure:
        return Failure(transient=True, lost=False)

    def is_alive(self) -> bool:
        return True


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was paused between tries, without a pause."""
    paused: list[float] = []
    monkeypatch.setattr(steps, "sleep", paused.append)
    return paused


def taken(link: Link) -> object:
    given: list[Link] = []
    pool: Any = SimpleNamespace(
        alias="limits",
        is_busy=False,
        kind=SimpleNamespace(takes_turns=False),
        take=lambda: link,
        give=given.append,
    )
    try:
        return Steps(pool).take(lambda link: link.step())  # type: ignore[attr-defined]
    finally:
        assert given == [link] * link.tried


@pytest.mark.parametrize("deadlocks", [0, 1, 19])
def test_whoever_gives_way_tries_again_at_another_time(deadlocks: int, paused: list[float]) -> None:
    assert taken(Link(deadlocks)) == "done"
    assert len(paused) == deadlocks
    assert all(0 <= pause <= tried / 1000 for tried, pause in enumerate(paused))


def test_whoever_gives_way_each_time_gives_up(paused: list[float]) -> None:
    with pytest.raises(StoreUnavailable, match="'limits' could not do it in 20 tries: try again"):
        taken(Link(100))
    assert sum(paused) < 0.2
