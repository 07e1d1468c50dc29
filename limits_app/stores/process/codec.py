"""How state is written: a layout's name and its states as 64-bit integers; logs and leases apart."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from struct import Struct
from typing import Final, TypeAlias, cast

import lmdb

from limits_app.core.algorithms.log import Log
from limits_app.core.keys import short_key
from limits_app.core.layout import Layout
from limits_app.core.unrolled import Record, written_out
from limits_app.stores.codecs import LayoutCodec

__all__ = ["NAME_LENGTH", "Codec"]

NAME_LENGTH: Final = 8
_MOST: Final = 2**63 - 1

Decode: TypeAlias = "Callable[[bytes, lmdb.Transaction[bytes], bytes], Record | None]"
Encode: TypeAlias = "Callable[[Record], bytes]"


class Codec(LayoutCodec):
    """Writes and reads the states of one layout.

    What is stored is the layout's name, 8 bytes, the integers of all states, and what was counted where it counts.
    The log of a sliding window stands in an entry of its own, which is read and written only when it is needed.

    `decode(stored, txn, scope)` is the record, whose last item is this codec, or None when another layout wrote it;
    its logs are fetched through the transaction when somebody looks into them.
    `encode(record)` is what is stored, without the logs, in this `form`.
    """

    __slots__ = ("counts", "decode", "encode", "form", "logs")

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, NAME_LENGTH)
        self.logs = {index: b"g" + short_key(rule.key)[:8] for index, rule in enumerate(layout.rules) if rule.has_log}
        widths = tuple([len(rule.start) - rule.has_log for rule in layout.rules])
        self.counts = len(widths) + 1 if layout.counts else 0
        self.form = form = Struct(f"={NAME_LENGTH}s{sum(widths) + self.counts}q")
        suffixes = [self.logs.get(index) for index in range(len(widths))]
        decode, encode = _written_out(widths, tuple(self.logs), self.counts)
        self.decode = cast("Decode", decode(form.unpack, form.size, self.name, self, StoredLog, *suffixes))
        self.encode = cast("Encode", encode(form.pack, self.name))

    def saturated(self, record: Record) -> Record:
        """The record with counts that can be written: more than 63 bits are counted as so many."""
        width = len(self.layout.rules)
        return (*record[:width], *[min(max(count, -_MOST), _MOST) for count in record[width:-1]], self)

    def changed_logs(self, scope: bytes, record: Record) -> list[tuple[bytes, bytes]]:
        """Keys and contents of the logs that are not the stored ones."""
        logs = [(scope + suffix, cast("Log", record[index][-1])) for index, suffix in self.logs.items()]
        return [(key, log.pack()) for key, log in logs if not isinstance(log, StoredLog)]

    def load_logs(self, record: Record) -> None:
        """Fetch all logs now, for states that will be read after their transaction."""
        for index in self.logs:
            cast("Log", record[index][-1]).arrays()


@lru_cache(maxsize=1024)
def _written_out(
    widths: tuple[int, ...], logs: tuple[int, ...], counts: int
) -> tuple[Callable[..., object], Callable[..., object]]:
    """Decoding and encoding for states of these numbers of integers, of which `logs` (by index) have a log,
    and for so many numbers behind them.
    """
    numbers = count()
    states = ["".join(f"i{next(numbers)}, " for _ in range(width)) for width in widths]
    read = [f"({state}{f'log(txn, scope + g{index})' if index in logs else ''})" for index, state in enumerate(states)]
    counted = "".join(f"c{index}, " for index in range(counts))
    written = [f"({state}{'_' if index in logs else ''})" for index, state in enumerate(states)]
    decode = written_out(
        bound=f"unpack, size, own_name, codec, log, {''.join(f'g{index}, ' for index in range(len(widths)))}",
        arguments="stored, txn, scope",
        lines=[
            "if len(stored) != size: return None",
            f"name, {''.join(states)}{counted} = unpack(stored)",
            "if name != own_name: return None",
        ],
        result=f"{''.join(f'{state}, ' for state in read)}{counted}codec,",
    )
    encode = written_out(
        bound="pack, own_name",
        arguments="record",
        lines=[f"{''.join(f'{state}, ' for state in written)}{counted}_ = record"],
        result=f"pack(own_name, {''.join(states)}{counted})",
    )
    return decode, encode


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
