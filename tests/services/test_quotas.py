"""Quotas and soft limits, from the database to the decision."""

from __future__ import annotations

import pytest
from django.db.models import QuerySet

from limits_app import CallLimit, InvalidLimit, LimitExceeded, QuotaLimit, RateLimit, limits
from limits_app.models import AuditEvent, Limit
from limits_app.testing import FakeClock

QUOTAS = [
    QuotaLimit.per_day("daily", 10, "Europe/Berlin"),
    QuotaLimit.per_session("session", 5, 18_000, soft=True),
    RateLimit("tpm", 3, 60, soft=True),
]


def test_quotas_and_soft_limits_are_listed_as_they_were_set() -> None:
    limits.set_resource_limits("api", QUOTAS)
    assert limits.list_resources() == {"api": tuple(QUOTAS)}
    assert AuditEvent.objects.get(object_type="policy").after["limits"][1] == {
        "kind": "quota",
        "key": "session",
        "capacity": 5,
        "session_seconds": 18_000,
        "soft": True,
    }


def test_they_are_obeyed_from_the_next_request_on(clock: FakeClock) -> None:
    limits.set_resource_limits("api", QUOTAS)
    with limits.acquire("api", requested={"daily": 6, "session": 6, "tpm": 6}) as acquired:
        acquired.update({"daily": 6, "session": 6, "tpm": 6})
    assert [status.key for status in acquired.outcome.overdrawn] == ["session", "tpm"]
    with pytest.raises(LimitExceeded):
        limits.acquire("api", requested={"daily": 5})
    clock.advance(86_400)
    assert limits.try_acquire("api", requested={"daily": 10})


def test_status_and_explanation_know_them() -> None:
    limits.set_resource_limits("api", [*QUOTAS, CallLimit(5, 60, soft=True)])
    limits.try_acquire("api", requested={"daily": 4, "tpm": 5})
    told = limits.status("api").limits
    assert told["daily"]["period"] == "day"
    assert told["tpm"]["utilization"] > 1.6  # type: ignore[operator]  # a number
    explained = limits.explain("api")
    assert explained.outcome.allowed
    assert "daily: 6 of 10 left" in explained.text()
    assert "tpm: 0 of 3 left, 1 requested; it is soft, and overdrawn by 3." in explained.text()


def test_a_zone_that_is_not_known_is_refused_where_it_is_set_and_where_it_is_read() -> None:
    limits.set_resource_limits("api", QUOTAS)
    QuerySet.update(Limit.objects.filter(key="daily"), time_zone="Atlantis/Capital")  # as where zones are missing
    with pytest.raises(InvalidLimit, match="limit 'daily': time_zone 'Atlantis/Capital' is not known here"):
        limits.try_acquire("api", requested={"daily": 1})
