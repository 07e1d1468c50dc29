"""What the prices of a resource change in the limits of a request: units are counted, and money is charged for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from limits_app.engine import KEYS_OF_REQUESTS, PriceList, Prices, counts_money, counts_requests, given_key, member_key
from limits_app.engine.limits import AnyLimit, Blocked, CallLimit, CountedUnit

PRICE_LEVEL: Final = "price"
"""The level of units that are counted because they have a price."""


@dataclass(frozen=True, slots=True)
class PricedUnits:
    """The units of a resource that are counted since they have a price, and the prices by the keys of requests.

    `units` are all of them, and are counted where they have no limit; what a member of a pool serves at a price of its
    own is counted beside them. `prices` are those of the resource, None where
    neither a price nor a limit in money applies; `of_members` are those of each member of its pool.
    """

    units: tuple[CountedUnit, ...] = ()
    prices: Prices | None = None
    of_members: Mapping[str, Prices] | None = None

    @classmethod
    def of(
        cls,
        prices: PriceList,
        time_us: int,
        *,
        own: Sequence[AnyLimit],
        others: Sequence[AnyLimit],
        members: Iterable[str] = (),
        pool: str = "",
    ) -> Self:
        """The units where the client has its `own` limits on the resource, and `others` apply too, at a time.

        `members` are those of the pool that serves the resource.

        Nothing is counted where a limit blocks everything. What requests name under a currency is counted too, where a
        price or a limit has that currency.
        """
        limits = [*own, *others]
        if any(isinstance(limit, Blocked) for limit in limits):
            return cls()
        of_resource = prices.at(time_us)
        of_members = {member: prices.at(time_us, member) for member in members} if prices else {}
        every = dict.fromkeys([price for some in (of_resource, *of_members.values()) for price in some])
        currencies = [limit.key for limit in limits if counts_money(limit)]
        if not (every or currencies):
            return cls()
        requests = next((limit.key for limit in limits if counts_requests(limit)), CallLimit.key)
        keys = {price.unit: requests if price.unit in KEYS_OF_REQUESTS else price.unit for price in every}
        limited = {limit.key for limit in own}
        keys |= {unit: unit for unit in keys if unit in limited}
        units = [CountedUnit(unit, key) for unit, key in sorted(keys.items())]
        currencies += [price.currency for price in every]
        units += [CountedUnit(given_key(currency), currency, is_money=True) for currency in sorted({*currencies})]
        units += _of_members(pool, of_resource, of_members, keys)
        return cls(
            tuple(units),
            _by_keys(of_resource, keys),
            {member: _by_keys(some, keys) for member, some in of_members.items()},
        )

    def beside(self, limits: Iterable[AnyLimit]) -> tuple[CountedUnit, ...]:
        """The units that are counted beside the limits of a client on the resource, which count theirs."""
        limited = {limit.key for limit in limits}
        return tuple([unit for unit in self.units if unit.key not in limited])


def _of_members(
    pool: str, of_resource: Prices, of_members: Mapping[str, Prices], keys: Mapping[str, str]
) -> Iterator[CountedUnit]:
    """The units of which a member has another price than the resource, for each such member."""
    for member, prices in sorted(of_members.items()):
        for unit in sorted({price.unit for price in {*prices}.symmetric_difference(of_resource)}):
            yield CountedUnit(member_key(unit, pool, member), keys[unit], member=member)


def _by_keys(prices: Prices, keys: Mapping[str, str]) -> Prices:
    return tuple([replace(price, unit=keys[price.unit]) for price in prices])
