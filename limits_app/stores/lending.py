"""Lending: the leases of one process, by resource limit and claim."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from limits_app.core.algorithms import State
from limits_app.core.claim import Claim
from limits_app.stores.leases import Lease, counted, lent, renewed

__all__ = ["Lending"]

_NOTHING: Final[Collection[bytes]] = ()


class Lending:
    """Who has which permits. Not locked: its store is."""

    def __init__(self) -> None:
        self._leases: dict[bytes, dict[int, Lease]] = {}

    def __len__(self) -> int:
        """How many leases run."""
        return sum(map(len, self._leases.values()))

    def lend(self, claim: Claim, now: int) -> None:
        """Start the leases of an admitted claim."""
        for place, ask, lease_key in claim.plan.leases:
            leases = self._leases.get(lease_key)
            if leases is None:
                leases = self._leases[lease_key] = {}
            leases[claim.number] = lent(ask.rule, claim.charges[place][1], now)

    def take_back(self, claim: Claim) -> Collection[bytes]:
        """End the leases of a claim; returns those that had run out before, whose permits others may have."""
        lost = _NOTHING
        for _, _, lease_key in claim.plan.leases:
            leases = self._leases.get(lease_key)
            if leases is None or leases.pop(claim.number, None) is None:
                lost = (*lost, lease_key)
            elif not leases:
                del self._leases[lease_key]
        return lost

    def renew(self, claim: Claim, now: int) -> bool:
        """Lend everything for another lease; False when some of it has run out."""
        for _, ask, lease_key in claim.plan.leases:
            leases = self._leases.get(lease_key, {})
            lease = leases.get(claim.number)
            again = None if lease is None else renewed(ask.rule, lease, now)
            if again is None:
                return False
            leases[claim.number] = again
        return True

    def counted(self, lease_key: bytes, state: State, now: int) -> State:
        """The state of permits as the leases say that have not run out."""
        return counted(state, [lease for lease in self._leases.get(lease_key, {}).values() if lease[1] > now])

    def drop_expired(self, lease_key: bytes, now: int) -> None:
        """Forget the leases of a resource limit that have run out."""
        leases = self._leases.get(lease_key, {})
        for number in [number for number, lease in leases.items() if lease[1] <= now]:
            del leases[number]
        if not leases:
            self._leases.pop(lease_key, None)
