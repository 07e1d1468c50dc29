"""Definitions in the file: every layout is read as it was written, also by versions that came later."""

from __future__ import annotations

import json

import pytest

from limits_app.core.record import schema_of
from limits_app.core.limits import Blocked, CallLimit, Limit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.definitions import layout_from
from limits_app.stores.process.codec import Codec

LIMITS: list[Limit] = [
    RateLimit("k", 10, 60),
    RateLimit("k", 0.5, 60, RateLimitAlgorithm.GCRA, 2.5, soft=True),
    CallLimit(10, 60, RateLimitAlgorithm.SLIDING_WINDOW),
    CallLimit(10, 60, soft=True),
    QuotaLimit.per_month("k", 10, "Europe/Berlin"),
    QuotaLimit.per_session("k", 10, 0.5, soft=True),
    ResourceLimit("db", 3, 2.5),
]


@pytest.mark.parametrize("limit", [*LIMITS, Blocked()], ids=repr)
def test_a_layout_is_read_as_it_was_written(limit: Limit) -> None:
    layout = schema_of((limit,), 10_000_000)
    assert layout_from(Codec(layout).definitions) is layout


def test_limits_of_one_kind_that_differ_have_names_that_differ() -> None:
    names = {Codec(schema_of((limit,))).name for limit in LIMITS}
    assert len(names) == len(LIMITS)


def test_hard_limits_are_written_as_before_there_were_soft_ones() -> None:
    written = Codec(schema_of((RateLimit("k", 10, 60),), 10_000_000)).definitions
    assert json.loads(written) == [10_000_000, [["rate", "k", 10, 60, "token_bucket", None]]]
