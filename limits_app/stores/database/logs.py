"""Logs as a row holds them: a database takes longer the more is written, so that few bytes are worth some steps.

The entries of a log resemble each other in all but a few bytes.
Of the times and of the totals the bytes of the same place stand together, and once where all entries have the same.
What varies most comes first, by which a database sees soon that there is nothing to compress.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from limits_app.core.algorithms.log import Log

__all__ = ["pack", "unpack"]

_WIDTH: Final = 8
_HEAD: Final = Struct("<IH")
"""How many entries there are, and which of the places vary, as bits."""


def pack(logs: Iterable[Log]) -> bytes:
    """Write logs one after the other."""
    return b"".join([_packed(log) for log in logs])


def unpack(packed: bytes) -> Iterator[Log]:
    """Read what `pack` wrote."""
    at = 0
    while at < len(packed):
        count, varying = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        columns = []
        for first in (0, _WIDTH):
            numbers = bytearray(_WIDTH * count)
            for place in range(_WIDTH if count else 0):
                size = count if varying >> (first + place) & 1 else 1
                numbers[place::_WIDTH] = packed[at : at + size] * (count // size)
                at += size
            columns.append(array("q", bytes(numbers)))
        yield Log(*columns)


def _packed(log: Log) -> bytes:
    count, varying, columns = len(log), 0, []
    if count:
        raw = log.pack()
        for first in (0, _WIDTH):
            numbers = raw[first * count : (first + _WIDTH) * count]
            for place in range(_WIDTH):
                column = numbers[place::_WIDTH]
                if column.count(column[0]) == count:
                    column = column[:1]
                else:
                    varying |= 1 << (first + place)
                columns.append(column)
    return _HEAD.pack(count, varying) + b"".join(columns)
