"""The reported usage of acquisitions, and how it is shared by the amounts that were charged one after the other."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from limits_app.engine.amounts import MILLI, Amount, check_amounts, from_milli, to_milli
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limits import CallLimit
from limits_app.engine.outcome import units_of
from limits_app.engine.plan import Bucket, PlannedLimit, parts_of

if TYPE_CHECKING:
    from limits_app.acquiring.acquisition import Acquisition

logger = logging.getLogger("limits_app")


def record_usage(acquisition: Acquisition, usage: Mapping[str, object]) -> None:
    """Check all keys of a report, and record it in each part of the acquisition that has charged the key."""
    if acquisition.is_repeated:
        usage = _beyond_first_request(acquisition, usage)
    reports: dict[str, object] = {**acquisition.reports, **usage}
    recorded: list[tuple[Acquisition, list[int]]] = []
    unknown = set(usage)
    for part in acquisition.parts():
        charged, by_key = part.claim.amounts, part.claim.shape.by_key
        amounts = [*part.used] or [-1] * len(charged)
        for key, used in usage.items():
            for limit in by_key.get(key, ()):
                amount = _sum_used(acquisition, limit, reports) if limit.is_sum else parts_of(limit, used)
                amounts[limit.place] = amount
                if amount > charged[limit.place] and key in unknown:
                    _check_overuse(acquisition, part, limit, amount, used=used)
        unknown.difference_update(by_key)
        recorded.append((part, amounts))
    for key in [key for key in usage if key in unknown]:
        check_amounts("usage", {key: usage[key]})
        acquisition.limit_set.skip_unknown(key, reported=True)
    for part, amounts in recorded:
        part.used = amounts
    acquisition.reports = reports


def _beyond_first_request(acquisition: Acquisition, usage: Mapping[str, object]) -> Mapping[str, object]:
    """Return the reported use of extensions of a repeated request: the first request reports its own amounts."""
    check_amounts("usage", usage)
    extended = {key for part in acquisition.extensions for key in part.claim.shape.by_key}
    more = {
        key: to_milli(used, decimals=True) - to_milli(acquisition.requested.get(key, 0), decimals=True)
        for key, used in usage.items()
        if key in extended
    }
    return {key: from_milli(max(milli, 0)) for key, milli in more.items()}


def requested_of(acquisition: Acquisition, limit: PlannedLimit, key: str) -> Amount:
    """Return how much an acquisition and its extensions have requested of a key, whose limit is for several keys."""
    return units_of(limit.rule, _requested_parts(acquisition, limit, key))


def _requested_parts(acquisition: Acquisition, limit: PlannedLimit, key: str) -> int:
    return sum([parts_of(limit, part.requested.get(key, 0)) for part in acquisition.parts()])


def _sum_used(acquisition: Acquisition, limit: PlannedLimit, reports: Mapping[str, object]) -> int:
    """Return the use of a limit for several keys; those that are not reported yet count as requested."""
    return sum(
        [
            parts_of(limit, reports[key]) if key in reports else _requested_parts(acquisition, limit, key)
            for key in limit.every_key
        ]
    )


def adopt_usage(acquisition: Acquisition, extension: Acquisition) -> None:
    """Note the usage that was reported before an extension of the acquisition was charged."""
    used = [-1] * len(extension.claim.amounts)
    for limit in extension.claim.shape.limits:
        for part, same in _same_bucket(acquisition, extension, limit):
            if part.used and part.used[same.place] >= 0:
                # The limit may have been changed; rounded towards more use.
                used[limit.place] = -(-part.used[same.place] * limit.rule.parts_per_unit // same.rule.parts_per_unit)
    extension.used = used


def charged_for(acquisition: Acquisition, part: Acquisition, limit: PlannedLimit) -> int:
    """Return how much an acquisition and its extensions have charged to the bucket of a limit of one of these parts.

    The result is in parts of the unit of that limit.
    """
    if not acquisition.extensions:
        return acquisition.claim.amounts[limit.place]
    same_bucket = _same_bucket(acquisition, part, limit)
    milli = sum([part.claim.amounts[one.place] * MILLI // one.rule.parts_per_unit for part, one in same_bucket])
    return milli * limit.rule.parts_per_unit // MILLI


def shares(acquisition: Acquisition) -> list[tuple[Acquisition, Sequence[int]]]:
    """Return the parts of an acquisition, each with its share of the reported use by place.

    Use is assigned to the parts in the order in which they were charged. The last part of a bucket receives what is
    left, also what exceeds the sum. So unused amounts are refunded to the latest charges.
    """
    parts = acquisition.parts()
    last = {bucket: part for part in parts for bucket in part.claim.plan.buckets}
    earlier: dict[Bucket, int] = {}
    found: list[tuple[Acquisition, Sequence[int]]] = []
    for part in parts:
        used = list(part.used)
        claim = part.claim
        for limit, bucket in zip(claim.shape.limits, claim.plan.buckets, strict=True):
            amount, per_unit = claim.amounts[limit.place], limit.rule.parts_per_unit
            before = earlier.get(bucket, 0)
            if used and used[limit.place] >= 0:
                left = max(used[limit.place] - before * per_unit // MILLI, 0)
                used[limit.place] = left if last[bucket] is part else min(left, amount)
            earlier[bucket] = before + amount * MILLI // per_unit
        found.append((part, used))
    return found


def units_used(part: Acquisition, limit: PlannedLimit) -> Amount | None:
    """Return the reported use of a limit; None where none was reported, or the request was rejected."""
    used = part.used[limit.place] if part.used and part.successful else -1
    return None if used < 0 else units_of(limit.rule, used)


def unreported_keys(acquisition: Acquisition) -> list[str]:
    """Return the keys whose usage must be reported and was not, sorted."""
    demanded = frozenset().union(*[part.claim.shape.must_report for part in acquisition.parts()])
    return sorted(demanded.difference(acquisition.reports))


def _same_bucket(
    acquisition: Acquisition, other: Acquisition, limit: PlannedLimit
) -> Iterator[tuple[Acquisition, PlannedLimit]]:
    """Iterate over the parts of an acquisition that have charged the bucket of a limit of another one, with theirs."""
    bucket = other.claim.plan.buckets[limit.place]
    for part in acquisition.parts():
        for one in part.claim.shape.by_key.get(limit.key, ()):
            if part.claim.plan.buckets[one.place] == bucket:
                yield part, one


def _check_overuse(
    acquisition: Acquisition, part: Acquisition, limit: PlannedLimit, used_parts: int, *, used: object
) -> None:
    """Raise InvalidRequest, or warn, where more was used than the acquisition and its extensions have requested."""
    amount = charged_for(acquisition, part, limit)
    if used_parts <= amount:
        return
    requested = units_of(limit.rule, amount)
    if isinstance(limit.rule.limit, CallLimit):
        raise InvalidRequest(f"usage of {limit.key!r} must be between 0 and the {requested} requested, not {used}")
    if acquisition.successful:
        effect = "the rest is not counted" if limit.rule.is_permit else "the rest is recorded as debt"
        logger.warning("%s: %s used, but only %s requested: %s", limit.key, used, requested, effect)
