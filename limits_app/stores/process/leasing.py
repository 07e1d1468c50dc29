"""Leases in the file: `scope l limit process number` holds how many permits are lent, and until when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

import lmdb

from limits_app.core.algorithms import State
from limits_app.core.claim import Claim
from limits_app.core.keys import short_key
from limits_app.core.plan import Ask, Part
from limits_app.stores.leases import Lease, counted, lent, renewed
from limits_app.stores.process.presence import ID_LENGTH
from limits_app.stores.process.records import under

__all__ = ["Leasing"]

_LEASE: Final = Struct("=3q")
_NUMBER_LENGTH: Final = 8
_LIMIT_LENGTH: Final = 8


class Leasing:
    """Lends permits to the claims of one process, and takes back what others have lost.

    `identity` names the process; `is_alive` says of another one whether it still lives.
    """

    def __init__(self, identity: Callable[[], bytes], is_alive: Callable[[bytes], bool]) -> None:
        self._identity = identity
        self._is_alive = is_alive

    def lend(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> None:
        """Write the leases of an admitted claim."""
        for part, charges in claim.charges:
            for ask, amount in charges:
                if ask.lease_key is not None:
                    txn.put(self._key(part, ask, claim), _LEASE.pack(*lent(ask.rule, amount, now)))

    def take_back(self, txn: lmdb.Transaction[bytes], part: Part, ask: Ask, claim: Claim) -> bool:
        """End the lease of a claim; False when it had run out, and others may have the permit."""
        return bool(txn.delete(self._key(part, ask, claim)))

    def renew(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> bool:
        """Lend all permits of a claim for another lease; False when one of them is lost."""
        for part in claim.plan.parts:
            for ask, _ in part.permits:
                key = self._key(part, ask, claim)
                value = txn.get(key)
                again = None if value is None else renewed(ask.rule, _LEASE.unpack(value), now)
                if again is None:
                    return False
                txn.put(key, _LEASE.pack(*again))
        return True

    def living(self, txn: lmdb.Transaction[bytes], part: Part, ask: Ask, state: State, now: int) -> State:
        """The state without the leases that have run out; reads only."""
        return counted(state, [lease for _, lease in self._leases(txn, part, ask) if lease[1] > now])

    def reclaim(self, txn: lmdb.Transaction[bytes], part: Part, ask: Ask, state: State, now: int) -> State:
        """End the leases that have run out or whose process is gone; returns the state without them."""
        kept: list[Lease] = []
        alive = {self._identity(): True}
        for key, lease in list(self._leases(txn, part, ask)):
            process = key[-ID_LENGTH - _NUMBER_LENGTH : -_NUMBER_LENGTH]
            if process not in alive:
                alive[process] = self._is_alive(process)
            if lease[1] > now and alive[process]:
                kept.append(lease)
            else:
                txn.delete(key)
        return counted(state, kept)

    def _leases(self, txn: lmdb.Transaction[bytes], part: Part, ask: Ask) -> Sequence[tuple[bytes, Lease]]:
        return [(key, _LEASE.unpack(value)) for key, value in under(txn, _prefix(part, ask))]

    def _key(self, part: Part, ask: Ask, claim: Claim) -> bytes:
        return _prefix(part, ask) + self._identity() + claim.number.to_bytes(_NUMBER_LENGTH)


def _prefix(part: Part, ask: Ask) -> bytes:
    return part.short_key + b"l" + short_key(ask.key)[:_LIMIT_LENGTH]
