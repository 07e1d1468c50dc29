"""Requests for several resources, or several entities: all or nothing, in one step of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import (
    NOTHING,
    EntityName,
    GivenAmount,
    check_amounts,
    check_resource,
    checked_priority,
    nothing_requested,
    shown,
)
from limits_app.engine.errors import InvalidRequest, StaleConfiguration
from limits_app.policies import ResolutionKey, ResolvedSet, joined_set, resolver
from limits_app.services.amounts import LimitsInCode, RequestedAmounts, amounts_for, key_of, prioritized
from limits_app.services.request import AmountsRequest, SetResolver

T = TypeVar("T")


class Share(NamedTuple):
    """The part of a request for one resource and entity; the names are those of `try_acquire`."""

    resource: str
    entity: EntityName = None
    requested: RequestedAmounts = None
    default_limits: LimitsInCode | str = ()
    plan: str | None = None
    priority: str | None = None

    @property
    def key(self) -> ResolutionKey:
        """The key of the resolver."""
        return key_of(self.resource, self.entity, self.default_limits, self.plan)


def foresee(share: Share, use: Callable[[Acquisition], T]) -> T:
    """See `AmountsRequest.foresee`."""
    return AmountsRequest(share.key, prioritized(share.requested, share.priority)).foresee(use)


def try_acquire_all(shares: Sequence[Share], source: SetResolver = resolver) -> Acquisition:
    """Acquire all shares now, or none; a rejection is a falsy acquisition with the reasons in `outcome`.

    No two shares may have the same resource and entity, all must be counted in one store, and at most one pool may
    serve them. The keys of the acquisition are those of the limits after the resource, such as `api:call_count`; a
    limit that two shares have in common is charged as the first one requests it. `source` resolves their limits.
    Raises InvalidRequest for shares that break a rule or are empty, and the errors of `try_acquire`.
    """
    return SharesSource(shares, source).request().acquire()


async def atry_acquire_all(shares: Sequence[Share]) -> Acquisition:
    """`try_acquire_all` for asyncio."""
    return await SharesSource(shares).request().aacquire()


def shares_of(  # noqa: PLR0917 - the arguments of `try_acquire`, in their order
    resources: Mapping[str, RequestedAmounts],
    entity: EntityName,
    requested: RequestedAmounts,
    default_limits: LimitsInCode | str,
    plan: str | None = None,
    priority: str | None = None,
) -> list[Share]:
    """The shares of an entity, from a mapping of resources to amounts.

    Raises InvalidLimit unless it is a mapping, and InvalidRequest for an empty mapping, for `requested` beside it, and
    for invalid amounts.
    """
    if not isinstance(resources, Mapping):
        check_resource(resources)
    if not resources:
        raise InvalidRequest("a mapping of resources to amounts must have at least one resource")
    if requested is not None:
        raise InvalidRequest("the amounts of several resources are in their mapping: leave requested= out")
    for name, amounts in resources.items():
        if not (amounts is None or isinstance(amounts, Mapping) or callable(amounts)):
            raise InvalidRequest(f"{shown(name)} must be mapped to amounts by key, or to None, not to {shown(amounts)}")
    _, identifier, limits, _ = key_of("", entity, default_limits, plan)
    return [
        Share(check_resource(name), identifier, amounts, limits, plan, priority) for name, amounts in resources.items()
    ]


class SharesSource:
    """A `SetResolver` that resolves the limits of several shares together, each by `source`; it ignores the key."""

    def __init__(self, shares: Sequence[Share], source: SetResolver = resolver) -> None:
        if not shares:
            raise InvalidRequest("a request for several resources must have at least one Share")
        names = [share.key[:2] for share in shares]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise InvalidRequest(
                f"duplicate Share for ({shown(duplicate[0])}, {shown(duplicate[1])}); combine the amounts into one"
            )
        self.shares = shares
        self._source = source
        self._prefixes = prefixes_of(tuple([share.resource for share in shares]))
        self._priorities = tuple(
            ["" if share.priority is None else checked_priority(share.priority) for share in shares]
        )
        self._sets: tuple[ResolvedSet, ...] = ()

    def request(self) -> AmountsRequest:
        """The request for all shares."""
        return AmountsRequest(self.shares[0].key, self.amounts, self)

    def cached(self, _key: ResolutionKey) -> ResolvedSet | None:
        """The cached limits of all shares; None unless all of them are of one version of one store."""
        sets = tuple([resolved for share in self.shares if (resolved := self._source.cached(share.key)) is not None])
        if len(sets) < len(self.shares) or len({(resolved.alias, resolved.limit_set.version) for resolved in sets}) > 1:
            return None
        self._sets = sets
        return joined_set(sets, self._prefixes, self._priorities)

    def read(self, _key: ResolutionKey) -> ResolvedSet:
        """The limits of all shares; StaleConfiguration where they are of different versions."""
        sets = self._sets = tuple([self._resolved(share) for share in self.shares])
        if _are_in_several_stores(sets):
            where = [
                f"{share.resource} in {resolved.alias!r}" for share, resolved in zip(self.shares, sets, strict=True)
            ]
            raise InvalidRequest(
                f"the resources of a request must be in one store, and are in several: {', '.join(where)}; "
                "request them one by one, or move them into one store"
            )
        if all(resolved.available for resolved in sets) and len({resolved.limit_set.version for resolved in sets}) > 1:
            raise StaleConfiguration("the shares of a request are of different configurations")
        return joined_set(sets, self._prefixes, self._priorities)

    def _resolved(self, share: Share) -> ResolvedSet:
        return self._source.cached(share.key) or self._source.read(share.key)

    def catch_up(self, _key: ResolutionKey, stale: ResolvedSet | None) -> None:
        """Apply the changes of the store of the shares that have made their limits stale."""
        self._source.catch_up(_key, stale)
        self._sets = ()

    def follow(self, _key: ResolutionKey, _rejecting: ResolvedSet | None) -> bool:
        """Apply the changes since any of the shares was resolved; returns whether there are any.

        Those of the first store that has any are enough, since the request is repeated.
        """
        versions = {
            (resolved.alias, resolved.limit_set.version): (share.key, resolved)
            for share, resolved in zip(self.shares, self._sets, strict=False)
        }
        return any(self._source.follow(key, resolved) for key, resolved in versions.values())

    def amounts(self, limits: LimitSet) -> Mapping[str, GivenAmount]:
        """The amounts of all shares by the keys of some limits; InvalidRequest for an invalid amount of a share."""
        known_keys = {key for scoped in limits.scoped for rule in scoped.schema.rules for key in scoped.keys_of(rule)}
        requested: dict[str, GivenAmount] = {}
        for share, resolved, prefix in zip(self.shares, self._sets, self._prefixes, strict=False):
            amounts = _amounts(share, resolved.limit_set)
            requested |= {prefix + key: amount for key, amount in amounts.items() if prefix + key in known_keys}
        return requested or NOTHING


def _amounts(share: Share, limits: LimitSet) -> Mapping[str, GivenAmount]:
    """The amounts of a share by its limit keys; an unknown key is skipped with a warning."""
    amounts = amounts_for(limits, share.requested)
    if amounts is None:
        if limits.rates:
            raise nothing_requested(f"{', '.join(limits.rates)} of {share.resource}")
        return {}
    for key in amounts.keys() - set(limits.keys):
        check_amounts("requested", {key: amounts[key]})
        limits.skip_unknown(key)
    limits.check_priced(amounts)
    return amounts


def _are_in_several_stores(sets: Sequence[ResolvedSet]) -> bool:
    return len({resolved.alias for resolved in sets}) > 1


@lru_cache(maxsize=1024)
def prefixes_of(resources: tuple[str, ...]) -> tuple[str, ...]:
    """The prefix of the keys of each share, by the resources of all shares."""
    earlier_counts = [resources[:index].count(resource) for index, resource in enumerate(resources)]
    return tuple(
        f"{resource}:" if earlier == 0 else f"{resource}:{earlier + 1}:"
        for resource, earlier in zip(resources, earlier_counts, strict=True)
    )
