"""Leases: permits lent for a while, and taken back when they were not renewed."""

from __future__ import annotations

from collections.abc import Collection

from limits_app.core.algorithms import Rule, State
from limits_app.core.parts import FOREVER

__all__ = ["Lease", "counted", "lent", "renewed"]

Lease = tuple[int, int, int]
"""Permits that one holder has: how many, until when without renewal, and until when at most."""


def lent(rule: Rule, amount: int, now: int) -> Lease:
    """A lease that starts now."""
    return amount, now + rule.lease_us, FOREVER if rule.hold_us is None else now + rule.hold_us


def renewed(lease: Lease, lease_us: int, now: int) -> Lease | None:
    """The lease for another while, or None when it has run out: what has expired is never revived."""
    amount, expires, ends = lease
    return (amount, min(now + lease_us, ends), ends) if expires > now else None


def counted(state: State, leases: Collection[Lease]) -> State:
    """The state of permits that are lent by `leases` and no others; the fence stays."""
    earliest = min((expires for _, expires, _ in leases), default=0)
    return sum(amount for amount, _, _ in leases), len(leases), state[2], earliest
