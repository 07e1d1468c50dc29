"""Leases in the file: `lease key, process, number` holds how many permits are lent, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final

import lmdb

from limits_app.core.algorithms import State
from limits_app.core.claim import Claim
from limits_app.core.parts import Amounts
from limits_app.stores.leases import Lease, counted, renewed
from limits_app.stores.process.presence import ID_LENGTH
from limits_app.stores.process.scan import under

__all__ = ["LEASE", "Leasing"]

LEASE: Final = Struct("=3q")
"""How a lease is written."""

_written: Final = LEASE.pack

_NUMBER_LENGTH: Final = 8
_HOLDER_LENGTH: Final = ID_LENGTH + _NUMBER_LENGTH


class Leasing:
    """Lends permits to the claims of one process, and takes back what others have lost.

    `identity` names the process; `is_alive` says of another one whether it still lives.
    """

    def __init__(self, identity: Callable[[], bytes], is_alive: Callable[[bytes], bool]) -> None:
        self.identity = identity
        self._is_alive = is_alive

    def _holder(self, claim: Claim) -> bytes:
        """Whose lease it is: the process, and the number of its claim."""
        return self.identity() + claim.number.to_bytes(_NUMBER_LENGTH)

    def lend(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> None:
        """Write the leases of an admitted claim."""
        holder = self._holder(claim)
        for place, (lease_us, hold_us, lease_key) in claim.plan.lent:
            txn.put(lease_key + holder, _written(claim.amounts[place], now + lease_us, now + hold_us))

    def take_back(self, txn: lmdb.Transaction[bytes], claim: Claim, changes: Amounts) -> Amounts:
        """End the leases of a claim; returns the changes, or where leases had run out before, since others may have
        the permits, others without these.
        """
        holder = self._holder(claim)
        for place, permit in claim.plan.lent:
            if not txn.delete(permit.lease_key + holder):
                changes = [*changes[:place], 0, *changes[place + 1 :]]
        return changes

    def renew(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> bool:
        """Lend all permits of a claim for another lease; False when one of them is lost."""
        holder = self._holder(claim)
        for _, (lease_us, _, lease_key) in claim.plan.lent:
            value = txn.get(lease_key + holder)
            again = None if value is None else renewed(LEASE.unpack(value), lease_us, now)
            if again is None:
                return False
            txn.put(lease_key + holder, _written(*again))
        return True

    def renew_all(self, txn: lmdb.Transaction[bytes], claims: Iterable[Claim], now: int) -> list[Claim]:
        """The same for many claims; returns those that have lost one."""
        return [claim for claim in claims if not self.renew(txn, claim, now)]

    def counted(self, txn: lmdb.Transaction[bytes], lease_key: bytes, state: State, now: int) -> State:
        """The state as the leases say that have not run out; reads only."""
        leases = [LEASE.unpack(value) for _, value in under(txn, lease_key)]
        return counted(state, [lease for lease in leases if lease[1] > now])

    def reclaim(self, txn: lmdb.Transaction[bytes], lease_key: bytes, state: State, now: int) -> State:
        """End the leases that have run out or whose process is gone; returns the state without them."""
        kept: list[Lease] = []
        alive = {self.identity(): True}
        for key, value in list(under(txn, lease_key)):
            lease = LEASE.unpack(value)
            process = key[-_HOLDER_LENGTH:-_NUMBER_LENGTH]
            if process not in alive:
                alive[process] = self._is_alive(process)
            if lease[1] > now and alive[process]:
                kept.append(lease)
            else:
                txn.delete(key)
        return counted(state, kept)
