"""How a store records slices: as leases of permits, so that a reset leaves them charged until they are returned."""

from __future__ import annotations

from itertools import count
from typing import Final

from limits_app.engine import (
    MAX_AMOUNT,
    PlannedLimit,
    PlannedScope,
    PlanShape,
    RequestPlan,
    Schema,
    schema_of,
    slices_key,
)
from limits_app.engine.limits import ResourceLimit

RETURN_US: Final = 10_000_000
"""How long after its end a slice may be returned; it is recorded for twice as long, since the call takes time."""


def recorded(plan: RequestPlan) -> RequestPlan:
    """Return the plan of slices: the limits of a plan, and after them a permit for each unit that a slice takes.

    The lease of these permits is the record of the slice in the store.
    """
    shape, records = plan.shape, [scope._replace(key=slices_key(scope.key)) for scope in plan.scopes]
    if shape.in_slices is None:
        shape.in_slices = _recorded(shape)
    return RequestPlan(shape.in_slices, (*plan.scopes, *records), plan.namespace)


def _recorded(shape: PlanShape) -> PlanShape:
    first_scope, first = len(shape.scopes), len(shape.limits)
    scopes = [*shape.scopes, *map(_recording, shape.scopes)]
    limits = [limit.moved(limit.scope_index, limit.position) for limit in shape.limits]
    for limit in shape.limits:
        index, schema = first_scope + limit.scope_index, scopes[first_scope + limit.scope_index].schema
        limits.append(
            PlannedLimit(
                schema, limit.index, index, first + limit.position, level=limit.level, every_key=limit.every_key
            )
        )
    recorded_us = min([limit.rule.lease_us for limit in limits if limit.is_permit])
    return PlanShape(limits, scopes, range(len(scopes)), (), recorded_us=recorded_us)


def _recording(scope: PlannedScope) -> PlannedScope:
    """Return the facts about the scope that records the slices of another one."""
    keys = _recorded_keys(scope.schema)
    limits = tuple([ResourceLimit(key, MAX_AMOUNT, is_money=False) for key in keys])
    schema = schema_of(limits, scope.slice_us + 2 * RETURN_US)
    return scope._replace(schema=schema, lasting=False)


def _recorded_keys(schema: Schema) -> list[str]:
    """Return the keys by which slices are recorded: those of limits, since resets name them.

    Those of amounts that are only counted may not be keys of limits; a reset does not concern them.
    """
    keys = {rule.key for rule in schema.rules if not rule.is_counted}
    unused = (key for key in map("counted.{}".format, count()) if key not in keys)
    return [next(unused) if rule.is_counted else rule.key for rule in schema.rules]
