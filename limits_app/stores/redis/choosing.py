"""Choosing: one script for several claims, of which the first that fits is charged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.plan import Plan
from limits_app.core.store import Store
from limits_app.stores.redis.calendars import ALWAYS
from limits_app.stores.redis.commands import Prepared
from limits_app.stores.redis.plans import PreparedPlan
from limits_app.stores.redis.scripts import script

__all__ = ["Choice", "ask_one_after_the_other"]

C = TypeVar("C", bound=Claim)

_HEAD: Final = Struct("<dd")
_REQUEST: Final = Struct("<dddd")
_DECISION: Final = Struct("<dd")
_NUMBER_BYTES: Final = 8


class Choice:
    """The script that chooses among claims of different plans, in whatever order they come, and how to read its reply.

    `possible` is False when two of the plans have different limits in one scope, which cannot be seen in one step.
    """

    __slots__ = ("_places", "call", "permits", "plans", "possible", "quotas")

    def __init__(self, plans: Mapping[Plan, PreparedPlan], *, emptiest_first: bool, failover: bool) -> None:
        self.plans = plans
        parts = [part for plan in plans.values() for part in plan.parts]
        layouts = {part.short_key: part.layout for part in parts}
        self.possible = all(layouts[part.short_key] is part.layout for part in parts)
        self.permits = any(plan.permits for plan in plans.values())
        self.quotas = any(plan.calendars is not None for plan in plans.values())
        packed = list(dict.fromkeys([plan.packed for plan in plans.values()]))
        lengths = accumulate([len(one) for one in packed], initial=1 + _HEAD.size + len(plans) * _REQUEST.size)
        starts = dict(zip(packed, lengths, strict=False))
        self._places: dict[Plan, int] = {}
        requests, keys, numbers = bytearray(), list[bytes](), len(plans) + 2 * self.quotas
        for plan, one in plans.items():
            self._places[plan] = 1 + _HEAD.size + len(requests)
            requests += _REQUEST.pack(1 + len(keys), len(one.keys), one.numbers * _NUMBER_BYTES, starts[one.packed])
            keys += one.keys
            numbers += one.numbers
        blob = b"".join((_HEAD.pack(len(plans), failover), requests, *packed))
        twins = frozenset[str]().union(*[plan.twins for plan in plans.values()])
        shapes = {plan.shape for plan in plans.values()}
        shape = shapes.pop() if len(shapes) == 1 else None
        chosen = script("choose_emptiest" if emptiest_first else "choose", twins, shape)
        self.call = Prepared(chosen, keys, blob, numbers=numbers, extra=1)

    def numbers(self, claims: Sequence[Claim], now: int) -> list[int]:
        """What the script is told: where the plans of the claims stand, and of each its amounts and the calendar."""
        places = self._places
        numbers = [places[claim.plan] for claim in claims]
        if not self.quotas:
            numbers += [amount for claim in claims for amount in claim.amounts]
            return numbers
        known = [ALWAYS]
        for claim in claims:
            numbers += claim.amounts
            calendars = self.plans[claim.plan].calendars
            if calendars is not None:
                told = calendars.around(now)
                numbers += told.boundaries
                known.append(told.known)
        return [*numbers, max([start for start, _ in known]), min([end for _, end in known])]

    def decisions(self, claims: Sequence[C], reply: bytes) -> Iterator[tuple[C, bytes]]:
        """Which of the claims were asked, and what was decided about each: only the last one can be admitted."""
        at = 1
        while at < len(reply):
            turn, size = map(int, _DECISION.unpack_from(reply, at))
            at += _DECISION.size
            yield claims[turn - 1], reply[at : at + size]
            at += size


def ask_one_after_the_other(store: Store, claims: Sequence[C], *, emptiest_first: bool, failover: bool) -> C | None:
    """`Store.acquire_first` in several steps, between which others may be served."""
    if emptiest_first:
        for claim in claims:
            store.peek(claim)
        claims = sorted(claims, key=Claim.load)
    return next((claim for claim in (claims if failover else claims[:1]) if store.acquire(claim)), None)
