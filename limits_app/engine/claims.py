"""Claims: the amounts of one request, the decision of a store on them, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from limits_app.engine.algorithms import State
from limits_app.engine.compiled import mypyc_attr
from limits_app.engine.keys import holder_in
from limits_app.engine.plan import Amounts, Bucket, PlannedLimit, RequestPlan
from limits_app.engine.record import Holder

_CLAIM_NUMBERS: Final = count(1)


@mypyc_attr(allow_interpreted_subclasses=True)
class Claim:
    """The amounts of one request, in the order of the limits of its plan, and the decision of a store.

    `version` is that of the configuration that its limits come from, None for limits that never change. `fits` is
    False where the limits can never admit the amounts.
    `admitted` stays None until a store has decided. `decided_at` (microseconds) and `states` (one for each limit of the
    plan) are those of the decision: with the amounts charged when it was admitted, unchanged when it was rejected.
    `settled` is True once the changes were settled, or nothing is left to settle; a store alone says the former.
    A claim that `undoes` is settled as if it had not been charged: refunded with every algorithm. Where its request
    `has_run`, others that were in use before it may have been undone meanwhile.
    `put_off` is True once they are kept, to be settled later. `unanswered` is True once they were sent without an
    answer: then only permits and debt are sent again. `number` identifies a claim with permits in this process (0 for
    others); `holder` identifies it in leases, and stores that several processes share replace it by bytes that no
    other process uses. `taken_from` is the slice of this process that admitted it, None for a store.
    `is_over` is True where it belongs to a token whose lease was not there any more when it was settled: nothing was
    changed then.
    `repeated_us` is for how many microseconds a store repeats an earlier rejection, None for its own decision.
    `held_anew` is when the longest holds of its permits started again, by their positions: at a renewal after the clock
    was set back; None where none did.
    """

    # What is read for every claim is its own: that is found faster than a default of the class.
    admitted: bool | None = None
    fits = True
    has_run = False
    decided_at = 0
    states: Sequence[State] = ()
    repeated_us: int | None = None
    held_anew: dict[int, int] | None = None
    number = 0
    holder: Holder = 0
    taken_from: object = None
    is_over = False

    def __init__(self, plan: RequestPlan, amounts: Amounts, version: int | None = None) -> None:
        self.plan = plan
        self.shape = shape = plan.shape
        self.amounts = amounts
        self.version = version
        self.settled = False
        self.put_off = False
        self.unanswered = False
        self.undoes = False
        if shape.permits:
            self.number = self.holder = next(_CLAIM_NUMBERS)
            if shape.token_lease is not None:
                self.holder = holder_in(plan.scope_keys[shape.token_lease.scope_index])

    @property
    def released(self) -> bool:
        """Whether its holder is done with it: it is settled, or will be settled from kept changes."""
        return self.settled or self.put_off

    def lose_lease(self) -> None:
        """Act on a lease of the claim that had run out; stores call it outside locks. Only an acquisition does."""

    def held_since(self, limit: PlannedLimit) -> int:
        """Return from when on the longest hold of a permit counts."""
        return self.decided_at if self.held_anew is None else self.held_anew.get(limit.position, self.decided_at)

    def note_held_since(self, limit: PlannedLimit, since: int) -> None:
        """Note from when on the longest hold of a permit counts."""
        if since != self.held_since(limit):
            self.held_anew = {**(self.held_anew or {}), limit.position: since}

    def held_until(self, limit: PlannedLimit) -> int:
        """Return when the longest hold of a permit ends."""
        return self.held_since(limit) + limit.rule.hold_us

    def decisions(self) -> Iterator[tuple[PlannedLimit, int, State]]:
        """Iterate over the limits with their amounts and the states of the decision."""
        for limit in self.shape.limits:
            yield limit, self.amounts[limit.position], self.states[limit.position]

    def used_before(self, limit: PlannedLimit) -> int:
        """Return how much of a limit was surely in use when the claim was charged, without what it was charged."""
        if self.has_run or not self.states:
            return 0
        return max(limit.rule.used(self.states[limit.position], self.decided_at) - self.amounts[limit.position], 0)

    def window_start(self, limit: PlannedLimit) -> int:
        """Return the start of the window of a limit that the claim was charged to; see `Rule.window_start`."""
        return limit.rule.window_start(self.states[limit.position]) if self.states else 0

    def load(self) -> float:
        """Return the largest share in use of any of the limits, above 1 in debt; 0 without limits."""
        most = 0.0
        for limit in self.shape.limits:
            used = limit.rule.used(self.states[limit.position], self.decided_at)
            most = max(most, used / limit.rule.ceiling_parts)
        return most

    def wait_us(self, limit: PlannedLimit) -> int:
        """Return after how many microseconds a limit would admit its amount: of a repeated rejection, when it ends.

        Changes in another process since the rejection are noticed then.
        """
        wait = limit.rule.wait(self.states[limit.position], self.decided_at, self.amounts[limit.position])
        return wait if self.repeated_us is None else min(wait, self.repeated_us)

    def retry_us(self) -> int:
        """Return after how many microseconds all limits would admit, for a pool that chooses the next member to try."""
        wait, states, now = 0, self.states, self.decided_at
        for limit in self.shape.limits:
            rule, position = limit.rule, limit.position
            if not rule.is_soft:
                wait = max(wait, rule.wait(states[position], now, self.amounts[position]))
        return wait if self.repeated_us is None else min(wait, self.repeated_us)

    def refusal(self) -> tuple[list[Bucket], int]:
        """Return the buckets that rejected, and after how many microseconds all would admit, for a waiting line."""
        buckets, wait = [], 0
        for limit, amount, state in self.decisions():
            if limit.rule.charged(state, self.decided_at, amount) is None:
                buckets.append(self.plan.buckets[limit.position])
                wait = max(wait, self.wait_us(limit))
        return buckets, wait
