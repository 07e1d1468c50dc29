"""A claim: the amounts that one request wants, and what a store decided about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from limits_app.core.algorithms import State
from limits_app.core.parts import Amounts, Ask, Bucket, Charges
from limits_app.core.plan import Plan
from limits_app.core.unrolled import Record

__all__ = ["Claim", "next_number"]

next_number: Final = count(1).__next__


class Claim:
    """What is asked of a store; the store fills in the decision.

    `amounts` are those of the plan's limits, in their order.
    `admitted` is None until a store decided; `settled` is set by the store, and by nobody before it.
    `decided_at` and `records` are the moment of the decision and the states of each scope of the plan then:
    with the amounts charged when it was admitted, untouched when it was refused.
    `number` tells a claim of permits from all others of the process.
    """

    __slots__ = ("admitted", "amounts", "decided_at", "number", "plan", "records", "settled")

    plan: Plan
    amounts: Amounts
    admitted: bool | None
    decided_at: int
    records: Sequence[Record]
    settled: bool
    number: int

    def __init__(self, plan: Plan, amounts: Amounts) -> None:
        self.plan = plan
        self.amounts = amounts
        self.admitted = None
        self.settled = False
        if plan.permits:
            self.number = next_number()

    def lapse(self) -> None:
        """Be told by a store that it was given permits back which it had lent to nobody any more.

        Somebody who holds what a claim stands for may want to know; nobody holds a bare claim.
        """

    @property
    def charges(self) -> Charges:
        """The amounts beside the limits that they are of."""
        return list(zip(self.plan.asks, self.amounts, strict=True))

    def asks(self) -> Iterator[tuple[Ask, int, State]]:
        """Each limit that was asked, the amount in parts, and its state in the decision."""
        records = dict(zip(self.plan.parts, self.records, strict=True))
        for ask, amount in zip(self.plan.asks, self.amounts, strict=True):
            yield ask, amount, records[ask.part][ask.index]

    def load(self) -> float:
        """The largest share in use of any of its limits, in the states that were filled in; 0 without limits."""
        parts = zip(self.plan.parts, self.records, strict=True)
        return max([part.load(record, self.decided_at) for part, record in parts], default=0.0)

    def violated(self) -> tuple[list[Bucket], int]:
        """The buckets that refused, and how many microseconds after the decision all of them would admit."""
        buckets, wait = [], 0
        for ask, amount, state in self.asks():
            if ask.rule.take(state, self.decided_at, amount) is None:
                buckets.append((ask.part.key, ask.rule.key))
                wait = max(wait, ask.rule.wait(state, self.decided_at, amount))
        return buckets, wait
