"""Who holds permits: which thread or task has which acquisition of a set right now.

A nested acquire must not wait for a permit that its own thread or task already has.
"""

from __future__ import annotations

import os
import sys
import weakref
from threading import Thread, current_thread, local
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from limits_app.core.acquisition import Acquisition
    from limits_app.core.limit_set import LimitSet

__all__ = ["HELD", "held_keys", "hold", "let_go"]

HELD: Final[dict[object, tuple[weakref.ref[Acquisition], ...]]] = {}
"""What each thread and task holds, or has held; written by itself only, so that nothing needs a lock."""

# A forked child holds nothing of what its parent holds.
os.register_at_fork(after_in_child=HELD.clear)

_HERE: Final = local()
_NONE: Final[frozenset[str]] = frozenset()
_LOOK_AT: Final = 1024


def hold(acquisition: Acquisition) -> None:
    """Note that the running thread or task holds the permits of an acquisition, and have them renewed."""
    reference = weakref.ref(acquisition)
    acquisition.owner = owner = _owner()
    if owner is not None:
        others = HELD.get(owner)
        HELD[owner] = (reference,) if others is None else (*_unsettled(others), reference)
    acquisition.limit_set.store.renewer.hold(acquisition.number, reference)
    if len(HELD) > _LOOK_AT:
        _forget_the_finished()


def let_go(acquisition: Acquisition) -> None:
    """The permits were given back; when another thread or task does so, the holder finds out later."""
    # There is no owner yet where a waiter was interrupted after it was admitted.
    owner = getattr(acquisition, "owner", None)
    if owner is not None and owner is _owner():
        others = HELD.pop(owner, ())
        if len(others) > 1:
            HELD[owner] = tuple([one for one in others if one() is not acquisition])
    acquisition.limit_set.store.renewer.drop(acquisition.number)


def held_keys(limit_set: LimitSet) -> frozenset[str]:
    """The resource limits of a set of which the running thread or task holds permits."""
    references = HELD.get(_owner())
    if references is None:
        return _NONE
    held = [one() for one in _unsettled(references)]
    return _NONE.union(*[one.plan.permits for one in held if one is not None and one.limit_set is limit_set])


def _unsettled(references: tuple[weakref.ref[Acquisition], ...]) -> list[weakref.ref[Acquisition]]:
    return [one for one in references if (held := one()) is not None and not held.settled]


def _owner() -> object:
    """The running task, else the running thread; None in a callback of an event loop, which holds nothing for long.

    The thread itself and not its identifier, which another thread gets as soon as this one has ended.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return asyncio.current_task()
    try:
        return _HERE.thread
    except AttributeError:
        _HERE.thread = thread = current_thread()
        return thread


def _forget_the_finished() -> None:
    """Threads and tasks that ended without letting go themselves; they can write no more, so nothing is lost."""
    for owner in list(HELD):
        ended = not owner.is_alive() if isinstance(owner, Thread) else owner.done()  # type: ignore[attr-defined]  # a task
        if ended:
            HELD.pop(owner, None)
