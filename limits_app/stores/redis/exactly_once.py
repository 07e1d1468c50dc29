"""Exactly once: a script is executed once, although its reply may be lost and the call sent again.

Every call has a *slot*, the name of a key on the server, and a number that grows with each call that uses the slot.
A script that changes something stores its number and its reply under that key, in the same step. A call whose number is
already there is not executed: it returns the stored reply. So a call may be sent again over another connection, and it
does not matter in which order the copies arrive.

A slot is used by one call at a time, and again only after the reply was read. A call that was never answered is *in
doubt*: whether it was executed is found out later, by withdrawing it. The server then either returns the stored reply,
or stores that the call was withdrawn, after which it is never executed.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Final

from limits_app.acquiring.runtime import on_fork
from limits_app.engine.errors import StoreUnavailable

FIRST, AGAIN, WITHDRAW = range(3)
"""The attempts: a call that was not sent before; one that may have been executed; and one that withdraws a call.

The reply to the last is W, or the reply to the call where that was executed.
"""
_MOST_FREE: Final = 64


class Unanswered(StoreUnavailable):
    """The server did not answer a call that it may have executed."""


class Slot:
    """The name under which the server stores the last reply, and the number of the last call."""

    __slots__ = ("name", "number")

    def __init__(self) -> None:
        self.name = os.urandom(8).hex().encode()
        self.number = 0


class Slots:
    """The slots of one process that no call uses. Those of the parent process are not used in a child."""

    def __init__(self) -> None:
        self._free = deque[Slot](maxlen=_MOST_FREE)
        self.after_fork = self._free.clear
        self.release = self._free.append
        on_fork(self)

    def take(self) -> Slot:
        """Return a slot, which belongs to the caller until it calls `release` after it has read the last reply."""
        try:
            return self._free.pop()
        except IndexError:
            return Slot()
