"""Lending: who has which permits in a store of one process; one loan for all permits of a claim in one scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from limits_app.core.algorithms import State
from limits_app.core.at_once import Loan, Loans
from limits_app.core.claim import Claim
from limits_app.core.parts import Amounts, Part

__all__ = ["Lending"]

_NONE: Final[dict[int, Loan]] = {}


class Lending:
    """Keeps loans. Not locked: its store is."""

    def __init__(self) -> None:
        self.loans: Loans = {}

    def __len__(self) -> int:
        """How many loans run."""
        return sum(map(len, self.loans.values()))

    def lend(self, part: Part, claim: Claim, now: int) -> None:
        """Start the loan of an admitted claim in one scope."""
        loans = self.loans.get(part.key)
        if loans is None:
            loans = self.loans[part.key] = {}
        loans[claim.number] = (part, claim.amounts, now, now)

    def take_back(self, part: Part, claim: Claim, changes: Amounts) -> Amounts:
        """End the loan of a claim in one scope; returns the changes, or where permits ran out before, since others
        may have them, others without these.
        """
        loans = self.loans.get(part.key, _NONE)
        loan = loans.pop(claim.number, None)
        if loan is None or loan[1] is not claim.amounts:
            kept = list(changes)
            for place in part.permits:
                kept[place] = 0 if loan is None else -loan[1][place]
            return kept
        return changes

    def renew(self, claim: Claim, now: int) -> bool:
        """Lend everything for another lease; False when some of it has run out."""
        for part in claim.plan.lending:
            loans = self.loans.get(part.key, {})
            loan = loans.get(claim.number)
            if loan is None or not all(_expires(loan, place) > now for place in part.permits):
                return False
            loans[claim.number] = (part, loan[1], loan[2], now)
        return True

    def counted(self, scope: str, key: str, state: State, now: int) -> State:
        """The state of the permits of a limit as the loans say that have not run out; the fence stays."""
        living = [(loan[1][place], expires) for _, loan, place, expires in self._of(scope, key) if expires > now]
        earliest = min((expires for _, expires in living), default=0)
        return sum(amount for amount, _ in living), len(living), state[2], earliest

    def drop_expired(self, scope: str, key: str, now: int) -> None:
        """Forget the permits of a limit that have run out."""
        for number, (part, amounts, since, renewed), place, expires in list(self._of(scope, key)):
            if expires <= now:
                left = (*amounts[:place], 0, *amounts[place + 1 :])
                loans = self.loans[scope]
                if any(left[permit] for permit in part.permits):
                    loans[number] = (part, left, since, renewed)
                else:
                    del loans[number]
        if not self.loans.get(scope, True):  # a release leaves the empty dictionary for the next one
            del self.loans[scope]

    def _of(self, scope: str, key: str) -> Iterator[tuple[int, Loan, int, int]]:
        """The loans of permits of a limit: by which claim, where its amount stands, and when it runs out."""
        for number, loan in self.loans.get(scope, {}).items():
            place = loan[0].place_of(key)
            if place in loan[0].permits and loan[1][place]:  # the limit may have been another kind
                yield number, loan, place, _expires(loan, place)


def _expires(loan: Loan, place: int) -> int:
    """When a permit of a loan runs out; at once when it has done so before."""
    part, amounts, since, renewed = loan
    lease_us, hold_us, _ = part.permits[place]
    return min(renewed + lease_us, since + hold_us) if amounts[place] else 0
