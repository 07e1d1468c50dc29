"""What a process knows without asking the server: its time, the boundaries of calendars, and recent rejections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns, time_ns
from typing import Final

from limits_app.engine import NEVER_US, SECOND_US, Amounts, Claim, PlannedLimit, PlanShape, State, monotonic_us

_COUNT: Final = 2
"""How many calendar boundaries before a time, and how many after it, scripts receive."""

_MOST_REJECTIONS: Final = 4096
_REMEMBERED_US: Final = SECOND_US
_REFUNDABLE_US: Final = 100_000


class ScriptClock:
    """How scripts learn the time: from the server's clock, or from `now` in tests; and how long idle state is kept."""

    def __init__(self, now: Callable[[], int] | None, idle_factor: float, least_idle_us: int) -> None:
        self.now = now
        self.idle = idle_factor, least_idle_us
        self._offset_us: int | None = None

    @property
    def time(self) -> int:
        """The time that scripts receive; below 0, they read the server's clock."""
        return -1 if self.now is None else self.now()

    def learn(self, now: int) -> None:
        """Note the time that the server has just named."""
        self._offset_us = now - monotonic_ns() // 1000

    def estimate(self) -> int:
        """Return the server's time as far as it is known, otherwise that of this machine."""
        if self.now is not None:
            return self.now()
        return time_ns() // 1000 if self._offset_us is None else monotonic_ns() // 1000 + self._offset_us


class Calendars:
    """The calendars of limits, whose boundaries scripts receive; they are computed again when a period ends."""

    def __init__(self, limits: Sequence[PlannedLimit]) -> None:
        self._limits = [limit for limit in limits if limit.rule.boundaries(0, 1)]
        self.size = 2 * _COUNT * len(self._limits)
        self._last: tuple[range, tuple[int, ...], tuple[int, int]] = (range(0), (), (-NEVER_US, NEVER_US))

    def offset(self, limit: PlannedLimit) -> int:
        """Return the place of the boundaries of a limit among all, in bytes; 0 where it has none."""
        return self._limits.index(limit) * 2 * _COUNT * 8 if limit in self._limits else 0

    def around(self, now: int) -> tuple[tuple[int, ...], tuple[int, int]]:
        """Return the boundaries around a time, and when its period and the next one are among them."""
        period, boundaries, valid = self._last  # read once: other threads may replace it
        if self._limits and now not in period:
            calendars = [limit.rule.boundaries(now, _COUNT) for limit in self._limits]
            period = range(max(some[_COUNT - 1] for some in calendars), min(some[_COUNT] for some in calendars))
            boundaries = tuple([boundary for some in calendars for boundary in some])
            valid = max(some[0] for some in calendars), min(some[_COUNT] for some in calendars)
            self._last = period, boundaries, valid
        return boundaries, valid


class Rejections:
    """Recent rejections, so that a request that is repeated too early needs no round trip.

    They reject and never admit, for at most as long as the limit rejects: one second where no refund can lift the
    rejection (windows and leaky buckets), and 0.1 seconds where a refund by another process can. Rejections by permits
    are not remembered. All are forgotten when this process returns or changes anything, or is notified of it.
    Its `Retry-After` ends when it is forgotten, at the latest: another process may have refunded the amount.
    `clock` returns microseconds; at most `most` rejections are remembered.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_us, *, most: int = _MOST_REJECTIONS) -> None:
        self.clock = clock
        self._most = most
        self._known: dict[tuple[PlanShape, tuple[str, ...]], tuple[Amounts, int, int, int, Sequence[State]]] = {}
        self.forgotten = 0
        """Grows whenever everything is forgotten, so that earlier decisions are not learned afterwards."""

    def __len__(self) -> int:
        return len(self._known)

    def reject(self, claim: Claim) -> bool:
        """Reject a claim, if it is known to be rejected."""
        rejection = self._known.get(claim.plan.identity)
        if rejection is None:
            return False
        amounts, learned_at, most, decided_at, states = rejection
        passed = self.clock() - learned_at
        if not 0 <= passed < most or (amounts is not claim.amounts and list(amounts) != list(claim.amounts)):
            return False
        claim.admitted, claim.decided_at, claim.states = False, decided_at + passed, states
        claim.repeated_us = most - passed
        return True

    def learn(self, claim: Claim, forgotten: int) -> None:
        """Remember a rejection, unless everything was forgotten since `forgotten` was read."""
        most = 0
        for limit, amount, state in claim.decisions():
            if not limit.rule.is_permit and limit.rule.charged(state, claim.decided_at, amount) is None:
                longest = _REFUNDABLE_US if limit.refunds else _REMEMBERED_US
                most = max(most, min(limit.rule.wait(state, claim.decided_at, amount), longest))
        if most and forgotten == self.forgotten:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[claim.plan.identity] = claim.amounts, self.clock(), most, claim.decided_at, claim.states

    def forget(self) -> None:
        """Forget everything, because something has changed."""
        self.forgotten += 1
        self._known.clear()
