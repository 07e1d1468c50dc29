"""Several pools that serve one request together: one member of each, chosen and charged in one step.

To everybody else they are one supply, whose members are all combinations of those of the pools.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Final, cast

from limits_app.core.balancing import Balancer, Candidates
from limits_app.core.errors import InvalidRequest
from limits_app.core.plan import ScopedLimits
from limits_app.core.store import Store
from limits_app.resolver.supply import Supply, Supplying

__all__ = ["JoinedSupply", "joined_supply"]

_MOST: Final = 64
"""How many combinations a store may have to look at."""


@dataclass(frozen=True, slots=True)
class JoinedSupply:
    """What each combination of members has to give; their names are those of the members, pool by pool."""

    supplies: tuple[Supply, ...]

    @property
    def failover(self) -> bool:
        """Whether other combinations are asked; not where one of the pools keeps to the member that it has chosen."""
        return all(supply.failover for supply in self.supplies)

    @property
    def scoped(self) -> Mapping[Hashable, tuple[ScopedLimits, ...]]:
        """The limits of each combination."""
        return {
            tuple(name for name, _ in members): tuple(one for _, some in members for one in some)
            for members in product(*[supply.scoped.items() for supply in self.supplies])
        }

    @property
    def configs(self) -> Mapping[Hashable, Mapping[str, object]]:
        """Of each combination, what the member of each pool says, by the pool's name."""
        pools = [supply.name for supply in self.supplies]
        return {
            tuple(name for name, _ in members): dict(zip(pools, [config for _, config in members], strict=True))
            for members in product(*[supply.configs.items() for supply in self.supplies])
        }

    @property
    def desk(self) -> Balancer:
        """Where each pool says whose turn it is."""
        names = [list(supply.scoped) for supply in self.supplies]
        return _JoinedState([supply.desk for supply in self.supplies], names)

    def changed(self, change: Callable[[ScopedLimits], ScopedLimits]) -> JoinedSupply:
        """The same members with other limits."""
        return replace(self, supplies=tuple([supply.changed(change) for supply in self.supplies]))


def joined_supply(supplies: Iterable[Supply]) -> Supplying | None:
    """What serves a request that some pools serve, None where there are none.

    Raises InvalidRequest for pools with too many combinations of their members.
    """
    pools = tuple(supplies)
    if prod(len(supply.scoped) for supply in pools) > _MOST:
        names = " and ".join([supply.name for supply in pools])
        raise InvalidRequest(
            f"{names} have more than {_MOST} combinations of members, too many for one request: ask one by one"
        )
    return JoinedSupply(pools) if len(pools) > 1 else next(iter(pools), None)


class _JoinedState(Balancer):
    """The balancers of several pools as one; a combination cools down while one of its members does.

    Where one of the pools wants the emptiest member, the emptiest combination is wanted.
    """

    def __init__(self, desks: Sequence[Balancer], names: Sequence[Sequence[Hashable]]) -> None:
        super().__init__([1] * prod(map(len, names)))
        self.load_balancing = desks[0].load_balancing
        self._desks = desks
        self._names = names
        self._places = list(product(*[range(len(some)) for some in names]))
        self._indexes = {place: index for index, place in enumerate(self._places)}
        self.emptiest_first = any(desk.emptiest_first for desk in desks)
        self.cooling_until = ChainMap(*[desk.cooling_until for desk in desks])

    def cooling_us(self, name: Hashable, store: Store) -> int:
        names = cast("tuple[Hashable, ...]", name)
        return max([self._cooling_us(*one, store) for one in zip(self._desks, self._names, names, strict=True)])

    @staticmethod
    def _cooling_us(desk: Balancer, names: Sequence[Hashable], name: Hashable, store: Store) -> int:
        """Microseconds until a member has cooled down; 0 when all members of its pool cool down."""
        rest = desk.cooling_us(name, store)
        return rest if rest and not all(desk.cooling_us(one, store) for one in names) else 0

    def order(self, candidates: Candidates) -> Candidates:
        """See `Balancer.order`."""
        return self._combined(candidates, [desk.order for desk in self._desks])

    def preview(self, candidates: Candidates) -> Candidates:
        """See `Balancer.preview`."""
        return self._combined(candidates, [desk.preview for desk in self._desks])

    def _combined(self, candidates: Candidates, orders: Sequence[Callable[[Candidates], Candidates]]) -> Candidates:
        """The combinations in the order of the first pool, and among those with the same member in that of the next."""
        members = zip(*[self._places[index] for index in candidates], strict=True)
        ordered = [order(sorted(set(some))) for order, some in zip(orders, members, strict=True)]
        return [self._indexes[place] for place in product(*ordered)]
