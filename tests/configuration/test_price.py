"""Rows of prices: what they may have, and that a price that has begun stays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from pytest_django import Settings

from limits_app import limits
from limits_app.audit import CannotRevert, revert
from limits_app.models import AuditEvent, Price
from limits_app.models.price import next_full_hour
from tests.configuration.rows import complaint

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 10, 25, tzinfo=UTC)
LATER = datetime(2026, 3, 1, 11, tzinfo=UTC)
BEFORE = datetime(2026, 3, 1, 10, tzinfo=UTC)


@pytest.fixture(autouse=True)
def time() -> Any:
    with time_machine.travel(NOW, tick=False) as traveller:
        yield traveller


def price(**fields: Any) -> Price:
    """A valid price, unless fields make it invalid."""
    values: dict[str, Any] = {
        "resource": "openai/gpt-4o",
        "unit": "input_tokens",
        "amount": Decimal("0.15"),
        "per": 1_000_000,
        "currency": "usd",
        "valid_from": LATER,
    }
    return Price(**values | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"resource": "openai/*"},
        {"resource": "gpt-4o-*"},
        {"member": "us-east-1/1"},
        {"unit": "call_count", "per": 1},
        {"currency": "eur"},
        {"amount": Decimal(0)},
        {"amount": Decimal("999999.999999999")},
        {"valid_from": datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2)))},
    ],
)
def test_valid_price_is_stored_exactly(fields: dict[str, Any]) -> None:
    row = price(**fields)
    row.full_clean()
    row.save()
    stored = Price.objects.get()
    assert (stored.amount, stored.per) == (row.amount, row.per)
    assert stored.as_stored() == row.as_stored()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("resource", "openai/gpt 4", "must be a letter followed by"),
        ("resource", "openai/gpt*", "needs one of"),
        ("resource", "1/*", "must be a letter followed by"),
        ("resource", "", "cannot be blank"),
        ("unit", "usd", "is a currency"),
        ("unit", "USD", "is a currency"),
        ("unit", "input tokens", "must be a letter followed by"),
        ("currency", "gbp", "choose one of usd, eur"),
        ("amount", Decimal("-0.01"), "greater than or equal to 0"),
        ("amount", Decimal("0.0000000001"), "no more than 9 decimal places"),
        ("amount", Decimal(1_000_000), "no more than 6 digits before"),
        ("per", 10, "is not a valid choice"),
        ("valid_from", datetime(2026, 3, 1, 11, 30, tzinfo=UTC), "a full hour of UTC"),
        ("valid_from", datetime(2026, 3, 1, 11, 0, 0, 1, tzinfo=UTC), "a full hour of UTC"),
        ("valid_from", BEFORE, "choose 2026-03-01 11:00"),
    ],
)
def test_invalid_field_is_an_error(field: str, value: Any, message: str) -> None:
    assert message in complaint(price(**{field: value}).full_clean, field)


def test_member_needs_the_name_of_its_pool() -> None:
    assert "name of its pool" in complaint(price(resource="bedrock/*", member="us-east-1/1").full_clean, "resource")


@pytest.mark.parametrize(
    ("resource", "is_wrong"),
    [("openai/gpt-4o", True), ("openai/*", True), ("other/*", False), ("openai/o3", False)],
)
def test_permits_have_no_price(resource: str, is_wrong: bool) -> None:
    limits.set_resource_limits("openai/gpt-4o", ["slots=5", "images=5/min"])
    price(resource=resource, unit="images").full_clean()
    row = price(resource=resource, unit="slots")
    if is_wrong:
        assert "is the key of a concurrency limit" in complaint(row.full_clean, "unit")
    else:
        row.full_clean()


def test_unit_has_one_price_from_an_hour_on() -> None:
    price().save()
    assert "change that one instead" in complaint(price(amount=Decimal(2)).full_clean)
    price(currency="eur").full_clean()
    price(valid_from=LATER + timedelta(hours=1)).full_clean()


@pytest.mark.parametrize(
    ("now", "hour"),
    [
        (datetime(2026, 3, 1, 10, 0, tzinfo=UTC), datetime(2026, 3, 1, 11, tzinfo=UTC)),
        (datetime(2026, 3, 1, 10, 59, tzinfo=UTC), datetime(2026, 3, 1, 11, tzinfo=UTC)),
        (datetime(2026, 3, 1, 10, 59, 0, 1, tzinfo=UTC), datetime(2026, 3, 1, 12, tzinfo=UTC)),
        (datetime(2026, 3, 1, 23, 59, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)),
    ],
)
def test_price_is_valid_from_the_next_full_hour_by_default(now: datetime, hour: datetime) -> None:
    assert next_full_hour(now) == hour
    with time_machine.travel(now, tick=False):
        row = price(valid_from=None)
        row.full_clean()
    assert row.valid_from == hour


def test_site_without_time_zones_has_naive_hours(settings: Settings) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    assert next_full_hour(NOW) == datetime(2026, 3, 1, 12)  # noqa: DTZ001 - as such a site has them


def test_price_of_the_future_can_be_changed_and_deleted() -> None:
    row = price()
    row.save()
    row.amount = Decimal("0.2")
    row.full_clean()
    row.save()
    assert Price.objects.get().amount == Decimal("0.2")
    row.delete()
    assert not Price.objects.exists()


def change(row: Price) -> None:
    row.amount = Decimal(3)
    row.save()


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(change, id="save"),
        pytest.param(lambda row: Price.objects.update(amount=3), id="update"),
        pytest.param(lambda row: Price.objects.update(valid_from=LATER + timedelta(days=1)), id="move"),
        pytest.param(lambda row: row.delete(), id="delete"),
        pytest.param(lambda row: Price.objects.all().delete(), id="delete all"),
    ],
)
def test_price_that_has_begun_stays(write: Callable[[Price], object], time: Any) -> None:
    row = price()
    row.save()
    time.move_to(LATER)
    with pytest.raises((IntegrityError, ValidationError), match="add a new price"), transaction.atomic():
        write(Price.objects.get())
    assert Price.objects.get().amount == Decimal("0.15")
    assert AuditEvent.objects.count() == 1


def test_change_of_a_price_is_reverted_until_it_begins(time: Any) -> None:
    row = price()
    row.save()
    row.amount = Decimal("0.2000001")
    row.save()
    revert(AuditEvent.objects.get(verb="update"))
    assert Price.objects.get().amount == Decimal("0.15")
    time.move_to(LATER)
    for event in AuditEvent.objects.all():
        with pytest.raises(CannotRevert), transaction.atomic():
            revert(event, force=True)
    assert Price.objects.get().amount == Decimal("0.15")


def test_the_form_of_a_price_that_has_begun_shows_a_hint(time: Any) -> None:
    price().save()
    time.move_to(LATER)
    row = Price.objects.get()
    row.valid_from = LATER + timedelta(days=1)
    with pytest.raises(ValidationError, match="add a new price"):
        row.full_clean()


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": Decimal(-1)},
        {"valid_from": datetime(2026, 3, 1, 11, 30, tzinfo=UTC)},
        {"unit": "eur"},
        {"per": 7},
        {"currency": "gbp"},
    ],
)
def test_invalid_price_is_rejected_also_without_a_form(fields: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Price.objects.bulk_create([price(**fields)])
    assert not Price.objects.exists()
