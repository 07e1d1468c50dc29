"""Reported use: what a report of usage is checked against, what was reported of each key, and what was not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from limits_app.acquiring.extension_shares import Part, charged_for, money_of, requested_of, sum_used
from limits_app.engine import (
    BLOCK_LEVEL,
    IDEMPOTENCY_LEVEL,
    LEASE_LEVEL,
    GivenAmount,
    LimitUse,
    PlannedLimit,
    check_amounts,
    parts_of,
    units_of,
    units_of_usage,
    usage_of_units,
)
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limits import CallLimit

logger = logging.getLogger("limits_app")

_NOT_OF_CALLERS = {BLOCK_LEVEL, IDEMPOTENCY_LEVEL, LEASE_LEVEL}


class UsageReport(NamedTuple):
    """The amount that was reported of a key, for one limit of a part of an acquisition.

    `expects_overuse` says whether more than requested may be reported of every limit.
    """

    part: Part
    limit: PlannedLimit
    key: str
    amount: object
    expects_overuse: bool

    def checked_parts(self, parts: Sequence[Part], reports: Mapping[str, object]) -> int:
        """Return the use of the limit; InvalidRequest for an invalid amount, a warning for too much.

        `parts` are those of the acquisition, and `reports` the reported amounts by key.
        """
        limit = self.limit
        used = sum_used(parts, limit, reports) if limit.is_sum else parts_of(limit, self.amount)
        if used > self.part.amounts[limit.position]:
            self._check_overuse(parts, used)
        return used

    def _check_overuse(self, parts: Sequence[Part], used: int) -> None:
        """Raise InvalidRequest, or warn, where more was used than the parts have requested."""
        limit, key = self.limit, self.key
        first = next(charged for charged in parts if key in charged.shape.by_key)
        charged_parts = charged_for(parts, self.part, limit)
        if self.part is not first or used <= charged_parts or self.expects_overuse:
            return
        requested = units_of(limit.rule, charged_parts)
        if isinstance(limit.rule.limit, CallLimit):
            raise InvalidRequest(f"usage of {key!r} must be between 0 and the {requested} requested, not {self.amount}")
        if parts[0].successful and not limit.is_beside:
            effect = "the rest is not counted" if limit.rule.is_permit else "the rest is recorded as debt"
            logger.warning("%s: %s used, but only %s requested: %s", key, self.amount, requested, effect)


def is_requested(parts: Sequence[Part], key: str) -> bool:
    """Return whether a part has requested a key."""
    return any(key in part.shape.by_key for part in parts)


def is_unrequested(parts: Sequence[Part], key: str, amount: object) -> bool:
    """Return whether no part has requested a reported key; InvalidRequest for an invalid amount of such a key."""
    if is_requested(parts, key):
        return False
    check_amounts("usage", {key: amount})
    return True


def beyond_first_request(
    extensions: Sequence[Part], requested: Mapping[str, GivenAmount], usage: Mapping[str, GivenAmount]
) -> Mapping[str, GivenAmount]:
    """Return the reported use of extensions of a repeated request, whose first request reports what it requested."""
    check_amounts("usage", usage)
    extended = {key for part in extensions for key in part.shape.by_key}
    more = {
        key: usage_of_units(key, used) - usage_of_units(key, requested.get(key, 0))
        for key, used in usage.items()
        if key in extended
    }
    return {key: units_of_usage(key, max(milli, 0)) for key, milli in more.items()}


def unreported(parts: Sequence[Part], reports: Mapping[str, object]) -> list[str]:
    """Return the keys whose usage must be reported, and was not, sorted."""
    return sorted({key for part in parts for key in part.shape.unreported(part.used, reports)})


def uses_by_key(parts: Sequence[Part], reports: Mapping[str, object]) -> dict[str, LimitUse]:
    """Return the requested and used amounts of all parts by key; a rejected request has used nothing."""
    uses: dict[str, LimitUse] = {}
    for part in parts:
        for limit in part.shape.limits:
            if limit.level in _NOT_OF_CALLERS or (limit.rule.is_counted and limit.key in uses):
                continue
            if limit.priced:
                uses[limit.key] = money_of(parts, part, limit)
                continue
            if limit.is_sum:
                for key in limit.keys:
                    reported = reports.get(key) if parts[0].successful else None
                    use = LimitUse(requested_of(parts, limit, key), reported, limit.rule.limit)  # type: ignore[arg-type]  # a number
                    uses.setdefault(key, use)
            else:
                used = part.used.get(limit.position) if part.successful else None
                requested = units_of(limit.rule, charged_for(parts, part, limit))
                uses[limit.key] = LimitUse(
                    requested, None if used is None else units_of(limit.rule, used), limit.rule.limit
                )
    return uses
