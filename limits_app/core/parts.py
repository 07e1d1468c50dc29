"""The parts of a plan: limits that apply together in one scope, and which amounts of a request are theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from limits_app.core.algorithms import Rule
from limits_app.core.amounts import MILLI, shown, to_milli
from limits_app.core.crediting import crediter
from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import Scope, lease_key, short_key
from limits_app.core.layout import Layout
from limits_app.core.limits import CallLimit, RateLimit
from limits_app.core.unrolled import Record, Settle, Take, settler, taker

__all__ = ["FOREVER", "Amounts", "Ask", "Bucket", "Charges", "Part", "Permit", "ScopedLimits", "parts_of"]

Amounts = Sequence[int]
"""Amounts, or changes of amounts, one for each limit of a plan, in parts of the limit's unit."""

Bucket = tuple[str, str]
"""A scope's key and a limit's key."""

Charges = Sequence[tuple["Ask", int]]
"""Amounts, or changes of amounts, beside the limits that they are of."""

FOREVER: Final = 2**53
"""A time that never passes, in microseconds."""


@dataclass(frozen=True, slots=True)
class ScopedLimits:
    """Limits that apply together in one scope, and where they were set (`level`, for outcomes; `levels` where that
    differs from limit to limit).

    `prefix` goes before their keys in requests and reports, where those are about several resources.
    `degraded` says that they are decided without the store in which their state is, which is down.
    `lasting` says that somebody has set them for this scope alone: a store that forgets idle state keeps theirs.
    """

    scope: Scope
    layout: Layout
    level: str = "set"
    prefix: str = ""
    degraded: bool = False
    levels: tuple[str, ...] = ()
    lasting: bool = False

    def level_of(self, index: int) -> str:
        """Where the limit at an index was set."""
        return self.levels[index] if self.levels else self.level


class Ask:
    """One limit that a request takes from, and where its state stands: at `index` of the record of its part.

    `key` is how requests name it.
    `lease_key`, of 25 bytes, names the leases of a resource limit, and is None for every other limit.
    """

    __slots__ = ("ceiling", "index", "key", "lease_key", "part", "rule", "scale")

    def __init__(self, part: Part, index: int, rule: Rule) -> None:
        self.part = part
        self.index = index
        self.rule = rule
        self.key = part.scoped.prefix + rule.key
        self.scale = rule.parts_per_unit
        self.ceiling = rule.most_parts
        self.lease_key = lease_key(part.short_key, rule.key) if rule.is_permit else None

    @property
    def comes_back(self) -> bool:
        """Whether what was taken and not used can be given back."""
        limit = self.rule.limit
        return not isinstance(limit, RateLimit | CallLimit) or limit.algorithm.refunds

    def counted(self, parts: int) -> int:
        """An amount as a request takes it: of a soft limit no more than debt can remember, which is what comes back."""
        return min(parts, self.ceiling) if self.rule.limit.soft else parts


class Permit(NamedTuple):
    """A resource limit of a request: how long leases last, how long permits may be held, and the name of its leases."""

    lease_us: int
    hold_us: int
    lease_key: bytes


class Part:
    """One scope from which a request takes.

    `start` is a record that nobody has used, with the layout for a note.
    `amounts` is how many a whole request has, of all its scopes.
    `asked` says which limit, by index, takes which of them, by place;
    `permits` are its resource limits among them, by place.
    `is_credit` says that it gives back what no claim holds, and takes nothing.
    `counts` says whether its records count what is admitted; credit makes nothing unused.
    """

    def __init__(self, scoped: ScopedLimits, *, is_credit: bool = False) -> None:
        self.scoped = scoped
        self.is_credit = is_credit
        self.key = scoped.scope.key
        self.layout = scoped.layout
        self.counts = self.layout.counts and not is_credit
        self.start: Record = (*self.layout.blank, self.layout)
        self.amounts = 0
        self.asked: dict[int, int] = {}
        self.permits: dict[int, Permit] = {}

    # What not every store wants is made when it is wanted.

    @cached_property
    def short_key(self) -> bytes:
        """The key of the scope in stores in which long keys cost."""
        return short_key(self.key)

    @cached_property
    def leases(self) -> Sequence[tuple[int, bytes]]:
        """Its permits, whether the request names them or not: where they stand, and the names of their leases."""
        return self.layout.leases(self.short_key)

    @cached_property
    def take(self) -> Take:
        """Change the record of the scope by the amounts of a whole request."""
        return taker(self.layout.rules, self.asked, self.amounts, counts=self.layout.counts)

    @cached_property
    def settle(self) -> Settle:
        """Change the record of the scope by what is different from those amounts."""
        if self.is_credit:
            return crediter(self.layout.rules, self.asked)
        return settler(self.layout.rules, self.asked, self.amounts, counts=self.layout.counts)

    def ask(self, index: int, place: int) -> None:
        """Take the amount at `place` from the limit at `index`."""
        rule = self.layout.rules[index]
        self.asked[index] = place
        if rule.is_permit:
            hold_us = FOREVER if rule.hold_us is None else rule.hold_us
            self.permits[place] = Permit(rule.lease_us, hold_us, lease_key(self.short_key, rule.key))

    def counted(self, changes: Amounts) -> dict[str, int]:
        """What settling changes counts for, by key, in thousandths; permits that are given back have been used."""
        rules = self.layout.rules
        asked = [(rules[index], changes[place]) for index, place in self.asked.items() if place not in self.permits]
        return {rule.key: change * MILLI // rule.parts_per_unit for rule, change in asked if change}

    def load(self, record: Record, now: int) -> float:
        """The largest share in use of any limit that the request takes from; above 1 in debt."""
        rules = self.layout.rules
        return max([rules[index].used(record[index], now) / rules[index].ceiling_parts for index in self.asked])

    def place_of(self, key: str) -> int | None:
        """Where the amount of a limit stands, if the request takes any of it."""
        index = self.layout.index.get(key)
        return None if index is None else self.asked.get(index)


def parts_of(ask: Ask, amount: object) -> int:
    """An amount in parts of a limit's unit; InvalidRequest when it is no amount of that limit."""
    rule = ask.rule
    decimals = isinstance(rule.limit, RateLimit | CallLimit) and rule.limit.algorithm.takes_decimals
    try:
        milli = to_milli(amount, decimals=decimals)
    except ValueError as error:
        raise InvalidRequest(f"amount of {ask.key!r} {error}, not {shown(amount)}") from None
    if milli < 0:
        raise InvalidRequest(f"amount of {ask.key!r} must not be negative, not {shown(amount)}")
    return milli * ask.scale // MILLI
