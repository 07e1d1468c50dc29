"""What the doctor finds about prices: units that are free beside others, and prices that match nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from limits_app import limits
from limits_app.models import BucketKind, Pool, PoolMember, Price, Resource, UsagePeriod, UsageSnapshot
from limits_app.services.doctor import diagnose
from tests.services.conftest import clock

__all__ = ["clock"]

pytestmark = pytest.mark.django_db

HOUR = timezone.now().replace(minute=0, second=0, microsecond=0)


def price(resource: str, unit: str = "input_tokens", **fields: Any) -> None:
    values = {"amount": 1, "currency": "usd", "valid_from": HOUR - timedelta(days=1)} | fields
    Price.objects.create(resource=resource, unit=unit, **values)


def used(resource: str, key: str, **fields: Any) -> None:
    values = {"period": UsagePeriod.HOUR, "start": HOUR, "admitted_milli": 1000} | fields
    UsageSnapshot.objects.create(resource=resource, key=key, **values)


def found(code: str) -> list[str]:
    """What the findings of an id say."""
    return [finding.message for finding in diagnose() if finding.id == f"limits_app.{code}"]


def test_unit_without_a_price_beside_others_is_found() -> None:
    limits.set_resource_limits("llm", ["input_tokens=1M/min", "output_tokens=1M/min", "calls=60/min", "slots=5"])
    price("llm")
    assert found("D032") == ["output_tokens of llm has no price in usd, and input_tokens has one"]
    price("llm", "output_tokens")
    assert found("D032") == []
    price("llm", currency="eur")
    assert found("D032") == ["output_tokens of llm has no price in eur, and input_tokens has one"]


def test_unit_that_was_used_is_found() -> None:
    price("chat/*")
    used("chat/a", "input_tokens")
    used("chat/a", "images")
    used("chat/a", "call_count")
    used("chat/a", "usd")
    used("chat/b", "images", start=HOUR - timedelta(days=40))
    assert found("D032") == ["images of chat/a has no price in usd, and input_tokens has one"]


def test_resource_without_any_price_is_not_found() -> None:
    limits.set_resource_limits("llm", ["tokens=1M/min"])
    limits.set_resource_limits("other", ["tokens=1M/min"])
    price("other", "tokens")
    price("llm", "tokens", valid_from=HOUR + timedelta(days=1))
    assert found("D032") == []


def test_prices_that_match_nothing_are_found() -> None:
    Resource.objects.create(name="openai/gpt-4o")
    pool = Pool.objects.create(name="bedrock/claude")
    PoolMember.objects.create(pool=pool, name="eu")
    price("openai/*")
    price("openay/*")
    price("not/used/yet")
    price("bedrock/claude", member="eu")
    price("bedrock/claude", member="us")
    assert found("D033") == [
        "prices are for us of bedrock/claude, and no pool of this name has this member",
        "prices are for openay/*, and no resource matches it",
    ]
    used("openay/x", "input_tokens", bucket=BucketKind.ENTITY)
    assert found("D033") == ["prices are for us of bedrock/claude, and no pool of this name has this member"]


def test_first_ten_are_listed() -> None:
    for number in range(13):
        price(f"p{number}/*")
    assert len(found("D033")) == 11
    assert found("D033")[-1] == "more prices match nothing: 3"
