"""Usage counts: how much of each limit was admitted, by scope and hour, counted in the step that admits it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from limits_app.core.keys import Scope
from limits_app.core.sealing import seal, unseal

HOUR_US: Final = 3_600_000_000

KEPT_HOURS: Final = 8 * 24
"""How many hours a store keeps counts that are not collected."""


class Count(NamedTuple):
    """The amounts admitted for the limits of one scope in one hour; there may be several for the same hour.

    A set without a name has None as `resource`, `hour` is counted from 1970.
    `amounts` are thousandths of units by key, and below 0 where more was refunded than charged since the last
    collection. `shared` marks one bucket for all entities, and `member` is the member of the pool `resource`.
    """

    resource: str | None
    entity: str | None
    shared: bool
    member: str | None
    hour: int
    amounts: Mapping[str, int]


class Batch(NamedTuple):
    """Counts that were collected together; no other batch contains them.

    `is_full` says that the batch has its maximum size, so that there may be more counts.
    """

    name: str
    counts: Sequence[Count]
    is_full: bool


def label_of(scope: Scope, *more: object) -> bytes:
    """Return the fields of a scope that a Count starts with, and further values, as JSON for stores to keep.

    The name of the entity is sealed.
    """
    return json.dumps([scope.resource, seal(scope.entity), scope.shared, scope.member, *more]).encode()


def unsealed(count: Count) -> Count:
    """Return a count that begins with the fields of a label, with the name of its entity."""
    return count._replace(entity=unseal(count.entity))


def hour_of(time_us: int) -> int:
    """Return the hour of a time in microseconds, counted from 1970."""
    return time_us // HOUR_US


def hour_ends(now: int) -> int:
    """Return when the hour of a time ends, in microseconds."""
    return (now // HOUR_US + 1) * HOUR_US


def is_in_hour(until: int, taken_at: int) -> bool:
    """Return whether a time is in the hour that ends at `until`."""
    return 0 < until - taken_at <= HOUR_US
