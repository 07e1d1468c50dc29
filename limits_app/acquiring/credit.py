"""Credit: recorded use that is reduced, though no acquisition holds it."""

from __future__ import annotations

from limits_app.acquiring.store import Store
from limits_app.engine import Claim, RequestPlan, ScopedLimits, parts_of, plan_for


def credited_parts(scoped: ScopedLimits, key: str, amount: object) -> int:
    """Return an amount in parts of a limit; InvalidRequest for an invalid amount."""
    return parts_of(_plan(scoped, key).shape.limits[0], amount)


def credit_scopes(store: Store, scoped: ScopedLimits, key: str, parts: int) -> None:
    """Reduce the recorded use of a limit by so many parts, at most to 0."""
    claim = Claim(_plan(scoped, key), [0])
    store.peek(claim)  # raises StoreUnavailable; `settle` would wait for the store instead
    store.settle(claim, [-parts])


def _plan(scoped: ScopedLimits, key: str) -> RequestPlan:
    """Return the plan that credits this limit and no other."""
    return plan_for([scoped], {key}, left_out=scoped.schema.index, is_credit=True)
