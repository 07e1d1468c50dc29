"""Counting: how much of each limit was admitted, by scope and hour, in the same step that admits it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from limits_app.core.keys import Scope

__all__ = ["HOUR_US", "KEPT_HOURS", "Batch", "Count", "hour_ends", "hour_of", "in_time", "label_of"]

HOUR_US: Final = 3_600_000_000

KEPT_HOURS: Final = 8 * 24
"""How long a store keeps counts that nobody collects."""


class Count(NamedTuple):
    """What was admitted of the limits of one scope in one hour; more may follow for the same hour.

    `resource` is None in a set that has no name, and `hour` counts from 1970.
    `amounts` are thousandths of units, by key, and below 0 where more was given back than was taken since the last
    collection. `shared` says that it is one bucket for everybody, and `member` which one of the pool `resource` it is.
    """

    resource: str | None
    entity: str | None
    shared: bool
    member: str | None
    hour: int
    amounts: Mapping[str, int]


class Batch(NamedTuple):
    """Counts that were collected together under a name, which nobody else will get under another one.

    `is_full` says that it holds as much as one can, so that there may be more.
    """

    name: str
    counts: Sequence[Count]
    is_full: bool


def label_of(scope: Scope, *more: object) -> bytes:
    """Who a scope is of, as text for stores to keep: what a Count begins with, and more if one likes."""
    return json.dumps([scope.resource, scope.entity, scope.shared, scope.member, *more]).encode()


def hour_of(moment: int) -> int:
    """The hour of a moment in microseconds."""
    return moment // HOUR_US


def hour_ends(now: int) -> int:
    """When the hour of a moment ends."""
    return (now // HOUR_US + 1) * HOUR_US


def in_time(until: int, taken_at: int) -> bool:
    """Whether what was taken at a moment counts in the hour that ends then."""
    return 0 < until - taken_at <= HOUR_US
