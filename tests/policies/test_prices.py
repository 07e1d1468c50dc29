"""Prices of a resource as requests and reports read them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from limits_app import limits
from limits_app.models import Price
from limits_app.models.price import hour_us
from limits_app.policies import ProposedLimits, ProposedRows, ResolvedSet, price_lists, resolver, stored_prices
from limits_app.stores.memory import MemoryStore
from tests.services.wall import Wall

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def add(resource: str, amount: str, valid_from: datetime = NOON, **fields: Any) -> Price:
    """Add a price for a million tokens."""
    values = {"unit": "tokens", "per": 1_000_000, "currency": "usd"} | fields
    return Price.objects.create(resource=resource, amount=Decimal(amount), valid_from=valid_from, **values)


def amounts(resource: str, at: datetime = NOON, *, pool: str | None = None, member: str = "") -> dict[str, float]:
    """The prices of a million units of a resource."""
    prices = stored_prices(resource, pool).at(hour_us(at), member)
    return {f"{price.unit} {price.currency}": price.numerator / price.denominator for price in prices}


def resolved(resource: str) -> ResolvedSet:
    return resolver.latest((resource, "user:ann", (), None))


def test_prices_are_those_of_the_resource_and_its_patterns() -> None:
    add("openai/*", "1")
    add("openai/gpt-4o", "2.5")
    add("openai/*", "9", unit="images")
    add("other/*", "7")
    assert amounts("openai/gpt-4o") == {"images usd": 9, "tokens usd": 2.5}
    assert amounts("openai/o3") == {"images usd": 9, "tokens usd": 1}
    assert amounts("openai") == {}


def test_price_of_a_member_is_that_of_its_pool() -> None:
    add("llm", "1")
    add("bedrock/claude", "2", member="eu")
    add("bedrock/other", "3", member="eu")
    assert amounts("llm", pool="bedrock/claude", member="eu") == {"tokens usd": 2}
    assert amounts("llm", pool="bedrock/claude", member="us") == {"tokens usd": 1}
    assert amounts("llm") == {"tokens usd": 1}


def test_history_of_a_resource_has_each_price_with_its_time() -> None:
    add("llm", "1", NOON - 5 * HOUR)
    add("llm", "2", NOON)
    periods = stored_prices("llm").periods(hour_us(NOON - HOUR))
    assert [(period.price.numerator, period.valid_from_us, period.valid_until_us) for period in periods] == [
        (1, round((NOON - HOUR).timestamp() * 1e6), round(NOON.timestamp() * 1e6)),
        (2, round(NOON.timestamp() * 1e6), None),
    ]


@pytest.mark.parametrize("number", [3, 700])
def test_prices_of_many_resources_are_one_query(number: int) -> None:
    Price.objects.bulk_create(
        [
            Price(resource=f"m/{n}", unit="tokens", amount=Decimal(n), per=1_000_000, currency="usd", valid_from=NOON)
            for n in range(number)
        ]
    )
    with CaptureQueriesContext(
        connection,
    ) as queries:
        lists = price_lists([(f"m/{n}", None) for n in range(number)])
    assert len(queries) == 1
    assert [lists[f"m/{n}", None].at(10**18)[0].numerator for n in range(number)] == list(range(number))


def test_kept_limits_end_when_the_next_price_begins(wall: Wall) -> None:
    limits.set_resource_limits("llm", "tokens=1M/min")
    now = datetime.fromtimestamp(wall(), UTC).replace(minute=0, second=0, microsecond=0)
    assert resolved("llm").limit_set.changes_at is None
    add("llm", "1", now + 2 * HOUR)
    add("llm", "2", now + 5 * HOUR)
    assert resolved("llm").limit_set.changes_at == (now + 2 * HOUR).timestamp()
    wall.advance(hours=3)
    assert resolved("llm").limit_set.changes_at == (now + 5 * HOUR).timestamp()


@pytest.mark.parametrize(
    "change", [lambda: add("llm", "1", datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + 50 * HOUR)]
)
def test_change_of_a_price_replaces_all_kept_limits(change: Callable[[], object]) -> None:
    limits.set_resource_limits("llm", "tokens=1M/min")
    before = resolved("llm")
    assert resolved("llm").template is before.template or resolved("llm") is before
    change()
    assert resolved("llm").limit_set.changes_at is not None


def test_site_without_prices_makes_no_query_for_them() -> None:
    limits.set_resource_limits("llm", "tokens=1M/min")
    with CaptureQueriesContext(connection) as queries:
        resolved("llm")
    without = len(queries)
    add("other", "1")
    with CaptureQueriesContext(connection) as queries:
        resolved("llm")
    assert len(queries) == without + 1
    with CaptureQueriesContext(connection) as queries:
        resolved("llm")
    assert len(queries) == 0


def test_proposed_limits_change_with_the_next_price() -> None:
    add("api", "1")
    add("api", "2", NOON + 2 * HOUR)
    proposed = ProposedLimits(ProposedRows(), "default", MemoryStore())
    changes = [proposed.of("api", "user:1", NOON + hours * HOUR)[1] for hours in (1, 3)]
    assert changes == [NOON + 2 * HOUR, None]
