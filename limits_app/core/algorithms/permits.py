"""Permits of a resource: held by leases, given back by release or when the lease runs out.

State: (permits held, holders, fence, earliest moment at which a lease may run out).
The leases themselves are kept by the store; this rule counts them and numbers the grants.
"""

from __future__ import annotations

from limits_app.core.algorithms.rule import Rule, State
from limits_app.core.amounts import to_milli
from limits_app.core.limits import ResourceLimit

__all__ = ["compile_permits"]


def compile_permits(limit: ResourceLimit, lease_us: int) -> Rule:
    """Compile permits whose leases last `lease_us` unless they are renewed."""
    capacity = int(limit.capacity)
    hold_us = None
    if limit.max_hold_seconds is not None:
        hold_us = to_milli(limit.max_hold_seconds, decimals=True) * 1000
        lease_us = min(lease_us, hold_us)

    def take(state: State, now: int, amount: int) -> State | None:
        held, holders, fence, earliest = state
        if held + amount > capacity:
            return None
        ends = now + lease_us
        if held == 0 or ends < earliest:
            earliest = ends
        # A fence is never less than the clock, so that it still grows after idle state was forgotten.
        return held + amount, holders + 1, now if now > fence else fence + 1, earliest

    def wait(state: State, now: int, amount: int) -> int:
        return max(state[3] - now, 1) if state[0] + amount > capacity else 0

    def settle(state: State, now: int, change: int) -> State:
        held, holders, fence, earliest = state
        return held + change, holders - 1, fence, earliest

    return Rule(
        limit=limit,
        start=(0, 0, 0, 0),
        parts_per_unit=1,
        ceiling_parts=capacity,
        take=take,
        wait=wait,
        settle=settle,
        credit=lambda state, now, parts: state,
        used=lambda state, now: state[0],
        restored_at=lambda state: state[3] if state[0] else 0,
        carry=lambda old, state, now: state if old.is_permit else (0, 0, 0, 0),
        lease_us=lease_us,
        hold_us=hold_us,
        twin=("permits", capacity, lease_us, hold_us or 0),
    )
