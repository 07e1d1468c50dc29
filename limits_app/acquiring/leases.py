"""Leases of permits: renewed while their holder lives, and not taken again by nested requests.

One thread for each store and process renews all leases in one call every third of a lease, and when a holder reaches
the longest time that its limit allows. The holder of permits is their acquisition: when it is not referenced any more,
its permits run out.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from threading import Lock, get_ident
from time import sleep
from typing import TYPE_CHECKING, Final
from weakref import ref

from limits_app.acquiring.runtime import on_fork, start_thread
from limits_app.engine.clock import Clock, lasts
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.plan import Bucket, Claim

if TYPE_CHECKING:
    from limits_app.acquiring.limit_set import LimitSet

logger = logging.getLogger("limits_app")

_RENEWALS_PER_LEASE: Final = 3
_IDLE_ROUNDS: Final = 3


class Renewer:
    """Renews the permits that this process holds in one store, from a background thread or on a clock in tests."""

    def __init__(self, clock: Clock, lease_us: int, renew: Callable[[Sequence[Claim]], list[Claim]]) -> None:
        self._clock = clock
        self._period_us = lease_us // _RENEWALS_PER_LEASE
        self._renew = renew
        self._held: dict[int, Claim] = {}
        self.after_fork()
        clock.attach(self)
        on_fork(self)

    def after_fork(self) -> None:
        """Drop what the parent process holds: a child neither renews nor loses it."""
        for claim in self.held():
            claim.owner = None
        self._held.clear()
        self.running = False
        """Whether renewal was started and permits were held since."""
        self._lock = Lock()
        self._ran_at = 0

    def add(self, claim: Claim) -> None:
        """Renew the permits of a claim until they are returned, or nothing refers to their acquisition any more."""
        self._held[claim.number] = claim
        if not self.running:
            self._start()

    def discard(self, claim: Claim) -> None:
        """Renew the permits of a claim no longer."""
        self._held.pop(claim.number, None)

    def held(self) -> list[Claim]:
        """Return the claims that hold permits; those whose acquisition is not referenced any more are dropped."""
        found = []
        for claim in list(self._held.values()):
            if claim.owner is None or claim.owner() is None:
                self.discard(claim)
            else:
                found.append(claim)
        return found

    def moved(self, now: int) -> int | None:
        """Renew in time while a test moves the clock."""
        held = self.held()
        if held and not lasts(self._ran_at, self._due(held) - self._ran_at, now):
            self.run()
            held = self.held()
        return self._due(held) if held else None

    def run(self) -> None:
        """Renew everything once, and report the leases that were lost."""
        self._ran_at = self._clock()
        held = self.held()
        try:
            ended = self._renew(held) if held else []
        except StoreUnavailable:
            logger.warning("permits could not be renewed; trying again", exc_info=True)
            return
        for claim in ended:
            if self._held.pop(claim.number, None) is not None:
                claim.lose_lease()

    def _due(self, held: Sequence[Claim]) -> int:
        """Return when the next round is due."""
        ends = [claim.held_until(limit) for claim in held for limit in claim.shape.permits]
        return min([self._ran_at + self._period_us, *[end for end in ends if end > self._ran_at]])

    def _start(self) -> None:
        with self._lock:
            self._ran_at = self._clock()  # before the thread computes when the first round is due
            if not self.running:
                # Where no thread can be started, the next acquisition tries again.
                self.running = not self._clock.moves_by_itself or start_thread(self._work, "limits-renewer") is not None

    def _work(self) -> None:
        idle = 0
        while idle < _IDLE_ROUNDS or not self._retire():
            try:
                sleep(self._pause_us() / 1_000_000)
                self.run()
            except Exception:  # whatever the store raises: without this thread all permits would be lost
                logger.exception("renewing permits failed; trying again")
                sleep(self._period_us / 1_000_000)
            idle = 0 if self.held() else idle + 1

    def _pause_us(self) -> int:
        """Return how long to sleep until the next round; a clock that was set back does not make that longer."""
        left_us = self._due(self.held()) - self._clock()
        return min(max(left_us, 0), self._period_us)

    def _retire(self) -> bool:
        """Stop the thread unless permits are held again; an acquisition that comes later checks `running`."""
        with self._lock:
            self.running = False
            self.running = bool(self.held())
            return not self.running


_BLOCKS: Final[ContextVar[tuple[Claim, ...]]] = ContextVar("limits_app_blocks", default=())
"""The claims of the `with` blocks around the running code."""

FIRST_TO_ASK: Final = "first"
"""The owner of a block that may run in another thread or task than the one that has entered it, as a view does after
its middleware: the first one that asks for what is held becomes the owner."""


def enter_block(claim: Claim, *, elsewhere: bool = False) -> None:
    """Count the permits of a claim as held by the running thread or task, until `leave_block`.

    `elsewhere` is for a block that may run in another one, within the same context.
    """
    blocks = _BLOCKS.get()
    if blocks:
        blocks = _without(blocks, claim)
    claim.block_owner = FIRST_TO_ASK if elsewhere else _running()
    _BLOCKS.set((*blocks, claim))


def leave_block(claim: Claim) -> None:
    """End a block; it may have been entered elsewhere."""
    blocks = _BLOCKS.get()
    if blocks:
        _BLOCKS.set(_without(blocks, claim))


def _without(blocks: tuple[Claim, ...], claim: Claim) -> tuple[Claim, ...]:
    """Return blocks without that of a claim, and without those that have ended in another thread or task."""
    if blocks[-1] is claim:
        return blocks[:-1]
    return tuple([block for block in blocks if block is not claim and not block.released])


def held_here(limit_set: LimitSet) -> frozenset[Bucket]:
    """Return the buckets of which the running thread or task holds permits of the same limit set in a block.

    A nested request does not take these again, since it would wait for itself. Permits that were held for the longest
    time that their limit allows do not count: other holders may have them.
    """
    blocks = _BLOCKS.get()
    if not blocks:
        return frozenset()
    held: set[Bucket] = set()
    running = _running()
    for claim in blocks:
        # A task inherits the blocks of the task that started it, and a thread may run in a copied context.
        # In a forked child, the claims of its parent have no owner.
        is_of_others = claim.block_owner not in (running, FIRST_TO_ASK)
        acquisition = None if claim.owner is None or is_of_others else claim.owner()
        if acquisition is None or acquisition.lost_lease or not acquisition.limit_set.is_same(limit_set):
            continue
        claim.block_owner = running
        if claim.admitted and not claim.released:
            now = limit_set.store.clock()
            lasting = [limit for limit in claim.shape.permits if claim.held_until(limit) > now]
            held.update([claim.plan.buckets[limit.place] for limit in lasting])
    return frozenset(held)


def _running() -> object:
    """Return a weak reference to the running task of asyncio, or else the identifier of the running thread."""
    # An event loop sets these hooks of the thread that it runs in.
    if sys.get_asyncgen_hooks().firstiter is None:
        return get_ident()
    try:
        task = sys.modules["asyncio"].current_task()
    except (KeyError, RuntimeError):  # the loop is not one of asyncio
        return get_ident()
    # In a callback of the event loop there is no task: a new object equals no owner.
    return object() if task is None else ref(task)
