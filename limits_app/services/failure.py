"""What decides while a store is down: the policy that applies, or what the settings of the site say.

`block` refuses with StoreUnavailable, `allow` decides as if nobody had used anything, and `local` gives out the share
of this process. Whoever is blocked or unlimited stays so, since that needs no store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from limits_app import conf
from limits_app.conf import OnUnavailable, OnUnresolved
from limits_app.core.amounts import Amount
from limits_app.core.errors import NeverAdmissible, StoreUnavailable
from limits_app.core.limit_set import LimitSet, Unlimited
from limits_app.core.limits import AnyLimit, Blocked, QuotaLimit, ResourceLimit
from limits_app.core.outcome import Outcome
from limits_app.core.plan import Amounts, Claim, ScopedLimits
from limits_app.core.record import schema_of
from limits_app.core.store import Store
from limits_app.resolver import ResolvedSet
from limits_app.stores.guards import Guard
from limits_app.stores.memory import MemoryStore

__all__ = ["unresolved", "without_store"]

logger = logging.getLogger("limits_app")


@contextmanager
def without_store(guard: Guard, found: ResolvedSet) -> Iterator[LimitSet]:
    """Give the limits that decide in place of those in the store, or raise StoreUnavailable."""
    if not found.scoped or any(isinstance(limit, Blocked) for limit in found):
        yield _set_on(guard.meanwhile(), found, _as_it_is, degraded=False)
        return
    policy = found.on_unavailable or conf.get(conf.ON_UNAVAILABLE)
    guard.count(policy)
    if policy is OnUnavailable.BLOCK:
        raise guard.down()
    if policy is OnUnavailable.ALLOW:
        yield _set_on(_FORGETFUL, found, _as_it_is)
        return
    try:
        yield _set_on(guard.meanwhile(), found, _share)
    except NeverAdmissible as error:
        if _is_too_much(error.outcome, found):
            raise
        # It would fit into the whole, and nobody knows what is left of that.
        raise guard.down() from error


def unresolved(error: Exception) -> LimitSet:
    """Give the limits for those of whom the database, which is down, cannot say what holds; or raise."""
    if conf.get(conf.ON_UNRESOLVED) is OnUnresolved.BLOCK:
        seconds = conf.get(conf.BREAKER_PROBE_SECONDS)
        raise StoreUnavailable(f"the database cannot say which limits hold: {error}", retry_after=seconds) from error
    logger.warning("the database cannot say which limits hold, so nothing is limited: %s", error)
    return _NOTHING


class _Forgetful(MemoryStore):
    """Decides as if nobody had used anything, and keeps nothing."""

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        self.peek(claim)
        refusing, _ = claim.refusal()
        claim.admitted = not refusing
        return claim.admitted

    def settle(self, claim: Claim, changes: Amounts) -> None:  # noqa: ARG002 - as `Store` has it
        """See `Store.settle`."""
        claim.settled = True

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:  # noqa: ARG002 - as `Store` has it
        """See `Store.renew`."""
        return []


_FORGETFUL: Final = _Forgetful()
_NOTHING: Final = Unlimited()
_MADE: Final[WeakKeyDictionary[ResolvedSet, LimitSet]] = WeakKeyDictionary()
"""What decides in place of a resolved set, made when it is first needed."""


def _set_on(
    store: Store, found: ResolvedSet, change: Callable[[AnyLimit], AnyLimit], *, degraded: bool = True
) -> LimitSet:
    made = _MADE.get(found)
    version = store.version()
    if made is None or made.store is not store or made.version != version:

        def elsewhere(one: ScopedLimits) -> ScopedLimits:
            layout = schema_of(tuple(map(change, one.schema.limits)), store.lease_us)
            return replace(one, schema=layout, degraded=degraded)

        made = _MADE[found] = found.changed(elsewhere, store)
    return made


def _as_it_is(limit: AnyLimit) -> AnyLimit:
    return limit


def _share(limit: AnyLimit) -> AnyLimit:
    """What one of the expected processes may give out of a limit."""
    processes = conf.get(conf.EXPECTED_PROCESSES) or 1
    match limit:
        case ResourceLimit() | QuotaLimit() | Blocked():  # what is blocked was decided before
            return limit if isinstance(limit, Blocked) else replace(limit, capacity=max(limit.capacity // processes, 1))
        case _:
            burst = None if limit.burst is None else _part(limit.burst, processes)
            return replace(limit, capacity=_part(limit.capacity, processes), burst=burst)


def _part(amount: Amount, processes: int) -> Amount:
    """A whole part, at least 1, and never more than there is."""
    return min(amount, max(int(amount // processes), 1))


def _is_too_much(outcome: Outcome, found: ResolvedSet) -> bool:
    return any(status.never and status.requested > found.ceiling(status.key) for status in outcome.violations)
