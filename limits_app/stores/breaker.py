"""The circuit breaker: a store that fails is left alone, asked now and then, and gone back to little by little.

As long as nothing fails a breaker is calm: nobody asks it, and nothing is counted. The first failure wakes it, and
from then on it counts. When too many calls fail it opens, and lets nobody through. A probe that succeeds opens it
half: then one call passes, two more for each that succeeds, and after some of these it closes and is calm again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Final

from limits_app.core.breaking import SLICES, BreakerState, RecentCalls
from limits_app.core.clock import Clock
from limits_app.core.errors import LimitExceeded, StaleConfiguration, StoreBlocked, StoreUnavailable
from limits_app.core.runtime import on_fork

__all__ = ["TROUBLED", "Breaker", "BreakerRules", "BreakerState"]

TROUBLED: Final[set[Breaker]] = set()
"""The breakers that are not calm; empty is all that those who are in a hurry want to know."""

_SUCCESSES: Final = 5
"""How many calls have to succeed before a store is trusted again."""
_ANSWERS: Final = (LimitExceeded, StaleConfiguration)
"""What a store raises, or has raised about it, that works."""


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens: `failure_ratio` of at least `min_calls` within the interval have failed."""

    failure_ratio: float
    min_calls: int
    interval_us: int


class Breaker:
    """Stands before one store; thread safe.

    `tell` is called with the new state when the store is given up (open) and when it is back (closed),
    once each, by the thread that found out.
    """

    def __init__(self, rules: BreakerRules, *, clock: Clock, tell: Callable[[BreakerState], None]) -> None:
        self._rules = rules
        self._clock = clock
        self._tell = tell
        self._recent = RecentCalls(rules.failure_ratio, rules.min_calls)
        self.state = BreakerState.CLOSED
        self.error: StoreUnavailable | None = None
        """The last failure."""
        self._retired = False
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """None of the calls of the parent end in a child."""
        # Reentrant, since a finalizer may settle in the middle of a step.
        self._lock = RLock()
        self._round = 0
        self._may_pass = 1
        self._successes = 0

    @property
    def calm(self) -> bool:
        """Whether nothing has failed lately."""
        return self not in TROUBLED

    @contextmanager
    def call(self) -> Iterator[bool]:
        """Say whether the store may be asked, and watch how that goes in the block; a failure ends here."""
        turn = self._entered()
        if turn is None:
            yield False
            return
        try:
            yield True
        except StoreUnavailable as error:
            self._left(turn, error)
        except _ANSWERS:
            self._left(turn)
            raise
        except BaseException:
            self._gave_up(turn)
            raise
        else:
            self._left(turn)

    def failed(self, error: StoreUnavailable) -> None:
        """A call failed that did not ask the breaker, because it was calm."""
        self._left(self._round, error)

    def probed(self, error: StoreUnavailable | None = None) -> None:
        """Somebody asked the store without asking the breaker, and it answered, or failed."""
        with self._lock:
            if self.state is BreakerState.OPEN and error is None:
                self._turn_to(BreakerState.HALF_OPEN)
                return
        self._left(self._round, error)

    def settle_down(self) -> bool:
        """Be calm when nothing has failed for an interval; says whether it is."""
        with self._lock:
            if self.state is BreakerState.CLOSED and not self._recent.any_failed(self._slice()):
                self._recent.clear()
                TROUBLED.discard(self)
        return self.calm

    def retire(self) -> None:
        """Be calm for good, whatever the calls come to that are under way."""
        with self._lock:
            self._retired = True
            TROUBLED.discard(self)

    def _entered(self) -> int | None:
        """The round in which a call is made, or None where it is not."""
        with self._lock:
            if self.state is BreakerState.OPEN:
                return None
            if self.state is BreakerState.HALF_OPEN:
                if not self._may_pass:
                    return None
                self._may_pass -= 1
            return self._round

    def _gave_up(self, turn: int) -> None:
        """A call ended without an answer and without a failure of the store."""
        with self._lock:
            if turn == self._round and self.state is BreakerState.HALF_OPEN:
                self._may_pass += 1

    def _left(self, turn: int, error: StoreUnavailable | None = None) -> None:
        if error is None and self.calm and self.state is BreakerState.CLOSED:
            return  # nothing is counted as long as nothing fails
        if isinstance(error, StoreBlocked):  # which says nothing about the store
            self.error = error
            self._gave_up(turn)
            return
        with self._lock:
            before = self.state
            if error is not None:
                self.error = error
                if not self._retired:
                    TROUBLED.add(self)
            # Calls of an earlier round say nothing about the store as it is now.
            if turn == self._round:
                self._note(failed=error is not None)
            after = self.state
        if (before is BreakerState.CLOSED) is not (after is BreakerState.CLOSED):
            self._tell(after)

    def _note(self, *, failed: bool) -> None:
        if self.state is BreakerState.CLOSED:
            self._count(failed=failed)
        elif self.state is BreakerState.HALF_OPEN:
            self._may_pass += 2
            self._successes += 1
            if failed:
                self._turn_to(BreakerState.OPEN)
            elif self._successes == _SUCCESSES:
                self._turn_to(BreakerState.CLOSED)
                TROUBLED.discard(self)

    def _count(self, *, failed: bool) -> None:
        if self._recent.fail_too_often(self._slice(), failed=failed):
            self._turn_to(BreakerState.OPEN)

    def _slice(self) -> int:
        return self._clock() * SLICES // self._rules.interval_us

    def _turn_to(self, state: BreakerState) -> None:
        self.state = state
        self._round += 1
        self._may_pass = 1
        self._successes = 0
        self._recent.clear()
