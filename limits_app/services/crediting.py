"""Credit: giving back to a limit what nobody holds."""

from __future__ import annotations

from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidRequest
from limits_app.core.limits import CallLimit, MeteredLimit
from limits_app.core.plan import Claim, Plan, ScopedLimits, parts_of
from limits_app.core.planning import plan_for
from limits_app.core.store import Store

__all__ = ["credit", "taken"]


def taken(scoped: ScopedLimits, key: str, amount: Amount) -> int:
    """An amount of credit in parts of its limit; InvalidRequest where there can be none."""
    if not isinstance(scoped.schema.limits[scoped.schema.index[key]], MeteredLimit | CallLimit):
        raise InvalidRequest(f"{key} cannot be topped up: only rates, calls and quotas can")
    parts = parts_of(_plan(scoped, key).limits[0], amount)
    if not parts:
        raise InvalidRequest(f"{key} cannot be topped up by nothing: say how much")
    return parts


def credit(store: Store, scoped: ScopedLimits, key: str, parts: int) -> None:
    """Make what was used of a limit less by so many parts, or forget all of it."""
    claim = Claim(_plan(scoped, key), [0])
    store.peek(claim)  # a store that is down says so here, and settles later otherwise
    store.settle(claim, [-parts])


def _plan(scoped: ScopedLimits, key: str) -> Plan:
    """The plan that credits this limit and no other."""
    return plan_for([scoped], {key}, version=None, left_out=scoped.schema.index, is_credit=True)
