"""The store of requests that are allowed while another store is unavailable."""

from __future__ import annotations

from collections.abc import Sequence

from limits_app.engine import Amounts, Claim
from limits_app.stores.memory import MemoryStore


class AllowingStore(MemoryStore):
    """Decides as if nothing had been used, and stores nothing."""

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        self.peek(claim)
        rejecting, _ = claim.refusal()
        claim.admitted = not rejecting
        return claim.admitted

    def settle(self, claim: Claim, changes: Amounts) -> None:  # noqa: ARG002 - as `Store` has it
        """See `Store.settle`."""
        claim.settled = True

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:  # noqa: ARG002 - as `Store` has it
        """See `Store.renew`."""
        return []
