"""Leases of permits, renewed while their holder exists.

One thread for each store and process renews all leases in one call every third of a lease, and when a holder reaches
the longest time that its limit allows. The holder of permits is their acquisition: when it is not referenced any more,
its permits run out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import sleep
from typing import Final
from weakref import ref

from limits_app.acquiring.runtime import on_fork, start_thread
from limits_app.engine import SECOND_US, Claim, Clock, lasts
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.locks import RLock

logger = logging.getLogger("limits_app")

_RENEWALS_PER_LEASE: Final = 3
_IDLE_ROUNDS: Final = 3


class Renewer:
    """Renews the permits that this process holds in one store, from a background thread or on a clock in tests."""

    def __init__(self, clock: Clock, lease_us: int, renew: Callable[[Sequence[Claim]], list[Claim]]) -> None:
        self._clock = clock
        self._period_us = lease_us // _RENEWALS_PER_LEASE
        self._renew = renew
        self.start_thread = start_thread
        self.claims: dict[int, ref[Claim]] = {}
        """The claims with permits by number, also those whose acquisition is not referenced any more."""
        self.after_fork()
        clock.attach(self)
        on_fork(self)

    def after_fork(self) -> None:
        """Drop what the parent process holds: a child neither renews nor loses it."""
        self.claims.clear()
        self.running = False
        """Whether renewal was started and permits were held since."""
        # Reentrant, because a finalizer may take permits while this thread holds the lock.
        self._lock = RLock()
        self._ran_at = 0

    def add(self, claim: Claim) -> None:
        """Renew the permits of a claim until they are returned, or nothing refers to their acquisition any more.

        The program that holds a token renews its permits itself.
        """
        if claim.shape.token_lease is not None:
            return
        self.claims[claim.number] = ref(claim)
        if not self.running:
            self._start()

    def discard(self, claim: Claim) -> None:
        """Renew the permits of a claim no longer."""
        self.claims.pop(claim.number, None)

    def find(self, number: int) -> Claim | None:
        """Return the claim with a number whose permits are renewed; None where there is none any more."""
        reference = self.claims.get(number)
        return None if reference is None else reference()

    def held(self) -> list[Claim]:
        """Return the claims that hold permits; those whose acquisition is not referenced any more are dropped."""
        claims = []
        for number, reference in list(self.claims.items()):
            claim = reference()
            if claim is None:
                self.claims.pop(number, None)
            else:
                claims.append(claim)
        return claims

    def moved(self, now: int) -> int | None:
        """Renew in time while a test moves the clock."""
        claims = self.held()
        if claims and not lasts(self._ran_at, self._due(claims) - self._ran_at, now):
            self.run()
            claims = self.held()
        return self._due(claims) if claims else None

    def run(self) -> None:
        """Renew everything once, and report the leases that were lost."""
        self._ran_at = self._clock()
        claims = self.held()
        try:
            ended = self._renew(claims) if claims else []
        except StoreUnavailable:
            logger.warning("permits could not be renewed; trying again", exc_info=True)
            return
        for claim in ended:
            if self.claims.pop(claim.number, None) is not None:
                claim.lose_lease()

    def _due(self, claims: Sequence[Claim]) -> int:
        """Return when the next round is due."""
        ends = [claim.held_until(limit) for claim in claims for limit in claim.shape.permits]
        return min([self._ran_at + self._period_us, *[end for end in ends if end > self._ran_at]])

    def _start(self) -> None:
        with self._lock:
            self._ran_at = self._clock()  # before the thread computes when the first round is due
            if not self.running:
                # Where no thread can be started, the next acquisition tries again.
                self.running = (
                    not self._clock.moves_by_itself or self.start_thread(self._work, "limits-renewer") is not None
                )

    def _work(self) -> None:
        idle = 0
        while idle < _IDLE_ROUNDS or not self._retire():
            try:
                sleep(self.pause_us() / SECOND_US)
                self.run()
            except Exception:  # whatever the store raises: without this thread all permits would be lost
                logger.exception("renewing permits failed; trying again")
                sleep(self._period_us / SECOND_US)
            idle = 0 if self.held() else idle + 1

    def pause_us(self) -> int:
        """Return how long to sleep until the next round; a clock that was set back does not make that longer."""
        left_us = self._due(self.held()) - self._clock()
        return min(max(left_us, 0), self._period_us)

    def _retire(self) -> bool:
        """Stop the thread unless permits are held again; an acquisition that comes later checks `running`."""
        with self._lock:
            self.running = False
            self.running = bool(self.held())
            return not self.running
