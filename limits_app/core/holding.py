"""Who holds permits: which acquisitions the running thread or task has right now.

A nested acquire must not wait for a permit that its own thread or task already has,
and what is held must be renewed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from threading import local
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, ref

from limits_app.core.hooks import HOOKS
from limits_app.core.living import Living
from limits_app.core.parts import FOREVER

if TYPE_CHECKING:
    from limits_app.core.acquisition import Acquisition
    from limits_app.core.limit_set import LimitSet
    from limits_app.core.parts import Bucket
    from limits_app.core.renewal import Renewer

__all__ = ["NOTHING_HELD", "Holding", "held_with", "holding_here"]

logger = logging.getLogger("limits_app")

NOTHING_HELD: Final[frozenset[Bucket]] = frozenset()


class Holding:
    """What one thread or task holds: its acquisitions by number, without keeping them alive.

    It alone adds to them; any other may drop one. Each acquisition keeps alive what it is held by.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held: dict[int, ref[Acquisition]] = {}
        _HOLDINGS.add(self)

    def permits(self, limit_set: LimitSet) -> frozenset[Bucket]:
        """Of which resource limits permits are held that were taken from a set, or from one that is the same.

        Those that were held for as long as their limit allows are not: others may have them.
        """
        same = [one for one in self.living() if one.limit_set.is_same(limit_set)]
        lent = [(one, place, permit.hold_us) for one in same for place, permit in one.plan.lent]
        now = limit_set.store.clock() if any(hold_us < FOREVER for _, _, hold_us in lent) else 0
        return frozenset([one.plan.buckets[place] for one, place, hold_us in lent if one.decided_at + hold_us > now])

    def add(self, acquisition: Acquisition) -> None:
        """Note that an acquisition holds permits, and have them renewed."""
        self.held[acquisition.number] = ref(acquisition)
        renewer = acquisition.limit_set.store.renewer
        if not renewer.running:
            renewer.start()

    def lose(self, acquisition: Acquisition) -> None:
        """Warn that permits went back while they were held, and tell whoever listens; once for each acquisition.

        A forked child holds none of what its parent holds, and so it loses nothing.
        """
        mine = object()
        # To enter one's own is one step: of two threads that find out, one tells.
        if self not in _HOLDINGS.all() or _LOST.setdefault(acquisition, mine) is not mine:
            return
        keys = ", ".join(sorted(acquisition.plan.permits))
        logger.warning("the lease of %s ran out while it was held: others may hold the permit now", keys)
        for tell in HOOKS.lease_lost:
            try:
                tell(acquisition)
            except Exception:
                logger.exception("a listener to lost leases failed")

    def living(self) -> list[Acquisition]:
        """What is held; forgets what nobody refers to any more."""
        found = []
        for number, reference in list(self.held.items()):
            acquisition = reference()
            if acquisition is None:
                self.held.pop(number, None)
            else:
                found.append(acquisition)
        return found


_HOLDINGS: Final[Living[Holding]] = Living()
_LOST: Final[WeakKeyDictionary[Acquisition, object]] = WeakKeyDictionary()
"""What was told that it lost a lease."""


def held_with(renewer: Renewer) -> list[Acquisition]:
    """What the threads and tasks of this process hold that a renewer renews."""
    living = [acquisition for holding in _HOLDINGS.all() for acquisition in holding.living()]
    return [acquisition for acquisition in living if acquisition.limit_set.store.renewer is renewer]


class _Thread(local):
    """What the running thread holds outside of tasks."""

    def __init__(self) -> None:
        self.holding = Holding()


_THREAD: Final = _Thread()
_TASKS: Final[WeakKeyDictionary[object, Holding]] = WeakKeyDictionary()


_RUNNING_LOOP: Final[list[Callable[[], object]]] = []
"""What says which event loop runs, once somebody has imported asyncio, which not all programs do."""


def _look_for_asyncio() -> list[Callable[[], object]]:
    asyncio = sys.modules.get("asyncio")
    _RUNNING_LOOP.extend([] if asyncio is None else [asyncio._get_running_loop])
    return _RUNNING_LOOP


def _forget() -> None:
    """A forked child holds nothing of what its parent holds."""
    _HOLDINGS.clear()
    _THREAD.holding = Holding()
    _TASKS.clear()


os.register_at_fork(after_in_child=_forget)


def holding_here() -> Holding:
    """What the running task, or else the running thread, holds; a callback of an event loop starts with nothing."""
    running = _RUNNING_LOOP or _look_for_asyncio()
    if not running or running[0]() is None:
        return _THREAD.holding
    task = sys.modules["asyncio"].current_task()
    if task is None:
        return Holding()
    holding = _TASKS.get(task)
    if holding is None:
        holding = _TASKS[task] = Holding()
    return holding
