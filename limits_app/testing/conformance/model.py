"""The reference model: what each kind of limit should do, in exact fractions.

Times are microseconds, amounts are fractions of a unit.
A model answers True or False where a store must decide the same, and None where a store may do either,
because it may give capacity back a little late.

A state that was written later than now plus the window counts as written now: a decision moves it, a look at the use
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Protocol

from limits_app.engine import SECOND_US
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm

WINDOW_STEPS: Final = 1024


class Model(Protocol):
    """One limit of one scope."""

    def admits(self, now: int, amount: Fraction) -> bool | None:
        """Whether an amount fits now; None when either answer is right."""

    def charge(self, now: int, amount: Fraction) -> None:
        """Take an amount that was admitted."""

    def settle(self, now: int, change: Fraction) -> None:
        """Take more than was admitted, or give some of it back."""

    def used(self, now: int) -> Fraction | None:
        """How much is taken now; None where a store may still count an amount that has just been restored."""


@dataclass
class BucketModel:
    """Token bucket and leaky bucket: recorded use drains at the limit's rate."""

    capacity: Fraction
    window: int
    burst: Fraction
    refunds: bool
    level: Fraction = Fraction(0)
    last: int = 0

    def used(self, now: int) -> Fraction:
        passed = max(now - self.last, 0)
        return max(self.level - passed * self.capacity / self.window, Fraction(0))

    def admits(self, now: int, amount: Fraction) -> bool:
        self._move(now)
        return self.used(now) + amount <= self.burst

    def charge(self, now: int, amount: Fraction) -> None:
        if amount:
            self.level, self.last = self.used(now) + amount, max(now, self.last)

    def _move(self, now: int) -> None:
        if self.last > now + self.window:
            self.last = now

    def settle(self, now: int, change: Fraction) -> None:
        self._move(now)
        if change > 0:
            self.charge(now, change)
        elif self.refunds:
            self.level = max(self.level + change, Fraction(0))


@dataclass
class ArrivalModel:
    """GCRA: the theoretical arrival time of the next unit."""

    capacity: Fraction
    window: int
    burst: Fraction
    arrival: Fraction = Fraction(0)
    last: int = 0

    def used(self, now: int) -> Fraction:
        return max(self.arrival - max(now, self.last), Fraction(0)) * self.capacity / self.window

    def admits(self, now: int, amount: Fraction) -> bool:
        self._move(now)
        return self.used(now) + amount <= self.burst

    def charge(self, now: int, amount: Fraction) -> None:
        if amount:
            self.settle(now, amount)

    def _move(self, now: int) -> None:
        if self.last > now + self.window:
            self.arrival, self.last = self.arrival - self.last + now, now

    def settle(self, now: int, change: Fraction) -> None:
        self._move(now)
        if change > 0:
            self.last = max(now, self.last)
        moved = max(self.arrival, Fraction(self.last)) + change * self.window / self.capacity
        self.arrival = max(moved, Fraction(self.last))


@dataclass
class FixedWindowModel:
    """Fixed window: a count that starts again with the first use after its window has ended."""

    capacity: Fraction
    window: int
    count: Fraction = Fraction(0)
    start: int = 0

    def used(self, now: int) -> Fraction:
        return self.count if now - self.start < self.window else Fraction(0)

    def admits(self, now: int, amount: Fraction) -> bool:
        self._move(now)
        return self.used(now) + amount <= self.capacity

    def charge(self, now: int, amount: Fraction) -> None:
        if self.used(now) == 0:
            self.start, self.count = now, Fraction(0)
        self.count += amount

    def _move(self, now: int) -> None:
        if self.start > now + self.window:
            self.start = now

    def settle(self, now: int, change: Fraction) -> None:
        self._move(now)
        if change > 0:
            self.charge(now, change)


