"""Who holds permits: which thread or task has which acquisition of a set right now.

A nested acquire must not wait for a permit that its own thread or task already has.
"""

from __future__ import annotations

import sys
import weakref
from contextvars import ContextVar
from threading import get_ident
from typing import TYPE_CHECKING, Final

from limits_app.core.acquisition import Acquisition

if TYPE_CHECKING:
    from limits_app.core.limit_set import LimitSet

__all__ = ["held_keys", "hold"]

_HELD: Final[ContextVar[tuple[weakref.ref[Acquisition], ...]]] = ContextVar("limits_app_held", default=())
_NONE: Final[frozenset[str]] = frozenset()


def hold(acquisition: Acquisition) -> None:
    """Note that the running thread or task holds the permits of an acquisition, and have them renewed."""
    reference = weakref.ref(acquisition)
    acquisition.owner = _owner()
    _HELD.set((*_HELD.get(), reference))
    acquisition.limit_set.store.renewer.hold(acquisition.number, reference)


def held_keys(limit_set: LimitSet) -> frozenset[str]:
    """The resource limits of a set of which the running thread or task holds permits."""
    references = _HELD.get()
    if not references:
        return _NONE
    held = [one for reference in references if (one := reference()) is not None and not one.settled]
    if not held:
        _HELD.set(())
        return _NONE
    if len(held) < len(references):
        _HELD.set(tuple([weakref.ref(one) for one in held]))
    owner = _owner()
    mine = [one.plan.permits for one in held if one.limit_set is limit_set and one.owner == owner]
    return _NONE.union(*mine)


def _owner() -> object:
    """The running task, else the running thread."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return asyncio.current_task()
    return get_ident()
