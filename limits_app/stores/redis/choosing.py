"""Choosing: one script for several claims, of which the first that fits is charged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.store import Store
from limits_app.stores.redis.calendars import ALWAYS
from limits_app.stores.redis.commands import Prepared
from limits_app.stores.redis.plans import PreparedPlan
from limits_app.stores.redis.scripts import script

__all__ = ["Choice", "ask_one_after_the_other"]

C = TypeVar("C", bound=Claim)

_HEAD: Final = Struct("<ddd")
_DECISION: Final = Struct("<dd")
_NUMBER_BYTES: Final = 8


class Choice:
    """The script that chooses among the plans of some claims, and how to read what it replies.

    `possible` is False when two of the plans have different limits in one scope, which cannot be seen in one step.
    """

    __slots__ = ("call", "permits", "plans", "possible", "quotas")

    def __init__(self, plans: Sequence[PreparedPlan], *, emptiest_first: bool, failover: bool) -> None:
        self.plans = plans
        layouts = {part.short_key: part.layout for plan in plans for part in plan.parts}
        self.possible = all(layouts[part.short_key] is part.layout for plan in plans for part in plan.parts)
        self.permits = any(plan.permits for plan in plans)
        self.quotas = any(plan.calendars is not None for plan in plans)
        blob = [_HEAD.pack(len(plans), emptiest_first, failover)]
        for plan in plans:
            blob += [_HEAD.pack(len(plan.keys), plan.numbers * _NUMBER_BYTES, len(plan.packed)), plan.packed]
        twins = frozenset[str]().union(*[plan.twins for plan in plans])
        keys = [key for plan in plans for key in plan.keys]
        numbers = sum(plan.numbers for plan in plans) + 2 * self.quotas
        self.call = Prepared(script("choose", twins), keys, b"".join(blob), numbers=numbers, extra=1)

    def numbers(self, claims: Sequence[Claim], now: int) -> list[int]:
        """What the script is told: of each claim its amounts, and the calendars at a moment."""
        if not self.quotas:
            return [amount for claim in claims for amount in claim.amounts]
        numbers, known = list[int](), [ALWAYS]
        for claim, plan in zip(claims, self.plans, strict=True):
            numbers += claim.amounts
            if plan.calendars is not None:
                told = plan.calendars.around(now)
                numbers += told.boundaries
                known.append(told.known)
        return [*numbers, max([start for start, _ in known]), min([end for _, end in known])]

    def decisions(self, reply: bytes) -> Iterator[tuple[int, bytes]]:
        """Which of the claims were asked, and what was decided about each: only the last one can be admitted."""
        at = 1
        while at < len(reply):
            number, size = map(int, _DECISION.unpack_from(reply, at))
            at += _DECISION.size
            yield number - 1, reply[at : at + size]
            at += size


def ask_one_after_the_other(store: Store, claims: Sequence[C], *, emptiest_first: bool, failover: bool) -> C | None:
    """`Store.acquire_first` in several steps, between which others may be served."""
    if emptiest_first:
        for claim in claims:
            store.peek(claim)
        claims = sorted(claims, key=Claim.load)
    return next((claim for claim in (claims if failover else claims[:1]) if store.acquire(claim)), None)
