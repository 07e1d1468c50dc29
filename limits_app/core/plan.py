"""What one shape of request asks of a store, worked out once: which rules, in which scopes, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from limits_app.core.algorithms import Rule
from limits_app.core.amounts import MILLI, Amount, shown, to_milli
from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import Scope, lease_key, short_key
from limits_app.core.layout import Layout
from limits_app.core.limits import CallLimit, RateLimit

__all__ = ["Ask", "Bucket", "Charges", "Part", "Plan", "ScopedLimits", "parts_of", "plan_for"]

Bucket = tuple[str, str]
"""A scope's key and a limit's key."""


@dataclass(frozen=True, slots=True)
class ScopedLimits:
    """Limits that apply together in one scope, and where they were set (`level`, for outcomes).

    `degraded` says that they are decided without the store in which their state is, which is down.
    """

    scope: Scope
    layout: Layout
    level: str = "set"
    degraded: bool = False


class Ask:
    """One limit that a request takes from, and where its state stands.

    `lease_key`, of 25 bytes, names the leases of a resource limit, and is None for every other limit.
    """

    __slots__ = ("ceiling", "index", "key", "lease_key", "part", "rule", "scale", "settle", "take")

    def __init__(self, part: Part, index: int, rule: Rule) -> None:
        self.part = part
        self.index = index
        self.rule = rule
        self.key = rule.key
        self.take = rule.take
        self.settle = rule.settle
        self.scale = rule.parts_per_unit
        self.ceiling = rule.ceiling_parts
        self.lease_key = lease_key(part.short_key, rule.key) if rule.is_permit else None


class Part:
    """One scope from which a request takes; `leases` are its permits, wherever the request names them or not:
    where they stand among its states, and the names of their leases.
    """

    __slots__ = ("key", "layout", "leases", "scoped", "short_key")

    def __init__(self, scoped: ScopedLimits) -> None:
        self.scoped = scoped
        self.key = scoped.scope.key
        self.short_key = short_key(self.key)
        self.layout = scoped.layout
        self.leases = scoped.layout.leases(self.short_key)


Charges = Sequence[tuple[Ask, int]]
"""Amounts, or changes of amounts, in parts of each limit's unit; those of one scope stand together."""


class Plan:
    """A shape of request, compiled: of `named` limits it takes what the request says, of the others one unit.

    `parts` are its scopes and `asks` its limits, scope by scope; `places` says where the limits with a key stand.
    `fixed` are its charges when none of them depends on the request.
    `fits` is False when an amount that nobody names is more than its limit can ever admit.
    `permits` are the keys of its resource limits, `reports` the keys whose usage must be reported,
    `settles` whether anything is left to do at release.
    `returns` gives its permits back, and is None when the request says how many they are.
    `version` is the configuration that it was compiled from, or None when that never changes.
    """

    def __init__(
        self, asks: Sequence[Ask], named: Collection[str], *, version: int | None, reports_calls: bool
    ) -> None:
        self.asks = tuple(asks)
        self.parts = tuple(dict.fromkeys(ask.part for ask in asks))
        self.version = version
        self.permits = frozenset(ask.key for ask in asks if ask.lease_key)
        self.reports = frozenset(
            ask.key
            for ask in asks
            if isinstance(ask.rule.limit, RateLimit) or (reports_calls and isinstance(ask.rule.limit, CallLimit))
        )
        self.settles = bool(self.permits or self.reports)
        self.places: dict[str, list[int]] = {}
        for position, ask in enumerate(asks):
            self.places.setdefault(ask.key, []).append(position)
        self._named = [(position, ask) for position, ask in enumerate(asks) if ask.key in named]
        self._implicit = [(ask, 0 if ask.key in named else ask.scale) for ask in asks]
        self.fits = all(amount <= ask.ceiling for ask, amount in self._implicit)
        self.fixed: Charges | None = None if self._named else tuple(self._implicit)
        self.leases = [(position, ask, ask.lease_key) for position, ask in enumerate(asks) if ask.lease_key]
        names_permits = any(ask.key in named for _, ask, _ in self.leases)
        self.returns: list[tuple[Ask, int]] | None = None
        if not names_permits:
            self.returns = [(ask, -ask.scale) for _, ask, _ in self.leases]
        self.buckets: tuple[Bucket, ...] = tuple((ask.part.key, ask.key) for ask in asks)

    def charges(self, requested: Mapping[str, Amount]) -> tuple[Charges, bool]:
        """The amounts of a request in parts, and whether they can ever fit.

        InvalidRequest names the key whose amount cannot be.
        """
        charges = self._implicit.copy()
        fits = self.fits
        for position, ask in self._named:
            amount = requested[ask.key]
            # The usual amount is checked here, without a call.
            parts = amount * ask.scale if amount.__class__ is int and amount >= 0 else parts_of(ask, amount)
            if parts > ask.ceiling:
                # Never, unless it is more than any amount may be, which is an error of its own.
                parts_of(ask, amount)
                fits = False
            charges[position] = (ask, parts)
        return charges, fits


def plan_for(
    scoped: Iterable[ScopedLimits],
    named: Collection[str],
    *,
    version: int | None,
    left_out: Collection[str],
    reports_calls: bool,
) -> Plan:
    """Compile the request that names `named`, and every call and resource limit that is not `left_out`."""
    asks = []
    for one in scoped:
        part = Part(one)
        asks += [
            Ask(part, index, rule)
            for index, rule in enumerate(one.layout.rules)
            if rule.key in named or (not isinstance(rule.limit, RateLimit) and rule.key not in left_out)
        ]
    return Plan(asks, named, version=version, reports_calls=reports_calls)


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
