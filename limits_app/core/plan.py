"""What one shape of request asks of a store, worked out once: which rules, in which scopes, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from limits_app.core.amounts import MAX_AMOUNT, Amount
from limits_app.core.at_once import Asked, SettleAll, TakeAll, settler_of_all, taker_of_all
from limits_app.core.keys import ONCE_LEVEL
from limits_app.core.limits import MeteredLimit
from limits_app.core.parts import Amounts, Ask, Bucket, Charges, Part, ScopedLimits, parts_of
from limits_app.core.remaining import Saying
from limits_app.core.unrolled import Figure, Report, reader, reporter

__all__ = ["Plan", "plan_for"]


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
    `memo` is for what a store works out about it, which is kept for as long as the plan is, and `told` for what is
    worked out to tell clients of it.
    `version` is the configuration that it was compiled from, or None when that never changes.
    """

    memo: object = None
    told: tuple[tuple[str, str], Saying | None] | None = None

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
            part.amounts = len(asks)
        self.lending = tuple([part for part in self.parts if part.permits])
        self.lent = tuple([one for part in self.lending for one in part.permits.items()])
        self._once = [place for place, ask in enumerate(asks) if ask.part.scoped.level == ONCE_LEVEL]
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

        With `give_back`, amounts that must be reported and were not are given back too; and with whatever is given
        back then goes the idempotency key, since whoever comes with it again has to be charged again.
        """
        changes = [0] * len(amounts)
        for place, (ask, amount) in enumerate(zip(self.asks, amounts, strict=True)):
            if ask.rule.is_permit:
                changes[place] = -amount
            elif ask.key in usage:
                changes[place] = parts_of(ask, usage[ask.key]) - amount
            elif give_back and ask.key in self.reports:
                changes[place] = -amount
        if give_back and self._once and any(change < 0 and ask.comes_back for ask, change in self.beside(changes)):
            for place in self._once:
                changes[place] = -amounts[place]
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
            explicit = key in named and not (rule.is_permit and key in left_out)
            if explicit or (implicit and (part.key, rule.key) not in held):
                asks.append(Ask(part, index, rule))
    return Plan(asks, named, version=version, many_calls=many_calls)
