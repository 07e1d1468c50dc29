"""Plain models to compare with: exact fractions and lists, slow and obvious."""

from __future__ import annotations

from fractions import Fraction

from limits_app.core.algorithms.rule import DEBT_PARTS
from limits_app.core.algorithms.units import exact_units, window_us
from limits_app.core.limits import RateLimit
from tests.core.algorithms.definitions import exact, rate_per_us


class Bucket:
    """A level that drains continuously: token bucket, leaky bucket and GCRA, without ticks or rounding."""

    def __init__(self, limit: RateLimit, *, refunds: bool) -> None:
        self.rate = rate_per_us(limit)
        self.debt = Fraction(DEBT_PARTS, exact_units(limit).parts_per_unit)
        self.burst = exact(limit.ceiling)
        self.refunds = refunds
        self.level = Fraction(0)
        self.last = 0

    def used(self, now: int) -> Fraction:
        """What has not drained yet."""
        return max(self.level - self.rate * max(now - self.last, 0), Fraction(0))

    def fits(self, now: int, units: float) -> bool:
        """Whether an amount fits."""
        return self.used(now) + exact(units) <= self.burst

    def settle(self, now: int, units: float) -> None:
        """Charge, or give back."""
        if units > 0 or self.refunds:
            self.level = min(max(self.used(now) + exact(units), Fraction(0)), self.debt)
            self.last = max(now, self.last)


class Log:
    """Every single admission with its time."""

    def __init__(self, limit: RateLimit) -> None:
        self.window = window_us(limit)
        self.capacity = int(limit.capacity)
        self.entries: list[tuple[int, int]] = []

    def used(self, now: int) -> int:
        """What is younger than the window."""
        return sum(units for time, units in self.entries if time > now - self.window)

    def fits(self, now: int, units: int) -> bool:
        """Whether an amount fits."""
        return self.used(now) + units <= self.capacity

    def settle(self, now: int, units: int) -> None:
        """Charge."""
        if units > 0:
            self.entries.append((now, units))


class Windows:
    """A count that starts anew with the first use after a window ended."""

    def __init__(self, limit: RateLimit) -> None:
        self.window = window_us(limit)
        self.capacity = int(limit.capacity)
        self.start: int | None = None
        self.count = 0

    def used(self, now: int) -> int:
        """What was counted in the window that runs now."""
        return self.count if self.start is not None and now < self.start + self.window else 0

    def fits(self, now: int, units: int) -> bool:
        """Whether an amount fits."""
        return self.used(now) + units <= self.capacity

    def settle(self, now: int, units: int) -> None:
        """Charge."""
        if units > 0:
            self.count = self.used(now) + units
            if self.count == units:
                self.start = now