@dataclass
class SlidingWindowModel:
    """Sliding window: every single use, which a store may give back up to a 1,024th of the window late.

    Uses in `maybe` are those that a store may have given back when the log was moved.
    """

    capacity: Fraction
    window: int
    log: list[tuple[int, Fraction]] = field(default_factory=list)
    maybe: list[tuple[int, Fraction]] = field(default_factory=list)

    def younger_than(self, now: int, age: Fraction) -> Fraction:
        uses = self.log if age == self.window else [*self.log, *self.maybe]
        now = max([now, *(time for time, _ in self.log)])
        return sum((amount for time, amount in uses if now - time < age), Fraction(0))

    def _move(self, now: int) -> None:
        last = max((time for time, _ in self.log), default=now)
        if last > now + self.window:
            exact = self.younger_than(last, Fraction(self.window))
            late = self.younger_than(last, self.window + Fraction(self.window, WINDOW_STEPS))
            self.log, self.maybe = [(now, exact)], [(now, late - exact)]

    def admits(self, now: int, amount: Fraction) -> bool | None:
        self._move(now)
        if self.younger_than(now, Fraction(self.window)) + amount > self.capacity:
            return False
        late = self.younger_than(now, self.window + Fraction(self.window, WINDOW_STEPS))
        return True if late + amount <= self.capacity else None

    def used(self, now: int) -> Fraction | None:
        exact = self.younger_than(now, Fraction(self.window))
        late = self.younger_than(now, self.window + Fraction(self.window, WINDOW_STEPS))
        return exact if exact == late else None

    def charge(self, now: int, amount: Fraction) -> None:
        if amount:
            self.log.append((max([now, *(time for time, _ in self.log)]), amount))

    def settle(self, now: int, change: Fraction) -> None:
        self._move(now)
        if change > 0:
            self.charge(now, change)


@dataclass
class PermitModel:
    """Permits: who holds how many, until when without renewal, and until when at most."""

    capacity: int
    lease_us: int
    hold_us: int | None
    leases: dict[int, tuple[Fraction, int, int | None]] = field(default_factory=dict)

    def used(self, now: int) -> Fraction:
        return sum((amount for amount, expires, _ in self.leases.values() if expires > now), Fraction(0))

    def admits(self, now: int, amount: Fraction) -> bool:
        return self.used(now) + amount <= self.capacity

    def lend(self, holder: int, now: int, amount: Fraction) -> None:
        """Lend permits to a holder."""
        ends = None if self.hold_us is None else now + self.hold_us
        self.leases[holder] = (amount, self._until(now, ends), ends)

    def renew(self, holder: int, now: int) -> bool:
        """Lend them for another lease; False when the lease has ended."""
        amount, expires, ends = self.leases.get(holder, (Fraction(0), now, None))
        if expires <= now:
            return False
        self.leases[holder] = (amount, self._until(now, ends), ends)
        return True

    def give_back(self, holder: int) -> None:
        """End a lease, if it is still there."""
        self.leases.pop(holder, None)

    def _until(self, now: int, ends: int | None) -> int:
        return now + self.lease_us if ends is None else min(now + self.lease_us, ends)


def model_of(limit: RateLimit | CallLimit) -> Model:
    """The model of a rate or call limit, unused."""
    return _MODELS[limit.algorithm](limit)


class LooseModel:
    """A model of a limit that counts in steps: never early, and a step or two late."""

    def __init__(self, limit: RateLimit) -> None:
        self.exact = model_of(limit)
        self.charge, self.settle = self.exact.charge, self.exact.settle
        self.late = 2 * max(_exact(limit.capacity), Fraction(1)) / 1000

    def admits(self, now: int, amount: Fraction) -> bool | None:
        """False where the exact model refuses, True where it would admit even a little more."""
        if not self.exact.admits(now, amount):
            return False
        return True if self.exact.admits(now, amount + self.late) else None

    def used(self, now: int) -> Fraction | None:
        """Unknown: the store may be a step late."""


def _bucket(limit: RateLimit | CallLimit, *, refunds: bool) -> Model:
    return BucketModel(_exact(limit.capacity), _window_us(limit), _exact(limit.ceiling), refunds)


def _exact(amount: float) -> Fraction:
    return Fraction(str(amount))


def _window_us(limit: RateLimit | CallLimit) -> int:
    return round(_exact(limit.window_seconds) * SECOND_US)


_MODELS: Final[Mapping[RateLimitAlgorithm, Callable[[RateLimit | CallLimit], Model]]] = {
    RateLimitAlgorithm.TOKEN_BUCKET: lambda limit: _bucket(limit, refunds=True),
    RateLimitAlgorithm.LEAKY_BUCKET: lambda limit: _bucket(limit, refunds=False),
    RateLimitAlgorithm.GCRA: lambda limit: ArrivalModel(
        _exact(limit.capacity), _window_us(limit), _exact(limit.ceiling)
    ),
    RateLimitAlgorithm.FIXED_WINDOW: lambda limit: FixedWindowModel(_exact(limit.capacity), _window_us(limit)),
    RateLimitAlgorithm.SLIDING_WINDOW: lambda limit: SlidingWindowModel(_exact(limit.capacity), _window_us(limit)),
}
