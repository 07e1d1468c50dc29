"""Helpers for the tests of the engine: records without a store, and requests over them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from limits_app.core import engine
from limits_app.core.amounts import Amount
from limits_app.core.keys import scope_of
from limits_app.core.limits import AnyLimit
from limits_app.core.plan import Claim, Plan, ScopedLimits
from limits_app.core.planning import plan_for
from limits_app.core.record import Record, new_record, schema_of
from tests.core.algorithms.driven import NOW

__all__ = ["Scopes", "leases_of", "used"]


class Scopes:
    """The records of scopes, in memory, and the steps of a store over them; times are microseconds after NOW."""

    def __init__(self, *limits: AnyLimit, counts_usage: bool = False, **more: tuple[AnyLimit, ...]) -> None:
        self.scoped = [
            ScopedLimits(scope_of("engine", name), schema_of(scope_limits, counts_usage=counts_usage))
            for name, scope_limits in {"first": limits, **more}.items()
        ]
        self.records = [new_record(scope.schema) for scope in self.scoped]

    @property
    def record(self) -> Record:
        """The record of the first scope."""
        return self.records[0]

    def change(self, *limits: AnyLimit, counts_usage: bool = False, at: int = 0) -> None:
        """Give the first scope other limits, and migrate its record."""
        self.scoped[0] = ScopedLimits(self.scoped[0].scope, schema_of(limits, counts_usage=counts_usage))
        self.records[0] = engine.migrate(self.records[0], self.scoped[0].schema, NOW + at)

    def plan(self, *named: str, left_out: tuple[str, ...] = (), is_credit: bool = False) -> Plan:
        """A plan that names limits."""
        return plan_for(self.scoped, named, version=None, left_out=left_out, is_credit=is_credit)

    def claim(self, **requested: Amount) -> Claim:
        """A claim that no store has decided on."""
        plan = self.plan(*requested)
        amounts, _ = plan.amounts(requested)
        return Claim(plan, amounts)

    def loaded(self, plan: Plan) -> list[Record]:
        """The records of a plan's scopes."""
        by_key = {scope.key: record for scope, record in zip(self.scoped, self.records, strict=True)}
        return [by_key[key] for key in plan.scope_keys]

    def charge(self, at: int = 0, **requested: Amount) -> Claim:
        """Decide on a claim."""
        claim = self.claim(**requested)
        admitted = engine.charge(claim, self.loaded(claim.plan), NOW + at)
        assert claim.admitted is admitted
        assert claim.decided_at == NOW + at
        return claim

    def settle(self, claim: Claim, at: int = 0, **changes: Amount) -> bool:
        """Settle changes in units; permits are always returned."""
        parts = [
            -claim.amounts[limit.place]
            if limit.rule.is_permit
            else int(Fraction(str(changes.get(limit.key, 0))) * limit.rule.parts_per_unit)
            for limit in claim.plan.limits
        ]
        return engine.settle(claim, self.loaded(claim.plan), NOW + at, parts)

    def credit(self, key: str, amount: int, at: int = 0) -> None:
        """Give credit of a limit, in units."""
        left_out = tuple(limit.key for scope in self.scoped for limit in scope.schema.rules)
        claim = Claim(self.plan(key, left_out=left_out, is_credit=True), [0])
        self.settle(claim, at, **{key: -amount})

    def used(self, at: int = 0) -> dict[str, Fraction]:
        """The use of every limit in units, as the states count it."""
        return {key: amount for record in self.records for key, amount in used(record, at).items()}

    def states(self) -> Mapping[str, list[object]]:
        """The states of every scope."""
        return {scope.key: list(record.states) for scope, record in zip(self.scoped, self.records, strict=True)}


def used(record: Record, at: int = 0) -> dict[str, Fraction]:
    """The use of every limit of a record in units."""
    return {
        rule.key: Fraction(rule.used(state, NOW + at), rule.parts_per_unit)
        for rule, state in zip(record.schema.rules, record.states, strict=True)
    }


def leases_of(record: Record, key: str = "db") -> list[int]:
    """The amounts that are leased of a limit."""
    return sorted(lease.amount for lease_id, lease in record.leases.items() if lease_id[0] == key)
