"""Limits that apply together in one scope, with the prices of its resource, as requests are compiled from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from limits_app.engine.algorithms import Rule
from limits_app.engine.keys import Scope
from limits_app.engine.limit_kinds import is_metered
from limits_app.engine.limits import CountedUnit
from limits_app.engine.prices import UnitPrice
from limits_app.engine.record import Schema

Prices = tuple[UnitPrice, ...]
"""The prices of a resource at a time, one for each unit and currency."""

PricedKey = tuple[str, UnitPrice]
"""The key of a unit, as requests name it, and its price."""


@dataclass(frozen=True, slots=True)
class ScopedLimits:
    """Limits that apply together in one scope.

    `level` is where they were set, for outcomes (`levels` where that differs from limit to limit).
    `prefix` comes before their keys in requests and reports about several resources; a total is charged
    with the sum of the amounts requested with it and with each of `more_prefixes`.
    `degraded` says that they are decided without their store, which is unavailable.
    `lasting` says that they were set for this scope alone; the Redis store keeps the state of such a scope while it is
    idle. `slice_us` is for how many microseconds a process may hold capacity of them that it has charged in advance;
    0 for not at all. `priority` is the class of requests that name none; empty: `normal`.
    `prices` are those of the resource with the prefix `prefix`, and `more_prices` of those with `more_prefixes`; None
    where the limits come from no configuration, which would have prices. `member` is the member of a pool that serves
    the request, where members have prices of their own.
    """

    scope: Scope
    schema: Schema
    level: str = "set"
    prefix: str = ""
    degraded: bool = False
    levels: tuple[str, ...] = ()
    lasting: bool = False
    more_prefixes: tuple[str, ...] = ()
    slice_us: int = 0
    prices: Prices | None = None
    more_prices: tuple[Prices, ...] = ()
    priority: str = ""
    member: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        values = (self.scope, self.schema, self.level, self.prefix, self.degraded, self.levels, self.lasting)
        more = (self.more_prefixes, self.slice_us, self.prices, self.more_prices, self.priority, self.member)
        return ScopedLimits, (*values, *more)

    def keys_of(self, rule: Rule) -> tuple[str, ...]:
        """The keys that requests use for a limit: one, or several whose amounts are added up.

        Calls and permits are charged once, as the first resource requests them.
        """
        more = self.more_prefixes if is_metered(rule.limit) else ()
        key = rule.limit.requested_as if isinstance(rule.limit, CountedUnit) else rule.key
        return tuple([prefix + key for prefix in (self.prefix, *more)])

    def priced_keys(self, rule: Rule) -> tuple[PricedKey, ...]:
        """The keys of units that requests of a limit in money are charged for, with their prices in its currency."""
        if not rule.is_money or rule.is_counted:
            return ()
        priced = [(prefix, price) for prefix, prices in self.prices_by_prefix() for price in prices]
        return tuple([(prefix + price.unit, price) for prefix, price in priced if price.currency == rule.key])

    def prices_by_prefix(self) -> Iterator[tuple[str, Prices]]:
        """Iterate over the prefixes of the resources that are charged, with the prices of each."""
        if self.prices is not None:
            yield from zip((self.prefix, *self.more_prefixes), (self.prices, *self.more_prices), strict=True)

    @property
    def key(self) -> str:
        """The key of the scope."""
        return self.scope.key

    @property
    def planned(self) -> PlannedScope:
        """What a plan knows of it."""
        return PlannedScope(self.schema, self.degraded, self.lasting, self.slice_us)

    def level_of(self, index: int) -> str:
        """Return where the limit at an index was set."""
        return self.levels[index] if self.levels else self.level


class PlannedScope(NamedTuple):
    """The common facts about the scopes of a plan; the fields are those of `ScopedLimits`."""

    schema: Schema
    degraded: bool = False
    lasting: bool = False
    slice_us: int = 0
