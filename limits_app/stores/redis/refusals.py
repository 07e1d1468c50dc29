"""Refusals that are known: whoever asks for the same again before the moment that was named needs no round trip.

What is known here may refuse, and never admits. It is forgotten when anything was given back or changed by this
process or by one that was heard, and after a second at the latest, since not everything is heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import Final

from limits_app.core.claim import Claim
from limits_app.core.parts import Amounts
from limits_app.core.plan import Plan
from limits_app.core.unrolled import Record

__all__ = ["Refusals"]

_MOST: Final = 4096
_MOST_US: Final = 1_000_000


class Refusals:
    """The refusals of one process, by plan."""

    def __init__(self) -> None:
        self._known: dict[Plan, tuple[Amounts, int, int, int, Sequence[Record]]] = {}
        self.forgotten = 0
        """Grows whenever everything is forgotten, so that what was decided before is not learned after."""

    def __len__(self) -> int:
        return len(self._known)

    def refuses(self, claim: Claim) -> bool:
        """Refuse a claim, if that is known."""
        known = self._known.get(claim.plan)
        if known is None:
            return False
        amounts, heard_at, most, decided_at, records = known
        passed = monotonic_ns() // 1000 - heard_at
        if passed >= most or (amounts is not claim.amounts and list(amounts) != list(claim.amounts)):
            return False
        claim.admitted = False
        claim.decided_at, claim.records = decided_at + passed, records
        return True

    def learn(self, claim: Claim, forgotten: int) -> None:
        """Remember a refusal that was just heard, unless permits refused or everything was forgotten meanwhile."""
        wait = _wait(claim) if forgotten == self.forgotten else 0
        if wait:
            if len(self._known) >= _MOST:
                self._known.clear()
            heard_at = monotonic_ns() // 1000
            most = min(wait, _MOST_US)
            self._known[claim.plan] = (claim.amounts, heard_at, most, claim.decided_at, claim.records)

    def forget(self) -> None:
        """Something has changed."""
        self.forgotten += 1
        if self._known:
            self._known.clear()


def _wait(claim: Claim) -> int:
    """For how long the claim is refused whatever others give back; 0 when that depends on permits."""
    wait = 0
    for ask, amount, state in claim.asks():
        if ask.rule.take(state, claim.decided_at, amount) is None:
            if ask.lease_key is not None:
                return 0
            wait = max(wait, ask.rule.wait(state, claim.decided_at, amount))
    return wait
