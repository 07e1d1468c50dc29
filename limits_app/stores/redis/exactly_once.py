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
from threading import Lock
from typing import Final, Generic, TypeVar

from limits_app.core.errors import StoreUnavailable
from limits_app.core.runtime import on_fork

FIRST: Final = 0
"""The attempt of a call that was not sent before."""
AGAIN: Final = 1
"""The attempt of a call that was sent before, and may have been executed."""
WITHDRAW: Final = 2
"""The attempt that withdraws a call."""
WITHDRAWN: Final = b"W"
"""The reply to a call that was withdrawn before it was executed."""

_MOST_FREE: Final = 64
_MOST_IN_DOUBT: Final = 10_000

K = TypeVar("K")
V = TypeVar("V")


class Unanswered(StoreUnavailable):
    """The server did not answer a call that it may have executed."""


class Slot:
    """The name under which the server stores the last reply, and the number of the last call."""

    __slots__ = ("name", "number")

    def __init__(self) -> None:
        self.name = os.urandom(8).hex().encode()
        self.number = 0


class Slots:
    """The slots of one process that no call uses."""

    def __init__(self) -> None:
        self._free = deque[Slot]()
        on_fork(self)

    def after_fork(self) -> None:
        """Leave the slots to the parent process."""
        self._free.clear()

    def take(self) -> Slot:
        """Return a slot, which now belongs to the caller."""
        try:
            return self._free.pop()
        except IndexError:
            return Slot()

    def release(self, slot: Slot | None) -> None:
        """Give back a slot whose last reply was read."""
        if slot is not None and len(self._free) < _MOST_FREE:
            self._free.append(slot)


class InDoubt(Generic[K, V]):
    """What is in doubt, by the claim that it is about; of too many the oldest are forgotten."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Leave everything to the parent process."""
        self._calls: dict[K, V] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, key: K) -> bool:
        return key in self._calls

    def keep(self, key: K, call: V) -> None:
        """Note a call, as the youngest."""
        with self._lock:
            self._calls.pop(key, None)
            if len(self._calls) >= _MOST_IN_DOUBT:
                del self._calls[next(iter(self._calls))]
            self._calls[key] = call

    def take(self, key: K) -> V | None:
        """Return the call, which is no longer noted; None where nothing is in doubt."""
        with self._lock:
            return self._calls.pop(key, None)

    def all(self) -> list[K]:
        """Return what the calls are about."""
        with self._lock:
            return list(self._calls)
