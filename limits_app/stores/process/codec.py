"""How state is written: a layout's name and its states as 64-bit integers; logs and leases apart."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain
from struct import Struct
from typing import Final, cast

import lmdb

from limits_app.core.algorithms import State
from limits_app.core.algorithms.log import Log
from limits_app.core.keys import short_key
from limits_app.core.layout import Layout
from limits_app.stores.definitions import definitions_of

__all__ = ["NAME_LENGTH", "Codec"]

NAME_LENGTH: Final = 8


class Codec:
    """Writes and reads the states of one layout.

    A record is the layout's name, 8 bytes, and the integers of all states.
    The log of a sliding window stands in an entry of its own, which is read and written only when it is needed.
    """

    __slots__ = ("_size", "_slices", "_struct", "definitions", "layout", "logs", "name")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.definitions = definitions_of(layout)
        self.name = blake2b(self.definitions, digest_size=NAME_LENGTH).digest()
        self.logs = {index: b"g" + short_key(rule.key)[:8] for index, rule in enumerate(layout.rules) if rule.has_log}
        widths = [len(rule.start) - rule.has_log for rule in layout.rules]
        self._struct = Struct(f"={NAME_LENGTH}s{sum(widths)}q")
        self._size = self._struct.size
        ends = [1 + sum(widths[: index + 1]) for index in range(len(widths))]
        self._slices = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]

    def decode(self, record: bytes, txn: lmdb.Transaction[bytes], scope: bytes) -> list[State] | None:
        """The states of a record, or None when another layout has written it.

        Logs are fetched through the transaction when somebody looks into them.
        """
        if len(record) != self._size:
            return None
        flat = self._struct.unpack(record)
        if flat[0] != self.name:
            return None
        states = [flat[part] for part in self._slices]
        if self.logs:
            for index, suffix in self.logs.items():
                states[index] = (*states[index], StoredLog(txn, scope + suffix))
        return states

    def encode(self, states: Sequence[State]) -> bytes:
        """The record of the states, without their logs."""
        if self.logs:
            states = [state[:-1] if index in self.logs else state for index, state in enumerate(states)]
        return self._struct.pack(self.name, *chain.from_iterable(states))

    def changed_logs(self, scope: bytes, states: Sequence[State]) -> list[tuple[bytes, bytes]]:
        """Keys and contents of the logs that are not the stored ones."""
        logs = [(scope + suffix, cast("Log", states[index][-1])) for index, suffix in self.logs.items()]
        return [(key, log.pack()) for key, log in logs if not isinstance(log, StoredLog)]

    def load_logs(self, states: Sequence[State]) -> None:
        """Fetch all logs now, for states that will be read after their transaction."""
        for index in self.logs:
            cast("Log", states[index][-1]).arrays()


class StoredLog(Log):
    """A log that stays in the file until somebody looks into it.

    Whoever decides looks into it only when something has expired, so what was not fetched then is not needed later.
    """

    __slots__ = ("_key", "_txn")

    def __init__(self, txn: lmdb.Transaction[bytes], key: bytes) -> None:
        super().__init__(array("q"), array("q"))
        self._txn: lmdb.Transaction[bytes] | None = txn
        self._key = key

    def arrays(self) -> tuple[array[int], array[int]]:
        """The log as it was in the transaction."""
        if self._txn is not None:
            packed = self._txn.get(self._key)
            if packed is not None:
                self._times, self._totals = Log.unpack(packed).arrays()
            self._txn = None
        return self._times, self._totals
