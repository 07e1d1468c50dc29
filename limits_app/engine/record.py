"""Records: everything that is stored for one scope, and the schema of its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Final, NamedTuple

from limits_app.engine.algorithms import Rule, State, compile_rule
from limits_app.engine.amounts import MILLI, shown
from limits_app.engine.counting import hour_of
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limit_checks import MAX_WINDOW_MILLI, check_differ
from limits_app.engine.limits import AnyLimit, Blocked
from limits_app.engine.periods import SECOND_US

LEASE_US: Final = 10_000_000
"""How long a permit is leased before it must be renewed, unless a store says otherwise."""

Holder = int | bytes
"""The claim that holds a permit: its number in stores of one process, bytes with the process in stores that share."""

IsGone = Callable[[Holder], bool]
"""Returns whether the process of a holder has ended."""

LeaseId = tuple[str, Holder]
"""The key of a resource limit, and the holder of its permits."""


Lease = tuple[int, int, int]
"""Permits that one claim holds: how many, until when without renewal, and until when in total (microseconds)."""


class FinishedUsage(NamedTuple):
    """Amounts of one hour (counted from 1970) that the record counts no more: thousandths of units by limit key.

    `plan` is that of the schema that counted them.
    """

    hour: int
    amounts: dict[str, int]
    plan: str = ""


class Schema:
    """The limits of a scope in order, compiled; one object for all scopes that have the same limits.

    `index` is the position of each key, `permits` are the positions of the resource limits. A scope that `is_blocked`
    rejects every request.
    With `counts_usage` a record of the scope counts the admitted amounts, for the `plan` by which the client is served
    (empty: none): a record of another plan is carried over, so that each amount is counted for its plan. `lease_us` is
    how long permits are leased.
    Raises InvalidLimit where two limits have the same key.
    """

    def __init__(self, limits: tuple[AnyLimit, ...], lease_us: int, *, counts_usage: bool, plan: str = "") -> None:
        check_differ([limit.key for limit in limits])
        self.limits = limits
        self.lease_us = lease_us
        self.counts_usage = counts_usage
        self.plan = plan if counts_usage else ""
        self.rules: tuple[Rule, ...] = tuple([compile_rule(limit, lease_us) for limit in limits])
        self.index: dict[str, int] = {rule.key: position for position, rule in enumerate(self.rules)}
        self.is_blocked = any(isinstance(limit, Blocked) for limit in limits)
        self.permits = tuple([position for position, rule in enumerate(self.rules) if rule.is_permit])
        self.starts: tuple[State, ...] = tuple([rule.start for rule in self.rules])
        """The states of a scope that was never used."""

    def __reduce__(self) -> tuple[object, ...]:
        return schema_of, (self.limits, self.lease_us, self.counts_usage, self.plan)

    def milli(self, index: int, parts: int) -> int:
        """Return an amount of the limit at `index` in thousandths of a unit."""
        return parts * MILLI // self.rules[index].parts_per_unit


def schema_of(
    limits: tuple[AnyLimit, ...], lease_us: int = LEASE_US, counts_usage: bool = False, plan: str = ""
) -> Schema:
    """Compile limits, or return the schema that the same limits were compiled to before."""
    return _compiled(limits, lease_us, counts_usage, plan if counts_usage else "")


@lru_cache(maxsize=4096)
def _compiled(limits: tuple[AnyLimit, ...], lease_us: int, counts_usage: bool, plan: str) -> Schema:
    return Schema(limits, lease_us, counts_usage=counts_usage, plan=plan)


KeptUse = Mapping[str, tuple[Rule, State]]
"""The use of limits: of each key the rule that has recorded it, and its state."""

NOTHING_KEPT: Final[KeptUse] = {}


class Record:
    """Everything that is stored for one scope.

    `states` has one short tuple for each limit of the schema, `leases` are the held permits.
    `amounts` are the parts admitted in the current hour, one for each limit of the schema; None where that counts no
    usage. `counted_until` is the end of that hour in microseconds, 0 where counting has not begun. `label` is for
    stores, which are counting the record under it; it ends when the counted usage is finished.
    `kept` is the use of limits that the schema does not have, by key: it applies again when such a limit comes back. It
    is replaced and never changed; stores that load it separately save it where it `kept_changed`.
    Amounts that were charged before `reset_at` are not refunded, since the last reset has forgotten them; 0 for none.
    `finished` is usage that the store has to add to its counts when it saves the record; the store then empties it.
    `changed` is set by the engine when the record has to be saved.
    """

    __slots__ = (
        "amounts",
        "changed",
        "counted_until",
        "finished",
        "kept",
        "kept_changed",
        "label",
        "leases",
        "reset_at",
        "schema",
        "states",
    )

    def __init__(
        self,
        schema: Schema,
        states: list[State],
        leases: MutableMapping[LeaseId, Lease],
        amounts: list[int] | None,
    ) -> None:
        self.schema = schema
        self.states = states
        self.leases = leases
        self.amounts = amounts
        self.counted_until = 0
        self.label = b""
        self.finished: tuple[FinishedUsage, ...] = ()
        self.kept: KeptUse = NOTHING_KEPT
        self.kept_changed = False
        self.reset_at = 0
        self.changed = False

    def keep(self, kept: KeptUse) -> None:
        """Replace the use that is kept of limits that the schema does not have."""
        self.kept_changed = self.kept_changed or bool(kept or self.kept)
        self.kept = kept

    def counted(self) -> tuple[FinishedUsage, ...]:
        """Return the usage of the current hour as finished usage; empty when nothing was counted."""
        if self.amounts is None or not self.counted_until:
            return ()
        schema = self.schema
        amounts = {
            rule.key: schema.milli(index, parts)
            for index, (rule, parts) in enumerate(zip(schema.rules, self.amounts, strict=True))
            if parts
        }
        return (FinishedUsage(hour_of(self.counted_until - 1), amounts, schema.plan),) if amounts else ()

    def held(self, rule: Rule, state: State, now: int, is_gone: IsGone | None = None) -> State:
        """Return the state of a resource limit computed from the leases that expire after `now`; the fence is kept.

        With `is_gone`, without those whose holder is gone. The leases are counted again after one lease of the rule at
        the latest, since that may be shorter than the leases of tokens.
        """
        permits = holders = earliest = 0
        for (key, holder), (amount, expires_at, _) in self.leases.items():
            if key == rule.key and expires_at > now and not (is_gone is not None and is_gone(holder)):
                permits += amount
                holders += 1
                earliest = min(earliest, expires_at) if earliest else expires_at
        if now and earliest - now > 2 * rule.lease_us:
            earliest = now + rule.lease_us
        return permits, holders, state[2], earliest


def new_record(schema: Schema) -> Record:
    """Return the record of a scope that was never used."""
    starts = schema.starts
    return Record(schema, [*starts], {}, [0] * len(starts) if schema.counts_usage else None)


def lease_us_of(lease_seconds: object) -> int:
    """Return how long a store leases permits, in microseconds; InvalidRequest for an invalid number of seconds."""
    if (
        isinstance(lease_seconds, int | float)
        and not isinstance(lease_seconds, bool)
        and 0.001 <= lease_seconds <= MAX_WINDOW_MILLI / MILLI
    ):
        return round(lease_seconds * SECOND_US)
    raise InvalidRequest(
        f"lease_seconds must be between 0.001 seconds and 366 days ({MAX_WINDOW_MILLI // MILLI} seconds), "
        f"not {shown(lease_seconds)}"
    )
