"""The line of the client page that says when a quota is used up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from limits_app import limits
from limits_app.models import BucketKind
from limits_app.services.explain import ExplainedLimit, explain
from limits_app.services.quota_pace import used_up_at
from limits_app.usage.reading import Use
from tests.admin.pages.snapshots import used
from tests.admin.pages.test_client import shown

WHO = "tenant:blue"
NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
"""6.5 days after the first midnight of its last 7 days."""


def explained(text: str, **options: Any) -> ExplainedLimit:
    limits.set_resource_limits("chat", [text], **options)
    return explain("chat", entity=WHO, requested={text.partition("=")[0]: 0}).chain[0].limits[0]


def use(amount: float, key: str = "usd", resource: str = "chat", bucket: BucketKind = BucketKind.ENTITY) -> Use:
    return Use(bucket, key, resource, WHO, None, None, NOW, amount, 0)


def status(limit: ExplainedLimit, **fields: Any) -> ExplainedLimit:
    """The limit in another state."""
    assert limit.status is not None
    return replace(limit, status=replace(limit.status, **fields))


@pytest.mark.parametrize(
    ("uses", "hours"),
    [
        ([use(6.5)], 40 * 24),
        ([use(3), use(3.5)], 40 * 24),
        ([use(65)], 4 * 24),
        ([use(6.5), use(99, key="tokens"), use(99, resource="mail"), use(99, bucket=BucketKind.MEMBER)], 40 * 24),
        ([], None),
        ([use(0)], None),
    ],
)
def test_pace_is_that_of_the_use_of_the_limit(uses: list[Use], hours: float | None, db: None) -> None:
    limit = status(explained("usd=50/month"), remaining=40, reset_after=100 * 86_400.0)
    expected = None if hours is None else NOW + timedelta(hours=hours)
    assert used_up_at(limit, "chat", uses, NOW) == expected


def test_pace_of_a_total_in_money_is_that_of_the_cost(db: None) -> None:
    limits.set_entity_limits(WHO, ["usd=50/month"], counted="total")
    [own] = explain("chat", entity=WHO, requested={"usd": 0}).chain[0].limits
    limit = status(own, remaining=40, reset_after=100 * 86_400.0)
    uses = [replace(use(99, key="tokens", resource=name), cost={"usd": Decimal("3.25")}) for name in ("chat", "mail")]
    assert used_up_at(limit, "chat", [*uses, use(99)], NOW) == NOW + timedelta(hours=40 * 24)
    assert used_up_at(limit, "chat", [use(99)], NOW) is None


def test_quota_that_starts_again_before_is_not_used_up(db: None) -> None:
    limit = status(explained("usd=50/month"), remaining=40, reset_after=40 * 86_400.0)
    assert used_up_at(limit, "chat", [use(6.5)], NOW) is None
    assert used_up_at(status(limit, reset_after=40 * 86_400.0 + 1), "chat", [use(6.5)], NOW) is not None


@pytest.mark.parametrize("text", ["usd=50/month:shared", "usd=5/h:rate"])
def test_other_limits_are_not_foreseen(text: str, db: None) -> None:
    limit = status(explained(text), remaining=40, reset_after=100 * 86_400.0)
    assert used_up_at(limit, "chat", [use(6.5)], NOW) is None


def test_client_page_has_a_line(admin_client: Client) -> None:
    limits.set_resource_limits("chat", ["usd=1000/month"])
    with limits.acquire("chat", requested={"usd": 990}, entity=WHO) as acquisition:
        acquisition.update({"usd": 990})
    assert "at the pace of the last 7 days" not in shown(admin_client)
    used("chat", WHO, "usd", 1_000_000 * 1e6)
    assert "at the pace of the last 7 days" in shown(admin_client)
