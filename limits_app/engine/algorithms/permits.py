"""Permits of a resource: held by leases, which the record keeps; this rule counts them and numbers the grants.

`engine.reclaim` removes leases that have run out, before a request is rejected, which returns their permits;
`engine.renew` extends them, up to the longest hold.
State: (permits held, holders, fence, earliest time at which a lease may run out).
A fence only grows from grant to grant, so that a system elsewhere can reject a holder that is late.
"""

from __future__ import annotations

from limits_app.engine.algorithms.rule import NEVER_US, Rule, State
from limits_app.engine.amounts import to_milli
from limits_app.engine.limits import ResourceLimit


def may_have_expired(state: State, now: int) -> bool:
    """Return whether a lease of these permits may have run out."""
    permits, _, _, earliest = state
    return permits > 0 and earliest <= now


class Permits(Rule):
    """Permits whose leases last `lease_us` unless they are renewed, and `max_hold_seconds` at most."""

    is_permit = True
    lua_format = "QIQQ"

    def __init__(self, limit: ResourceLimit, lease_us: int) -> None:
        super().__init__(limit, (0, 0, 0, 0), 1, int(limit.capacity))
        max_hold_us = to_milli(limit.max_hold_seconds or 0, decimals=True) * 1000
        self.hold_us = max_hold_us or NEVER_US
        self.lease_us = min(lease_us, self.hold_us)
        self.lua = ("permits", self.ceiling_parts, self.lease_us, max_hold_us)

    def current(self, state: State, now: int) -> State:
        """Leases that end so late that they were written later than now plus a lease are counted again."""
        permits, holders, fence, earliest = state
        return (permits, holders, fence, now) if permits and earliest - now > 2 * self.lease_us else state

    def take(self, state: State, now: int, amount: int) -> State | None:
        """The fence is at least the clock, so that it still grows after idle state was removed."""
        permits, holders, fence, earliest = state
        if permits + amount > self.ceiling_parts:
            return None
        ends = now + self.lease_us
        if permits == 0:
            earliest = ends
        elif ends < earliest:  # the clock was set back
            earliest = min(self.current(state, now)[3], ends)
        return permits + amount, holders + 1, now if now > fence else fence + 1, earliest

    def wait(self, state: State, now: int, amount: int) -> int:
        """No release can be foreseen, so this is when the next lease may run out."""
        return max(state[3] - now, 1) if state[0] + amount > self.ceiling_parts else 0

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        """The change is minus the permits of one holder."""
        permits, holders, fence, earliest = state
        if earliest > now + self.lease_us and permits:  # perhaps the clock was set back
            earliest = self.current(state, now)[3]
        return permits + change, holders - 1, fence, earliest

    def credit(self, state: State, now: int, parts: int) -> State:
        """Return the state as it is: permits stay with their holders."""
        return state

    def used(self, state: State, now: int) -> int:
        return state[0]

    def restored_at(self, state: State) -> int:
        return state[3] if state[0] else 0

    def carry(self, old: Rule, state: State, now: int) -> State:
        return state if old.is_permit else (0, 0, 0, 0)
