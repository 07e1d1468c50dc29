"""Schemas and records: the limits of one scope, compiled, and what is stored for it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from limits_app.core.errors import InvalidLimit, InvalidRequest
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.record import LEASE_US, Schema, lease_us_of, new_record, schema_of

TPM = RateLimit("tpm", 10, 10)
CALLS = CallLimit(5, 60)
DB = ResourceLimit("db", 3)


@pytest.mark.parametrize(
    ("lease_seconds", "lease_us"), [(10, LEASE_US), (0.001, 1000), (1.5, 1_500_000), (366 * 86_400, 31_622_400_000_000)]
)
def test_a_lease_lasts_a_millisecond_or_more(lease_seconds: float, lease_us: int) -> None:
    assert lease_us_of(lease_seconds) == lease_us


@pytest.mark.parametrize(
    "lease_seconds", [0, -1, 0.0009, 366 * 86_400 + 1, 10**400, float("nan"), float("inf"), True, None, "10"]
)
def test_an_invalid_lease_is_rejected(lease_seconds: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"lease_seconds must be between 0\.001 seconds and 366 days .*, not "):
        lease_us_of(lease_seconds)


def test_the_same_limits_are_compiled_once() -> None:
    assert schema_of((TPM, DB)) is schema_of((RateLimit("tpm", 10, 10), ResourceLimit("db", 3)))
    assert schema_of((TPM, DB)) is schema_of((TPM, DB), LEASE_US)
    assert schema_of((TPM, DB)) is pickle.loads(pickle.dumps(schema_of((TPM, DB))))
    assert schema_of((TPM, DB)) is not schema_of((DB, TPM))
    assert schema_of((TPM, DB)) is not schema_of((TPM, DB), LEASE_US + 1)
    assert schema_of((TPM, DB)) is not schema_of((TPM, DB), counts_usage=True)


def test_a_schema_has_the_position_of_every_limit() -> None:
    schema = schema_of((TPM, DB, CALLS, ResourceLimit("gpu", 1)))
    assert schema.index == {"tpm": 0, "db": 1, "call_count": 2, "gpu": 3}
    assert [rule.limit for rule in schema.rules] == list(schema.limits) == [TPM, DB, CALLS, ResourceLimit("gpu", 1)]
    assert schema.permits == (1, 3)
    assert schema_of((TPM, CALLS)).permits == ()


def test_two_limits_with_the_same_key_are_rejected() -> None:
    with pytest.raises(InvalidLimit, match="tpm"):
        Schema((TPM, RateLimit("tpm", 1, 1)), LEASE_US, counts_usage=False)


def test_amounts_are_converted_to_thousandths_of_a_unit() -> None:
    schema = schema_of((RateLimit("tpm", 7, 60), RateLimit("rpm", 10, 60, RateLimitAlgorithm.FIXED_WINDOW)))
    assert schema.milli(0, 3 * schema.rules[0].parts_per_unit) == 3000
    assert schema.milli(1, 3) == 3000


@pytest.mark.parametrize("counts_usage", [False, True])
def test_a_new_record_is_unused(*, counts_usage: bool) -> None:
    schema = schema_of((TPM, DB), counts_usage=counts_usage)
    record = new_record(schema)
    assert record.states == [rule.start for rule in schema.rules]
    assert record.states is not new_record(schema).states
    assert record.leases == {}
    assert not record.finished
    assert not record.changed
    if record.usage is not None:
        assert (record.usage.until, record.usage.amounts) == (0, [0, 0])
    assert (record.usage is not None) is counts_usage
