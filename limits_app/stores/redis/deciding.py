"""Decisions: what a reply says about claims. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.errors import StaleConfiguration
from limits_app.stores.redis.choosing import Choice
from limits_app.stores.redis.moments import Moments, moment_of
from limits_app.stores.redis.plans import PreparedPlan, Records
from limits_app.stores.redis.refusals import Refusals

__all__ = [
    "ADMITTED",
    "CHANGED",
    "DONE",
    "FOUND",
    "LAPSED",
    "NEVER_LEARNED",
    "NEWCOMERS",
    "NOT_YET",
    "REFUSED",
    "Decisions",
]

C = TypeVar("C", bound=Claim)

# How replies start.
DONE: Final = ord("A")
NEWCOMERS: Final = ord("N")
LAPSED: Final = ord("L")
REFUSED: Final = ord("R")
FOUND: Final = ord("F")
CHANGED: Final = ord("C")
_STALE: Final = ord("S")
ADMITTED: Final = b"AN"
NOT_YET: Final = b"CT"
"""Something has to be done or told before the question can be answered."""

NEVER_LEARNED: Final = -1
"""Instead of how often refusals were forgotten: this one is not to be remembered."""


class Decisions:
    """Fills claims in; time is learned from refusals, and so are they themselves where time is the server's."""

    def __init__(self, moments: Moments, refusals: Refusals) -> None:
        self._moments = moments
        self._refusals = refusals

    def fill(self, claim: Claim, prepared: PreparedPlan, reply: bytes, forgotten: int) -> int:
        """Fill in what was decided; returns how the reply starts. Raises StaleConfiguration."""
        status, read = reply[0], prepared.read_one
        if status == _STALE:
            raise StaleConfiguration
        refused = status == REFUSED
        if refused or read is None:
            claim.decided_at, claim.records = moment_of(reply), Records(prepared, reply, refused=refused)
        else:
            claim.decided_at, claim.records = read(reply)
        claim.admitted = not refused
        if refused:
            self._moments.heard(claim.decided_at)
            if claim.plan.version is None and self._moments.now is None:
                self._refusals.learn(claim, forgotten)
        return status

    def fill_first(
        self, claims: Sequence[C], choice: Choice, reply: bytes, forgotten: int
    ) -> tuple[C | None, PreparedPlan | None]:
        """Fill in what was decided of several; returns what was admitted, and its plan if there were newcomers."""
        if reply[0] == _STALE:
            raise StaleConfiguration
        for claim, decision in choice.decisions(claims, reply):
            prepared = choice.plans[claim.plan]
            status = self.fill(claim, prepared, decision, forgotten)
            if status != REFUSED:
                return claim, prepared if status == NEWCOMERS else None
        return None, None

    def worth_asking(self, claims: Sequence[C], *, emptiest_first: bool, failover: bool) -> Sequence[C]:
        """The claims that may be asked, without those of which it is known that they are refused."""
        if not failover:
            return claims if emptiest_first else claims[:1]
        if not self._refusals:
            return claims
        return [claim for claim in claims if claim.plan.version is not None or not self._refusals.refuses(claim)]
