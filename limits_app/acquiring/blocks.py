"""Blocks that hold permits: a nested request of the same thread or task does not take these again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from threading import get_ident
from typing import Final, Protocol
from weakref import ref

from limits_app.acquiring.store import Store
from limits_app.engine import Bucket, Claim


class Nestable(Protocol):
    """Limits whose permits are not taken again in a block that holds them."""

    store: Store

    @property
    def nesting_key(self) -> Hashable:
        """Equal for limits whose permits need not be taken again from each other."""


Block = tuple[Nestable, object]
"""A `with` block that holds permits: its limits, and the thread or task that runs it.

The runner is a list where the block may run in another thread or task than the one that has entered it, as a view does
after its middleware: the first one that asks for what is held becomes its first entry, and the runner.
A block does not keep its claim, since the permits of an acquisition that nothing refers to run out.
"""


class Blocks:
    """The blocks around the code of one thread or task, by the number of the claim that they hold.

    Only the `runner` adds to them, also for code that runs in a copy of its context; another thread may end one.
    """

    __slots__ = ("by_number", "runner")

    def __init__(self, runner: object, around: dict[int, Block]) -> None:
        self.runner = runner
        self.by_number = around.copy()


_NONE: Final = Blocks(None, {})  # no runner is None, so that nothing is added to them
_BLOCKS: Final[ContextVar[Blocks]] = ContextVar("limits_app_blocks", default=_NONE)
current_blocks: Final = _BLOCKS.get
"""Returns the blocks around the running code that hold permits, perhaps with some whose permits were returned."""


def enter_block(claim: Claim, limits: Nestable, elsewhere: bool = False) -> dict[int, Block]:
    """Count the permits of a claim as held by the running thread or task, until they are removed from the result.

    `elsewhere` is for a block that may run in another one, within the same context.
    """
    runner = [] if elsewhere else running()
    blocks = current_blocks()
    if elsewhere or blocks.runner != runner:
        blocks = Blocks(runner, blocks.by_number)
        _BLOCKS.set(blocks)
    by_number = blocks.by_number
    by_number[claim.number] = limits, runner
    return by_number


def held_here(limits: Nestable) -> frozenset[Bucket]:
    """Return the buckets of which the running thread or task holds permits of the same limits in a block.

    A nested request does not take these again, since it would wait for itself. Permits that were held for the longest
    time that their limit allows do not count: other holders may have them.
    """
    buckets: set[Bucket] = set()
    here = running()
    by_number = current_blocks().by_number
    for number, (of_block, runner) in by_number.copy().items():  # a copy, which no other thread changes
        claim = of_block.store.renewer.find(number)
        if claim is None:  # it was released or lost, or is that of the parent of a forked child
            by_number.pop(number, None)
        if claim is None or not _are_same(of_block, limits) or not _is_run_here(runner, here):
            continue
        now = limits.store.clock()
        lasting = [limit for limit in claim.shape.permits if claim.held_until(limit) > now]
        buckets.update([claim.plan.buckets[limit.position] for limit in lasting])
    return frozenset(buckets)


def _is_run_here(runner: object, here: object) -> bool:
    # A task inherits the blocks of the task that started it, and a thread may run in a copied context.
    if not isinstance(runner, list):
        return runner == here
    if not runner:
        runner.append(here)
    return bool(runner[0] == here)


def _are_same(limits: Nestable, others: Nestable) -> bool:
    return limits is others or limits.nesting_key == others.nesting_key


_running_loop: Callable[[], object] | None = None
"""The function of asyncio that returns the running loop, once it was found."""


def running() -> object:
    """Return a weak reference to the running task of asyncio, or else the identifier of the running thread."""
    running_loop = _running_loop or _find_running_loop()
    if running_loop is None or running_loop() is None:
        return get_ident()
    task = sys.modules["asyncio"].current_task()
    # A callback of the event loop runs in no task: a new object equals no runner.
    return object() if task is None else ref(task)


def _find_running_loop() -> Callable[[], object] | None:
    """Return the function of asyncio that returns the running loop; None where the program has not imported asyncio.

    Only programs that use asyncio pay for its import; while another thread imports it, it has no function yet.
    """
    global _running_loop  # noqa: PLW0603 - found once in a process
    _running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return _running_loop
