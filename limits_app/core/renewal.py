"""Renewal: permits stay lent while their holder lives.

One thread per store and process renews all leases in one call every third of a lease,
and at the moment at which somebody has had a permit for as long as its limit allows.
A holder is its acquisition: when nobody refers to it any more, its permits run out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from time import sleep
from typing import Final

from limits_app.core.claim import Claim
from limits_app.core.clock import Clock
from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import on_fork
from limits_app.core.holding import held_with
from limits_app.core.threads import started

__all__ = ["Renewer"]

logger = logging.getLogger("limits_app")

_RENEWALS_PER_LEASE: Final = 3
_IDLE_ROUNDS: Final = 3


class Renewer:
    """Renews what is held in this process, from a thread of its own or on a clock that a test moves."""

    def __init__(self, clock: Clock, lease_us: int, renew: Callable[[Sequence[Claim]], list[Claim]]) -> None:
        self._clock = clock
        self._period_us = lease_us // _RENEWALS_PER_LEASE
        self._renew = renew
        self._forget()
        clock.attach(self)
        on_fork(self)

    def _forget(self) -> None:
        self.running = False
        """Whether `start` was called since the last time that nothing was held."""
        self._lock = Lock()
        self._ran_at = 0

    def moved(self, now: int) -> int | None:
        """Renew in time while a clock is moved by hand."""
        held = held_with(self)
        if held and now >= self._due(held):
            self.run()
            held = held_with(self)
        return self._due(held) if held else None

    def _due(self, held: Sequence[Claim]) -> int:
        """When the next round is, while so much is held."""
        ends = [one.decided_at + permit.hold_us for one in held for _, permit in one.plan.lent]
        return min([self._ran_at + self._period_us, *[end for end in ends if end > self._ran_at]])

    def run(self) -> None:
        """Renew everything once; whoever lost a lease is warned."""
        self._ran_at = self._clock()
        held = held_with(self)
        try:
            ended = {claim.number for claim in self._renew(held)} if held else ()
        except StoreUnavailable:
            logger.warning("permits could not be renewed; trying again", exc_info=True)
            return
        for acquisition in held:
            if acquisition.number in ended and acquisition.holding.held.pop(acquisition.number, None) is not None:
                acquisition.lapse()

    def start(self) -> None:
        """Begin to renew, now that something is held."""
        with self._lock:
            self._ran_at = self._clock()  # before the thread looks when the first round is
            if not self.running:
                # Where no thread can be had, whoever holds something next tries again.
                self.running = not self._clock.moves_by_itself or started(self._work, "limits-renewer") is not None

    def _work(self) -> None:
        idle = 0
        while idle < _IDLE_ROUNDS or not self._retire():
            try:
                sleep(self._pause_us() / 1_000_000)
                self.run()
            except Exception:  # of whatever the store uses: without this thread, all permits would be lost
                logger.exception("renewing permits failed; trying again")
                sleep(self._period_us / 1_000_000)
            idle = 0 if held_with(self) else idle + 1

    def _pause_us(self) -> int:
        """How long to sleep until the next round; a clock that was set back makes that no longer."""
        left = self._due(held_with(self)) - self._clock()
        return min(max(left, 0), self._period_us)

    def _retire(self) -> bool:
        """Stop the thread unless somebody holds something again, who looks at `running` after that."""
        with self._lock:
            self.running = False
            self.running = bool(held_with(self))
            return not self.running

    def after_fork(self) -> None:
        """A child holds nothing of what its parent holds."""
        self._forget()
