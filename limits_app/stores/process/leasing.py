"""Leases in the file: `lease key, process, number` holds how many permits are lent, and until when."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

import lmdb

from limits_app.core.algorithms import State
from limits_app.core.claim import Claim
from limits_app.stores.leases import Lease, counted, lent, renewed
from limits_app.stores.process.presence import ID_LENGTH
from limits_app.stores.process.scan import under

__all__ = ["LEASE", "Leasing"]

LEASE: Final = Struct("=3q")
"""How a lease is written."""

_NUMBER_LENGTH: Final = 8


class Leasing:
    """Lends permits to the claims of one process, and takes back what others have lost.

    `identity` names the process; `is_alive` says of another one whether it still lives.
    """

    def __init__(self, identity: Callable[[], bytes], is_alive: Callable[[bytes], bool]) -> None:
        self._identity = identity
        self._is_alive = is_alive

    def lend(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> None:
        """Write the leases of an admitted claim."""
        for place, ask, lease_key in claim.plan.leases:
            amount, expires, ends = lent(ask.rule, claim.charges[place][1], now)
            txn.put(self._key(lease_key, claim), LEASE.pack(amount, expires, ends))

    def take_back(self, txn: lmdb.Transaction[bytes], lease_key: bytes, claim: Claim) -> bool:
        """End the lease of a claim; False when it had run out, and others may have the permit."""
        return bool(txn.delete(self._key(lease_key, claim)))

    def renew(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> bool:
        """Lend all permits of a claim for another lease; False when one of them is lost."""
        for _, ask, lease_key in claim.plan.leases:
            key = self._key(lease_key, claim)
            value = txn.get(key)
            again = None if value is None else renewed(ask.rule, LEASE.unpack(value), now)
            if again is None:
                return False
            txn.put(key, LEASE.pack(*again))
        return True

    def counted(self, txn: lmdb.Transaction[bytes], lease_key: bytes, state: State, now: int) -> State:
        """The state as the leases say that have not run out; reads only."""
        leases = [LEASE.unpack(value) for _, value in under(txn, lease_key)]
        return counted(state, [lease for lease in leases if lease[1] > now])

    def reclaim(self, txn: lmdb.Transaction[bytes], lease_key: bytes, state: State, now: int) -> State:
        """End the leases that have run out or whose process is gone; returns the state without them."""
        kept: list[Lease] = []
        alive = {self._identity(): True}
        for key, value in list(under(txn, lease_key)):
            lease = LEASE.unpack(value)
            process = key[-ID_LENGTH - _NUMBER_LENGTH : -_NUMBER_LENGTH]
            if process not in alive:
                alive[process] = self._is_alive(process)
            if lease[1] > now and alive[process]:
                kept.append(lease)
            else:
                txn.delete(key)
        return counted(state, kept)

    def _key(self, lease_key: bytes, claim: Claim) -> bytes:
        return lease_key + self._identity() + claim.number.to_bytes(_NUMBER_LENGTH)
