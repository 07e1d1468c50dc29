"""Leases in a scope's row: entries of one length, one after the other.

Bytes are never changed in place, so that what was read stays as it was when nothing is written.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from limits_app.core.algorithms import Rule, State
from limits_app.stores.leases import Lease, counted, lent, renewed

__all__ = ["TAG_LENGTH", "alive", "lease_id", "lend", "recounted", "renew", "take_back"]

TAG_LENGTH: Final = 8
"""How much of a limit's lease key, counted from its end, tells it from the scope's other limits."""

_ENTRY: Final = Struct("=8s8s3q")
ENTRY_LENGTH: Final = _ENTRY.size


def lease_id(process: int, number: int) -> bytes:
    """What names a claim among the leases: its number in a process that drew one of 2^64 starting points."""
    return ((process + number) % 2**64).to_bytes(8)


def lend(leases: bytes, name: bytes, rule: Rule, *, amount: int, now: int) -> bytes:
    """The leases with one more, that starts now; `name` is the limit's tag and the claim's id."""
    return leases + _ENTRY.pack(name[:TAG_LENGTH], name[TAG_LENGTH:], *lent(rule, amount, now))


def take_back(leases: bytes, name: bytes) -> bytes | None:
    """The leases without one; None when it is not there."""
    place = _place(leases, name)
    return None if place is None else leases[:place] + leases[place + ENTRY_LENGTH :]


def renew(leases: bytes, name: bytes, rule: Rule, now: int) -> bytes | None:
    """The leases with one that goes on for another while; None when it has run out."""
    place = _place(leases, name)
    if place is None:
        return None
    tag, holder, amount, expires, ends = _ENTRY.unpack_from(leases, place)
    again = renewed((amount, expires, ends), rule.lease_us, now)
    if again is None:
        return None
    return leases[:place] + _ENTRY.pack(tag, holder, *again) + leases[place + ENTRY_LENGTH :]


def alive(leases: bytes, now: int) -> bytes:
    """The leases that have not run out."""
    entries = [leases[place : place + ENTRY_LENGTH] for place in range(0, len(leases), ENTRY_LENGTH)]
    return b"".join([entry for entry in entries if _ENTRY.unpack(entry)[3] > now])


def recounted(leases: bytes, tag: bytes, state: State) -> State:
    """The state of a limit's permits as its leases say."""
    return counted(state, _of(leases, tag))


def _of(leases: bytes, tag: bytes) -> list[Lease]:
    return [entry[2:] for entry in _ENTRY.iter_unpack(leases) if entry[0] == tag]


def _place(leases: bytes, name: bytes) -> int | None:
    place = leases.find(name)
    while place >= 0 and place % ENTRY_LENGTH:
        # The same bytes by chance, across the fields of an entry.
        place = leases.find(name, place + 1)
    return place if place >= 0 else None
