"""The trail of a row: which links changed it last, and with which stamp, by which a lost reply is made up for.

It stands before the states: its length in entries, then each link's number and stamp, the latest at the end.
A link that does not know what became of a change looks here, and finds it unless 64 others have written since.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

__all__ = ["framed", "left_by", "noted", "unframed"]

_ENTRY: Final = Struct("=2q")
_MOST: Final = 64


def noted(trail: bytes, link: int, stamp: int) -> bytes:
    """The trail after one more change."""
    others = [entry for entry in _ENTRY.iter_unpack(trail) if entry[0] != link]
    return b"".join([_ENTRY.pack(*entry) for entry in others[1 - _MOST :]]) + _ENTRY.pack(link, stamp)


def left_by(trail: bytes, link: int) -> int | None:
    """The stamp of a link's last change; None when it has left none."""
    return dict(_ENTRY.iter_unpack(trail)).get(link)


def framed(trail: bytes) -> bytes:
    """The trail as it stands before the states."""
    return bytes([len(trail) // _ENTRY.size]) + trail


def unframed(packed: bytes) -> tuple[bytes, bytes]:
    """The trail, and the states behind it."""
    end = 1 + packed[0] * _ENTRY.size
    return packed[1:end], packed[end:]
