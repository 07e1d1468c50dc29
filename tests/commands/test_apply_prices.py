"""Prices in limits files: new ones, those that have begun, and files of another site."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine
import yaml

from limits_app.models import Price
from limits_app.services import limits_file
from limits_app.services.limits_file import InvalidFile

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 10, 25, tzinfo=UTC)
FILE = """
prices:
  - {resource: openai/*, unit: input_tokens, amount: "0.15", currency: usd, valid_from: 2026-03-01T11:00:00Z}
  - {resource: openai/*, unit: call_count, amount: 0.01, per: 1, currency: usd, valid_from: 2026-03-01T11:00:00Z}
"""


@pytest.fixture(autouse=True)
def time() -> Any:
    with time_machine.travel(NOW, tick=False) as traveller:
        yield traveller


def apply(text: str) -> dict[str, int]:
    """Apply a file; returns how many objects changed, without those that did not."""
    counts = limits_file.apply(limits_file.read_content(text)).counts()
    return {change: count for change, count in counts.items() if count and change != "unchanged"}


def wrong(text: str) -> str:
    with pytest.raises(InvalidFile) as caught:
        apply(text)
    return str(caught.value)


def test_file_is_applied_exactly_and_then_changes_nothing(time: Any) -> None:
    assert apply(FILE) == {"create": 2}
    assert [(row.amount, row.per) for row in Price.objects.order_by("unit")] == [
        (Decimal("0.01"), 1),
        (Decimal("0.15"), 1_000_000),
    ]
    assert apply(FILE) == {}
    time.shift(timedelta(days=3))
    assert apply(FILE) == {}
    assert limits_file.apply(limits_file.read_content("".join(limits_file.export()))).drift is False


def test_price_of_the_future_is_changed_and_deleted() -> None:
    apply(FILE)
    assert apply(FILE.replace("0.15", "0.2")) == {"change": 1}
    assert apply("prices: []") == {"delete": 2}


def test_new_price_keeps_the_one_before(time: Any) -> None:
    apply(FILE)
    time.shift(timedelta(days=3))
    later = FILE.replace("03-01T11", "04-01T00").replace("0.15", "0.2")
    assert apply(later) == {"create": 2}
    assert Price.objects.count() == 4
    assert apply("prices: []") == {"delete": 2}
    assert Price.objects.count() == 2


def test_price_that_has_begun_cannot_be_changed(time: Any) -> None:
    apply(FILE)
    time.shift(timedelta(hours=1))
    problem = wrong(FILE.replace("0.15", "0.2"))
    assert "line 3: The price of input_tokens of openai/* in usd from 2026-03-01T11:00:00+00:00 has begun" in problem
    assert "add a new price" in problem
    assert {row.amount for row in Price.objects.all()} == {Decimal("0.01"), Decimal("0.15")}


def test_file_of_another_site_is_valid_from_the_next_hour(time: Any) -> None:
    time.shift(timedelta(days=30))
    content = limits_file.read_content(FILE)
    assert len(limits_file.plan(content).warnings) == 2
    assert apply(FILE) == {"create": 2}
    assert {row.valid_from for row in Price.objects.all()} == {datetime(2026, 3, 31, 11, tzinfo=UTC)}
    for _ in range(3):
        assert apply(FILE) == {}
        time.shift(timedelta(hours=1))
    assert limits_file.plan(content).warnings == ()


def test_of_the_history_of_another_site_the_last_price_counts() -> None:
    history = "".join(
        f"\n  - {{resource: a, unit: t, amount: {month}, currency: usd, valid_from: 2025-0{month}-01T00:00:00Z}}"
        for month in (2, 3, 1)
    )
    assert apply(f"prices:{history}") == {"create": 1}
    assert Price.objects.get().amount == 3
    assert apply(f"prices:{history}") == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"valid_from": None}, "Write “valid_from” too"),
        ({"amount": "much"}, "Write a number such as 0.15"),
        ({"amount": True}, "amount"),
        ({"amount": None}, "amount"),
        ({"per": 5}, "per"),
        ({"unit": "usd"}, "is a currency"),
        ({"resource": "a*"}, "A pattern needs one of"),
        ({"member": "eu", "resource": "a/*"}, "name of its pool"),
    ],
)
def test_invalid_price_is_reported_with_its_line(fields: dict[str, Any], message: str) -> None:
    price = {"resource": "a", "unit": "t", "amount": "1", "currency": "usd", "valid_from": "2026-03-01T11:00:00Z"}
    text = yaml.safe_dump({"prices": [price, {**price, "unit": "u", **fields}]}, default_flow_style=True, width=10_000)
    assert message in wrong(text.replace("}, {", "},\n {"))
    assert "line 2" in wrong(text.replace("}, {", "},\n {"))
