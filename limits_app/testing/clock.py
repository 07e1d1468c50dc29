"""A clock that a test moves."""

from __future__ import annotations

from limits_app.acquiring import WeakRegistry
from limits_app.engine import SECOND_US, Clock, Paced
from limits_app.engine.locks import RLock


class FakeClock(Clock):
    """A clock in whole microseconds that stands still until `advance(seconds)` moves it.

    Moving it wakes the waiters whose time has come, and renews the leases that are held.
    """

    moves_by_itself = False

    def __init__(self, start_us: int = 1_000_000_000_000_000) -> None:
        super().__init__(lambda: self.now_us)
        self.now_us = start_us
        self._lock = RLock()
        self._paced: WeakRegistry[Paced] = WeakRegistry()

    def attach(self, paced: Paced) -> None:
        """Notify `paced` when the clock is moved, and at the times that it returns."""
        self._paced.add(paced)

    def advance(self, seconds: float) -> None:
        """Move by `seconds`, which may be negative as on a machine whose clock is set back."""
        self.move(round(seconds * SECOND_US))

    def move(self, microseconds: int) -> None:
        """Move by whole microseconds."""
        with self._lock:
            target = self.now_us + microseconds
            moments = self._tell()
            while moments is not None and self.now_us < moments < target:
                self.now_us = moments
                moments = self._tell()
            self.now_us = target
            self._tell()

    def _tell(self) -> int | None:
        """Notify all attached objects; return the earliest time at which one of them wants to be notified again."""
        moments = [paced.moved(self.now_us) for paced in self._paced.all()]
        return min((moment for moment in moments if moment is not None), default=None)
