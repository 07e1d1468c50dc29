"""Leases in the file: `lease key, process, number` holds how many permits are lent, and until when."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

import lmdb

from limits_app.core.algorithms import State
from limits_app.core.claim import Claim
from limits_app.core.plan import Amounts
from limits_app.stores.leases import Lease, counted, renewed
from limits_app.stores.process.presence import ID_LENGTH
from limits_app.stores.process.scan import under

__all__ = ["LEASE", "Leasing"]

LEASE: Final = Struct("=3q")
"""How a lease is written."""

_HOLDER: Final = Struct(f">{ID_LENGTH}sQ")
"""Whose lease it is: the process, and the number of its claim."""


class Leasing:
    """Lends permits to the claims of one process, and takes back what others have lost.

    `identity` names the process; `is_alive` says of another one whether it still lives.
    """

    def __init__(self, identity: Callable[[], bytes], is_alive: Callable[[bytes], bool]) -> None:
        self._identity = identity
        self._is_alive = is_alive

    def lend(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> None:
        """Write the leases of an admitted claim."""
        holder = self._holder(claim)
        for part in claim.plan.lending:
            for place, (lease_us, hold_us, lease_key) in part.permits.items():
                txn.put(lease_key + holder, LEASE.pack(claim.amounts[place], now + lease_us, now + hold_us))

    def take_back(self, txn: lmdb.Transaction[bytes], claim: Claim, changes: Amounts) -> Amounts:
        """End the leases of a claim; returns the changes but for those permits whose leases had run out before,
        since others may have them.
        """
        holder = self._holder(claim)
        for part in claim.plan.lending:
            for place, (_, _, lease_key) in part.permits.items():
                if not txn.delete(lease_key + holder):
                    changes = [*changes[:place], 0, *changes[place + 1 :]]
        return changes

    def renew(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> bool:
        """Lend all permits of a claim for another lease; False when one of them is lost."""
        holder = self._holder(claim)
        for part in claim.plan.lending:
            for lease_us, _, lease_key in part.permits.values():
                value = txn.get(lease_key + holder)
                again = None if value is None else renewed(LEASE.unpack(value), lease_us, now)
                if again is None:
                    return False
                txn.put(lease_key + holder, LEASE.pack(*again))
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
            process, _ = _HOLDER.unpack_from(key, len(key) - _HOLDER.size)
            if process not in alive:
                alive[process] = self._is_alive(process)
            if lease[1] > now and alive[process]:
                kept.append(lease)
            else:
                txn.delete(key)
        return counted(state, kept)

    def _holder(self, claim: Claim) -> bytes:
        return _HOLDER.pack(self._identity(), claim.number)
