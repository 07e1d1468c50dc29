"""Prices in the admin: a table for a resource, the history, and prices that have begun."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from django.test import Client
from pytest_django import Settings

from limits_app.models import AuditEvent, Price
from tests.admin.browsing import act, address, changelist, said
from tests.admin.conftest import Visitor

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 10, 25, tzinfo=UTC)
NEXT = datetime(2026, 3, 1, 11, tzinfo=UTC)
TABLE = "?resource=openai%2Fgpt-4o"


@pytest.fixture(autouse=True)
def time(settings: Settings) -> Any:
    settings.TIME_ZONE = "UTC"
    with time_machine.travel(NOW, tick=False) as traveller:
        yield traveller


def price(unit: str, amount: str, valid_from: datetime = NEXT, **fields: Any) -> Price:
    values = {"resource": "openai/gpt-4o", "currency": "usd", "per": 1_000_000} | fields
    return Price.objects.create(unit=unit, amount=Decimal(amount), valid_from=valid_from, **values)


def table(*rows: dict[str, Any], existing: int = 0, **fields: Any) -> dict[str, Any]:
    """What a browser sends for the table of prices."""
    form = {"rows-TOTAL_FORMS": len(rows), "rows-INITIAL_FORMS": existing, "resource": "openai/gpt-4o"}
    form |= {"valid_from_0": "", "valid_from_1": ""} | fields
    for number, row in enumerate(rows):
        values = {"unit": "", "amount": "", "per": 1_000_000, "currency": "usd"} | row
        form |= {f"rows-{number}-{name}": value for name, value in values.items()}
    return form


def set_prices(client: Client, *rows: dict[str, Any], query: str = TABLE, **fields: Any) -> Any:
    return client.post(address("price_table") + query, table(*rows, **fields))


def problems(response: Any) -> str:
    """The errors that a table shows."""
    assert response.status_code == 200
    return str(response.context["form"].errors) + "".join(str(row.errors) for row in response.context["rows"])


def test_prices_of_a_resource_are_set_in_one_table(admin_client: Client) -> None:
    rows = [{"unit": "input_tokens", "amount": "2.50"}, {"unit": "images", "amount": "0.06", "per": 1}, {}]
    response = set_prices(admin_client, *rows)
    assert said(response) == ["2 prices were set."]
    stored = Price.objects.order_by("unit").values_list("unit", "amount", "per", "valid_from")
    assert [*stored] == [("images", Decimal("0.06"), 1, NEXT), ("input_tokens", Decimal("2.5"), 1_000_000, NEXT)]
    assert {*AuditEvent.objects.values_list("actor", "source")} == {("admin", "admin")}


def test_table_shows_current_prices_and_saves_entered_ones(admin_client: Client, time: Any) -> None:
    price("input_tokens", "2.5")
    price("output_tokens", "10")
    time.move_to(NEXT + timedelta(days=1))
    price("input_tokens", "3", datetime(2026, 5, 1, tzinfo=UTC))
    html = admin_client.get(address("price_table") + TABLE).content.decode()
    for words in ("2.5 USD per 1,000,000 input_tokens", "3 USD per 1,000,000 input_tokens", "10 USD per 1,000,000"):
        assert words in html
    rows = [{"unit": "input_tokens", "amount": ""}, {"unit": "tampered", "amount": "12"}, {}]
    set_prices(admin_client, *rows, existing=2, valid_from_0="2026-04-01", valid_from_1="00:00")
    latest = Price.objects.latest("pk")
    assert (latest.unit, latest.amount, latest.valid_from) == ("output_tokens", 12, datetime(2026, 4, 1, tzinfo=UTC))
    assert Price.objects.count() == 4


@pytest.mark.parametrize(
    ("row", "fields", "message"),
    [
        ({"unit": "t", "amount": "a lot"}, {}, "Write a number such as 0.15"),
        ({"unit": "t", "amount": "-1"}, {}, "greater than or equal to 0"),
        ({"unit": "t", "amount": "1", "currency": "gbp"}, {}, "Select a valid choice"),
        ({"unit": "usd", "amount": "1"}, {}, "is a currency"),
        ({"unit": "", "amount": "1"}, {}, "cannot be blank"),
        ({"unit": "t", "amount": "1", "per": "5"}, {}, "Select a valid choice"),
        ({"unit": "t", "amount": "1"}, {"resource": "a*"}, "A pattern needs one of"),
        ({"unit": "t", "amount": "1"}, {"resource": "a/*", "member": "eu"}, "name of its pool"),
        ({"unit": "t", "amount": "1"}, {"valid_from_0": "2026-03-01", "valid_from_1": "10:00"}, "in the past"),
        ({"unit": "t", "amount": "1"}, {"valid_from_0": "2026-03-02", "valid_from_1": "10:30"}, "a full hour"),
        ({}, {}, "Enter a price"),
    ],
)
def test_wrong_entry_is_shown_and_nothing_is_written(
    admin_client: Client, row: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    response = set_prices(admin_client, {"unit": "good", "amount": "1" if row else ""}, row, **fields)
    assert message in problems(response)
    assert not Price.objects.exists()


def test_list_shows_prices_now_and_later_or_the_history(admin_client: Client, time: Any) -> None:
    price("input_tokens", "1")
    time.move_to(NEXT + timedelta(hours=2))
    price("input_tokens", "2", NEXT + timedelta(hours=2))
    price("input_tokens", "3", NEXT + timedelta(days=2))
    price("input_tokens", "7", NEXT + timedelta(days=2), resource="openai/*")
    html = changelist(admin_client, "price").content.decode()
    assert [words in html for words in ("1 USD per", "2 USD per", "3 USD per", "7 USD per")] == [
        False,
        True,
        True,
        True,
    ]
    assert address("price_table") in html
    assert address("price_table") + TABLE in html
    everything = changelist(admin_client, "price", "?history=all").content.decode()
    assert "1 USD per" in everything
    assert "replaced" in everything
    found = changelist(admin_client, "price", "?q=%2A").content.decode()
    assert "7 USD per" in found
    assert "2 USD per" not in found


def test_price_that_has_begun_is_shown_with_its_history_and_stays(admin_client: Client, time: Any) -> None:
    row = price("input_tokens", "1")
    time.move_to(NEXT + timedelta(hours=2))
    page = address("price_change", row.pk)
    html = admin_client.get(page).content.decode()
    assert "1 USD per 1,000,000 input_tokens from 2026-03-01 11:00 (UTC) (applies now)" in html
    assert address("price_table") + TABLE in html
    assert 'name="amount"' not in html
    fields = {"resource": row.resource, "unit": row.unit, "amount": "5", "per": 1, "currency": "usd"}
    assert admin_client.post(page, fields).status_code == 403
    assert admin_client.post(address("price_delete", row.pk), {"post": "yes"}).status_code == 403
    act(admin_client, "delete_selected", row, post="yes")
    assert Price.objects.get().amount == 1


def test_price_of_the_future_is_changed_and_deleted(admin_client: Client) -> None:
    row = price("input_tokens", "1.5", NEXT + timedelta(days=1))
    page = address("price_change", row.pk)
    html = admin_client.get(page).content.decode()
    assert 'value="1.5"' in html
    fields = {"resource": row.resource, "member": "", "unit": row.unit, "amount": "0.000000001", "per": 1000}
    fields |= {"currency": "eur", "valid_from_0": "2026-03-02", "valid_from_1": "11:00"}
    assert admin_client.post(page, fields).status_code == 302
    stored = Price.objects.get()
    assert (stored.amount, stored.per, stored.currency) == (Decimal("0.000000001"), 1000, "eur")
    assert admin_client.post(address("price_delete", row.pk), {"post": "yes"}).status_code == 302
    assert not Price.objects.exists()


@pytest.mark.parametrize(("permission", "may_list", "may_set"), [("view", True, False), ("add", False, True)])
def test_table_needs_the_permission_to_add_prices(
    visitor: Visitor, permission: str, may_list: bool, may_set: bool
) -> None:
    price("input_tokens", "1")
    client = visitor(f"{permission}_price")
    assert (client.get(address("price_changelist")).status_code == 200) is may_list
    assert (set_prices(client, {"unit": "t", "amount": "1"}).status_code == 302) is may_set
