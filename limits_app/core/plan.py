"""What one shape of request asks of a store, worked out once: which rules, in which scopes, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from limits_app.core.algorithms import Rule
from limits_app.core.amounts import MAX_AMOUNT, MILLI, Amount, shown, to_milli
from limits_app.core.at_once import Asked, SettleAll, TakeAll, settler_of_all, taker_of_all
from limits_app.core.crediting import crediter
from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import Scope, lease_key, short_key
from limits_app.core.layout import Layout
from limits_app.core.limits import CallLimit, MeteredLimit, RateLimit
from limits_app.core.unrolled import Figure, Record, Report, Settle, Take, reader, reporter, settler, taker

__all__ = [
    "FOREVER",
    "Amounts",
    "Ask",
    "Bucket",
    "Charges",
    "Part",
    "Permit",
    "Plan",
    "ScopedLimits",
    "parts_of",
    "plan_for",
]

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

    def counted(self, parts: int) -> int:
        """An amount as a request takes it: of a soft limit no more than debt can remember, which is what comes back."""
        return min(parts, self.ceiling) if self.rule.limit.soft else parts


class Permit(NamedTuple):
    """A resource limit of a request: how long leases last, how long permits may be held, and the name of its leases."""

    lease_us: int
    hold_us: int
    lease_key: bytes


class Part:
    """One scope from which a request takes; `leases` are its permits, wherever the request names them or not:
    where they stand among its states, and the names of their leases.

    `start` is a record that nobody has used, with the layout for a note.
    `take` and `settle` change the record of the scope by the amounts of a whole request.
    `asked` says which limit, by index, takes which of them, by place;
    `permits` are its resource limits among them, by place.
    `is_credit` says that it gives back what no claim holds, and takes nothing.
    `counts` says whether its records count what is admitted; credit makes nothing unused.
    """

    __slots__ = (
        "asked",
        "counts",
        "is_credit",
        "key",
        "layout",
        "leases",
        "permits",
        "scoped",
        "settle",
        "short_key",
        "start",
        "take",
    )

    take: Take
    settle: Settle

    def __init__(self, scoped: ScopedLimits, *, is_credit: bool = False) -> None:
        self.scoped = scoped
        self.is_credit = is_credit
        self.key = scoped.scope.key
        self.short_key = short_key(self.key)
        self.layout = scoped.layout
        self.leases = scoped.layout.leases(self.short_key)
        self.counts = self.layout.counts and not is_credit
        self.start: Record = (*self.layout.blank, self.layout)
        self.asked: dict[int, int] = {}
        self.permits: dict[int, Permit] = {}

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


class Plan:
    """A shape of request, compiled: of `named` limits it takes what the request says, of the others one unit.

    `parts` are its scopes (`scopes` their keys, `only` the one where there is one),
    and `asks` its limits, scope by scope; amounts and changes come in their order.
    `fixed` are its amounts when none of them depends on the request.
    `fits` is False when an amount that nobody names is more than its limit can ever admit.
    `permits` are the keys of its resource limits, `lending` the parts that have some, `lent` the limits by place,
    `reports` the keys whose usage must be reported, `settles` whether anything is left to do at release.
    `read` and `report` are the fast ways through `amounts` and `changes`, where there is anything to read or report.
    `take` and `settle` change all records and loans at once, once somebody has asked to `write_out` them.
    `version` is the configuration that it was compiled from, or None when that never changes.
    """

    def __init__(
        self, asks: Sequence[Ask], named: Collection[str], *, version: int | None, many_calls: Collection[str] = ()
    ) -> None:
        self.asks = tuple(asks)
        self.parts = tuple(dict.fromkeys([ask.part for ask in asks]))
        self.only = self.parts[0] if len(self.parts) == 1 else None
        self.scopes = tuple([part.key for part in self.parts])
        self.version = version
        metered = [ask.key for ask in asks if isinstance(ask.rule.limit, MeteredLimit)]
        self.reports = frozenset([*metered, *many_calls])
        self.permits = frozenset([ask.key for ask in asks if ask.rule.is_permit])
        self.settles = bool(self.permits or self.reports)
        for place, ask in enumerate(asks):
            ask.part.ask(ask.index, place)
        for part in self.parts:
            layout = part.layout
            part.take = taker(layout.rules, part.asked, len(asks), counts=layout.counts)
            part.settle = (
                crediter(layout.rules, part.asked)
                if part.is_credit
                else settler(layout.rules, part.asked, len(asks), counts=layout.counts)
            )
        self.lending = tuple([part for part in self.parts if part.permits])
        self.lent = tuple([one for part in self.lending for one in part.permits.items()])
        self._named = [place for place, ask in enumerate(asks) if ask.key in named]
        self._implicit = [0 if ask.key in named else ask.counted(ask.scale) for ask in asks]
        self.fixed: Amounts | None = None
        self.fits = self.can_fit(self._implicit)
        if not self._named:
            self.fixed = tuple(self._implicit)
        self.read = reader(self._figures(self._named), self._implicit) if self._named else None
        self.report = self._reporter() if self.reports else None
        self.take: TakeAll | None = None
        self.settle: SettleAll | None = None

    def write_out(self) -> TakeAll:
        """Compile `take` and `settle`, for a store that notes layouts in its records; gives `take`."""
        scopes = [
            Asked(part.key, part.layout, part.layout.rules, part.asked, part.counts, part if part.permits else None)
            for part in self.parts
        ]
        if not any(part.is_credit for part in self.parts):
            self.settle = settler_of_all(scopes, len(self.asks))
        self.take = take = taker_of_all(scopes, len(self.asks))
        return take

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Where the limits with a key stand."""
        places: dict[str, list[int]] = {}
        for place, ask in enumerate(self.asks):
            places.setdefault(ask.key, []).append(place)
        return places

    @cached_property
    def leases(self) -> list[tuple[int, Ask]]:
        """Its resource limits, and where they stand."""
        return [(place, ask) for place, ask in enumerate(self.asks) if ask.rule.is_permit]

    def beside(self, amounts: Amounts) -> Charges:
        """The amounts that are not zero beside the limits that they are of."""
        return [(ask, amount) for ask, amount in zip(self.asks, amounts, strict=True) if amount]

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """What the limits stand for, in their order."""
        return tuple([(ask.part.key, ask.rule.key) for ask in self.asks])

    @cached_property
    def _returned(self) -> Amounts | None:
        """What is to be settled when nothing was reported, where that does not depend on the request."""
        if any(self.asks[place].rule.is_permit for place in self._named):
            return None
        return self.changes({}, self._implicit)

    def _figures(self, places: Iterable[int]) -> list[Figure]:
        asks = [(place, self.asks[place]) for place in places]
        return [Figure(place, ask.key, ask.scale, min(ask.ceiling // ask.scale, MAX_AMOUNT)) for place, ask in asks]

    def _reporter(self) -> Report:
        reported = [place for place, ask in enumerate(self.asks) if ask.key in self.reports]
        permits = [place for part in self.lending for place in part.permits]
        return reporter(self._figures(reported), permits, len(self.asks))

    def amounts(self, requested: Mapping[str, Amount]) -> tuple[Amounts, bool]:
        """The amounts of a request in parts, and whether they can ever fit.

        InvalidRequest names the key whose amount cannot be.
        """
        amounts = self._implicit.copy()
        for place in self._named:
            ask = self.asks[place]
            amounts[place] = ask.counted(parts_of(ask, requested[ask.key]))
        return tuple(amounts), self.can_fit(amounts)

    def can_fit(self, amounts: Amounts) -> bool:
        """Whether the limits can ever admit as much."""
        if amounts is self.fixed:
            return self.fits
        return all(amount <= ask.ceiling for ask, amount in zip(self.asks, amounts, strict=True))

    def given_back(self, amounts: Amounts) -> Amounts:
        """What is to be settled when nothing was reported: permits are given back."""
        return self.changes({}, amounts) if self._returned is None else self._returned

    def changes(self, usage: Mapping[str, Amount], amounts: Amounts, *, give_back: bool = False) -> Amounts:
        """What is different from the amounts charged: by what was used, and by permits, which are given back.

        With `give_back`, amounts that must be reported and were not are given back too.
        """
        changes = [0] * len(amounts)
        for place, (ask, amount) in enumerate(zip(self.asks, amounts, strict=True)):
            if ask.rule.is_permit:
                changes[place] = -amount
            elif ask.key in usage:
                changes[place] = parts_of(ask, usage[ask.key]) - amount
            elif give_back and ask.key in self.reports:
                changes[place] = -amount
        return changes


def plan_for(
    scoped: Iterable[ScopedLimits],
    named: Collection[str],
    *,
    version: int | None,
    left_out: Collection[str],
    held: Collection[Bucket] = (),
    many_calls: Collection[str] = (),
    is_credit: bool = False,
) -> Plan:
    """Compile the request that names `named`, and every call and resource limit that is not `left_out` or `held`.

    Of `many_calls` more than one is requested, so that their use must be reported.
    What `is_credit` is settled only, and with changes that are not positive.
    """
    asks = []
    for one in scoped:
        part = Part(one, is_credit=is_credit)
        for index, rule in enumerate(one.layout.rules):
            key = one.prefix + rule.key
            implicit = not isinstance(rule.limit, MeteredLimit) and key not in left_out
            if key in named or (implicit and (part.key, rule.key) not in held):
                asks.append(Ask(part, index, rule))
    return Plan(asks, named, version=version, many_calls=many_calls)


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
