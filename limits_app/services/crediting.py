"""Credit: giving back to a limit what nobody holds."""

from __future__ import annotations

from dataclasses import replace

from limits_app.core.amounts import Amount
from limits_app.core.claim import Claim
from limits_app.core.errors import InvalidRequest
from limits_app.core.layout import layout_of
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.core.plan import Plan, ScopedLimits, parts_of, plan_for
from limits_app.core.quota import QuotaLimit
from limits_app.core.store import Store

__all__ = ["credit", "taken"]

_TAKE_BACK = (RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA)


def taken(scoped: ScopedLimits, key: str, amount: Amount) -> int:
    """An amount of credit in parts of its limit; InvalidRequest where there can be none."""
    match scoped.layout.limits[scoped.layout.index[key]]:
        case RateLimit(algorithm=algorithm) | CallLimit(algorithm=algorithm):
            if algorithm not in _TAKE_BACK:
                raise InvalidRequest(f"{key} cannot be topped up: a {algorithm} takes nothing back; reset it instead")
        case QuotaLimit():
            pass
        case _:
            raise InvalidRequest(f"{key} cannot be topped up: only rates, calls and quotas can")
    parts = parts_of(_plan(scoped, key).asks[0], amount)
    if not parts:
        raise InvalidRequest(f"{key} cannot be topped up by nothing: say how much")
    return parts


def credit(store: Store, scoped: ScopedLimits, key: str, parts: int) -> None:
    """Give back parts of a limit that no claim holds, as many as fit into it."""
    claim = Claim(_plan(scoped, key), [0])
    store.peek(claim)  # when it is given back, a rule may want to know
    store.settle(claim, [-parts])


def _plan(scoped: ScopedLimits, key: str) -> Plan:
    """The plan of a request of this limit and no other, which is not counted: credit makes nothing unused."""
    uncounted = replace(scoped, layout=layout_of(scoped.layout.limits, scoped.layout.lease_us))
    return plan_for([uncounted], {key}, version=None, left_out=scoped.layout.index)
