"""The limits of one scope, compiled once and shared by all scopes that have the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

from limits_app.core.algorithms import Rule, State, compile_rule
from limits_app.core.amounts import MILLI, shown
from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import lease_key
from limits_app.core.limit_checks import MAX_WINDOW_MILLI, check_differ
from limits_app.core.limits import AnyLimit
from limits_app.core.unrolled import Record

__all__ = ["LEASE_US", "Layout", "layout_of", "lease_us_of"]

LEASE_US: Final = 10_000_000
"""How long a permit is lent before it must be renewed."""

_NEVER: Final = 2**53


def lease_us_of(lease_seconds: float) -> int:
    """How long a store lends permits; InvalidRequest for what would lend none, or what is no time."""
    is_number = isinstance(lease_seconds, int | float) and not isinstance(lease_seconds, bool)
    if not is_number or not 0.001 <= lease_seconds <= MAX_WINDOW_MILLI / MILLI:
        raise InvalidRequest(
            f"lease_seconds must be between 0.001 seconds and 366 days ({MAX_WINDOW_MILLI // MILLI} seconds), "
            f"not {shown(lease_seconds)}"
        )
    return round(lease_seconds * 1_000_000)


class Layout:
    """Limits in order, their rules, and the states of a scope that nobody has used.

    `index` says where the limit of a key stands, `permits` where resource limits do, and their keys.
    With `counts` a record of the scope counts what is admitted; `blank` is one of a scope that nobody has used.
    """

    __slots__ = ("__weakref__", "blank", "counts", "index", "lease_us", "limits", "permits", "rules", "start")

    def __init__(self, limits: tuple[AnyLimit, ...], lease_us: int, *, counts: bool = False) -> None:
        self.limits = limits
        self.lease_us = lease_us
        self.counts = counts
        self.rules: tuple[Rule, ...] = tuple(compile_rule(limit, lease_us) for limit in limits)
        self.permits = tuple((index, rule.key) for index, rule in enumerate(self.rules) if rule.is_permit)
        self.index = {rule.key: position for position, rule in enumerate(self.rules)}
        self.start: tuple[State, ...] = tuple(rule.start for rule in self.rules)
        self.blank: tuple[State | int, ...] = (*self.start, *(0,) * (len(limits) + 1)) if counts else self.start
        check_differ([limit.key for limit in limits])

    def __reduce__(self) -> tuple[object, ...]:
        return layout_of, (self.limits, self.lease_us, self.counts)

    def counted(self, record: Record) -> dict[str, int]:
        """What a record has counted, by key, in thousandths; empty where it counts nothing."""
        width = len(self.rules)
        counts = zip(self.rules, record[width : 2 * width], strict=True) if self.counts else ()
        return {rule.key: amount * MILLI // rule.parts_per_unit for rule, amount in counts if amount}

    def recounting(self, record: Record, until: int = 0) -> Record:
        """A record that begins to count anew, until a moment; 0 for one that does not count yet."""
        width = len(self.rules)
        return (*record[:width], *(0,) * width, until, record[-1]) if self.counts else tuple(record)

    def carried(self, old: Layout, states: Sequence[State], now: int) -> list[State]:
        """The states of this layout that keep what was used under an old one."""
        return [
            rule.carry(old.rules[old.index[rule.key]], states[old.index[rule.key]], now)
            if rule.key in old.index
            else rule.start
            for rule in self.rules
        ]

    def converted(self, key: str, change: int, old: Layout) -> int:
        """A change counted by an old layout, in this layout's parts; rounded towards more use."""
        scale, old_scale = (one.rules[one.index[key]].parts_per_unit for one in (self, old))
        return -(-change * scale // old_scale)

    def leases(self, scope: bytes) -> tuple[tuple[int, bytes], ...]:
        """Where the permits of a scope stand among its states, and the names of their leases."""
        return tuple((index, lease_key(scope, key)) for index, key in self.permits)

    def forgotten(self, states: Sequence[State], keys: Collection[str] | None) -> list[State]:
        """The states without what was used of the limits `keys` (None: of all); permits stay with their holders."""
        return [
            state if rule.is_permit or (keys is not None and rule.key not in keys) else rule.start
            for rule, state in zip(self.rules, states, strict=True)
        ]

    def forgetful(self, record: Record, keys: Collection[str] | None) -> Record:
        """A record with the states that are `forgotten`; what it has counted stays, since it was admitted."""
        width = len(self.rules)
        return (*self.forgotten(record[:width], keys), *record[width:])

    def restored_at(self, states: Sequence[State]) -> int:
        """From when on the states cannot be told from unused ones; never while permits are held."""
        return max(
            (
                _NEVER if rule.is_permit and rule.used(state, 0) else rule.restored_at(state)
                for rule, state in zip(self.rules, states, strict=False)
            ),
            default=0,
        )


def layout_of(limits: tuple[AnyLimit, ...], lease_us: int = LEASE_US, counts: bool = False) -> Layout:
    """Compile limits, or give the layout that the same limits were compiled to before."""
    return _compiled(limits, lease_us, counts)


@lru_cache(maxsize=4096)
def _compiled(limits: tuple[AnyLimit, ...], lease_us: int, counts: bool) -> Layout:
    return Layout(limits, lease_us, counts=counts)
