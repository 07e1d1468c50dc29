"""What one shape of request asks of a store, worked out once: which rules, in which scopes, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from limits_app.core.algorithms import Rule
from limits_app.core.amounts import MILLI, Amount, shown, to_milli
from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import Scope, short_key
from limits_app.core.layout import Layout
from limits_app.core.limits import CallLimit, RateLimit

__all__ = ["Ask", "Bucket", "Charges", "Part", "Plan", "ScopedLimits", "parts_of", "plan_for"]

Bucket = tuple[str, str]
"""A scope's key and a limit's key."""

_CALLS: Final = CallLimit.key


@dataclass(frozen=True, slots=True)
class ScopedLimits:
    """Limits that apply together in one scope, and where they were set (`level`, for outcomes)."""

    scope: Scope
    layout: Layout
    level: str = "set"


class Ask:
    """One limit that a request takes from, and where its state stands.

    `lease_key` names the leases of a resource limit, and is None for every other limit.
    """

    __slots__ = ("ceiling", "index", "key", "lease_key", "rule", "scale", "settle", "take")

    def __init__(self, scope: str, index: int, rule: Rule) -> None:
        self.index = index
        self.rule = rule
        self.key = rule.key
        self.take = rule.take
        self.settle = rule.settle
        self.scale = rule.parts_per_unit
        self.ceiling = rule.ceiling_parts
        self.lease_key = f"{scope}/{rule.key}" if rule.is_permit else None


class Part:
    """What a request takes from one scope: of `named` limits what it says, of the `implicit` rest one unit."""

    __slots__ = ("asks", "implicit", "key", "layout", "named", "permits", "scoped", "short_key")

    def __init__(self, scoped: ScopedLimits, asks: Iterable[Ask], named: Collection[str]) -> None:
        self.scoped = scoped
        self.key = scoped.scope.key
        self.short_key = short_key(self.key)
        self.layout = scoped.layout
        self.asks = tuple(asks)
        self.named = tuple((position, ask) for position, ask in enumerate(self.asks) if ask.key in named)
        self.implicit = [(ask, 0 if ask.key in named else ask.scale) for ask in self.asks]
        self.permits = tuple((ask, ask.lease_key) for ask in self.asks if ask.lease_key)


Charges = Sequence[tuple[Part, Sequence[tuple[Ask, int]]]]
"""Amounts in parts of each limit's unit, by scope."""


class Plan:
    """A shape of request, compiled.

    `fixed` are its charges when none of them depends on the request.
    `fits` is False when an amount that nobody names is more than its limit can ever admit.
    `permits` are the keys of its resource limits, `reports` the keys whose usage must be reported,
    `settles` whether anything is left to do at release.
    `version` is the configuration that it was compiled from, or None when that never changes.
    """

    __slots__ = ("buckets", "fits", "fixed", "parts", "permits", "reports", "settles", "version")

    def __init__(self, parts: Iterable[Part], *, version: int | None, reports_calls: bool) -> None:
        self.parts = tuple(parts)
        self.version = version
        asks = [ask for part in self.parts for ask in part.asks]
        self.permits = frozenset(ask.key for ask in asks if ask.lease_key)
        self.reports = frozenset(
            ask.key for ask in asks if isinstance(ask.rule.limit, RateLimit) or (reports_calls and ask.key == _CALLS)
        )
        self.settles = bool(self.permits or self.reports)
        self.fits = all(amount <= ask.ceiling for part in self.parts for ask, amount in part.implicit)
        self.fixed: Charges | None = None
        if not any(part.named for part in self.parts):
            self.fixed = tuple((part, tuple(part.implicit)) for part in self.parts)
        self.buckets: tuple[Bucket, ...] = tuple((part.key, ask.key) for part in self.parts for ask in part.asks)

    def charges(self, requested: Mapping[str, Amount]) -> tuple[Charges, bool]:
        """The amounts of a request in parts, and whether they can ever fit.

        InvalidRequest names the key whose amount cannot be.
        """
        charges = []
        fits = self.fits
        for part in self.parts:
            row = part.implicit.copy()
            for position, ask in part.named:
                amount = requested[ask.key]
                # The usual amount is checked here, without a call.
                parts = amount * ask.scale if amount.__class__ is int and amount >= 0 else parts_of(ask, amount)
                if parts > ask.ceiling:
                    fits = False
                row[position] = (ask, parts)
            charges.append((part, row))
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
    parts = []
    for one in scoped:
        asks = [
            Ask(one.scope.key, index, rule)
            for index, rule in enumerate(one.layout.rules)
            if rule.key in named or (not isinstance(rule.limit, RateLimit) and rule.key not in left_out)
        ]
        if asks:
            parts.append(Part(one, asks, named))
    return Plan(parts, version=version, reports_calls=reports_calls)


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
