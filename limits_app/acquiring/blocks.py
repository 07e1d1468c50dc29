"""Blocks that hold permits: a nested request of the same thread or task does not take these again."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from contextvars import ContextVar
from threading import get_ident
from typing import Final, Protocol
from weakref import ref

from limits_app.acquiring.store import Store
from limits_app.engine.plan import Bucket, Claim

NOTHING_HELD: Final[frozenset[Bucket]] = frozenset()


class Nestable(Protocol):
    """Limits whose permits are not taken again in a block that holds them."""

    store: Store

    @property
    def nesting_key(self) -> Hashable:
        """Equal for limits whose permits need not be taken again from each other."""


class FirstToAsk:
    """The runner of a block that may run in another thread or task than the one that has entered it, as a view does
    after its middleware: the first one that asks for what is held becomes the runner.
    """

    runner: object = None


Block = tuple[Claim, Nestable, object]
"""The claim whose permits a `with` block holds, its limits, and the thread or task that runs the block."""

BLOCKS: Final[ContextVar[tuple[Block, ...]]] = ContextVar("limits_app_blocks", default=())
"""The blocks around the running code that hold permits."""


def enter_block(claim: Claim, limits: Nestable, *, elsewhere: bool = False) -> None:
    """Count the permits of a claim as held by the running thread or task, until `leave_block`.

    `elsewhere` is for a block that may run in another one, within the same context.
    """
    blocks, block = BLOCKS.get(), (claim, limits, FirstToAsk() if elsewhere else _running())
    BLOCKS.set((*_without(blocks, claim), block) if blocks else (block,))


def leave_block(claim: Claim) -> None:
    """End a block; it may have been entered elsewhere."""
    blocks = BLOCKS.get()
    if blocks:
        BLOCKS.set(blocks[:-1] if blocks[-1][0] is claim else _without(blocks, claim))


def _without(blocks: tuple[Block, ...], claim: Claim) -> tuple[Block, ...]:
    """Return blocks without that of a claim, and without those that have ended in another thread or task."""
    return tuple([block for block in blocks if block[0] is not claim and not block[0].released])


def held_here(limits: Nestable) -> frozenset[Bucket]:
    """Return the buckets of which the running thread or task holds permits of the same limits in a block.

    A nested request does not take these again, since it would wait for itself. Permits that were held for the longest
    time that their limit allows do not count: other holders may have them.
    """
    blocks = BLOCKS.get()
    if not blocks:
        return NOTHING_HELD
    held: set[Bucket] = set()
    running = _running()
    for claim, of_block, runner in blocks:
        if claim.admitted and not claim.released and _is_run_here(runner, running) and _are_same(of_block, limits):
            owner = None if claim.owner is None else claim.owner()
            if owner is None or owner.lost_lease:  # in a forked child, the claims of its parent have no owner
                continue
            if isinstance(runner, FirstToAsk):
                runner.runner = running
            now = limits.store.clock()
            lasting = [limit for limit in claim.shape.permits if claim.held_until(limit) > now]
            held.update([claim.plan.buckets[limit.place] for limit in lasting])
    return frozenset(held)


def _is_run_here(runner: object, running: object) -> bool:
    # A task inherits the blocks of the task that started it, and a thread may run in a copied context.
    if isinstance(runner, FirstToAsk):
        return runner.runner is None or runner.runner == running
    return runner == running


def _are_same(limits: Nestable, others: Nestable) -> bool:
    return limits is others or limits.nesting_key == others.nesting_key


def _running() -> object:
    """Return a weak reference to the running task of asyncio, or else the identifier of the running thread."""
    # An event loop sets these hooks of the thread that it runs in.
    if sys.get_asyncgen_hooks().firstiter is None:
        return get_ident()
    try:
        task = sys.modules["asyncio"].current_task()
    except (KeyError, RuntimeError):  # the loop is not one of asyncio
        return get_ident()
    # In a callback of the event loop there is no task: a new object equals no runner.
    return object() if task is None else ref(task)
