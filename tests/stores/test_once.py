"""Who settles a claim: one at a time, and nobody who comes after that."""

from __future__ import annotations

from limits_app.core.limits import RateLimit
from limits_app.core.plan import Claim
from limits_app.stores.in_thread import Settling
from limits_app.stores.memory import MemoryStore
from tests.stores.support import limits_of


def claim() -> Claim:
    return limits_of(MemoryStore(), RateLimit("tpm", 10, 60)).prepare({"tpm": 1}).claim


def test_one_settles_and_others_may_when_that_has_failed() -> None:
    settling, one, other = Settling(), claim(), claim()
    assert settling.begin(one)
    assert not settling.begin(one)
    assert settling.begin(other)
    settling.end(one)
    assert settling.begin(one)


def test_nobody_settles_what_is_settled() -> None:
    settling, one = Settling(), claim()
    one.settled = True
    assert not settling.begin(one)
    assert not settling._claims


def test_a_caller_that_may_not_have_begun_ends_only_what_is_its_own() -> None:
    settling, one, first, second = Settling(), claim(), object(), object()
    settling.end(one, first)
    assert settling.begin(one, first)
    assert not settling.begin(one, second)
    settling.end(one, second)
    assert not settling.begin(one, second)
    settling.end(one, first)
    assert settling.begin(one, second)


def test_who_has_looked_before_somebody_ended_settles_nothing() -> None:
    class Late(Claim):
        """Settled by somebody else between two looks."""

        looks = 0

        @property  # type: ignore[override]  # where others have a slot
        def settled(self) -> bool:
            self.looks += 1
            return self.looks > 1

    settling, late = Settling(), Late.__new__(Late)
    assert not settling.begin(late)
    assert not settling._claims
