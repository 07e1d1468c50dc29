"""Prices in the REST API: exact amounts, the next full hour, and prices that have begun."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from rest_framework.test import APIClient

from limits_app.models import AuditEvent, Price
from tests.api.site import ROOT, as_user, person

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 10, 25, tzinfo=UTC)
PRICES = f"{ROOT}prices/"
BODY: dict[str, Any] = {"resource": "openai/gpt-4o", "unit": "input_tokens", "amount": "0.15", "currency": "usd"}


@pytest.fixture(autouse=True)
def time() -> Any:
    with time_machine.travel(NOW, tick=False) as traveller:
        yield traveller


@pytest.fixture
def client() -> APIClient:
    return as_user(person("root", is_superuser=True))


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0.15", "0.15"),
        (0.15, "0.15"),
        (3, "3"),
        (1e-9, "0.000000001"),
        ("999999.999999999", "999999.999999999"),
        ("2.500", "2.5"),
    ],
)
def test_amount_is_kept_exactly(client: APIClient, amount: Any, text: str) -> None:
    made = client.post(PRICES, BODY | {"amount": amount}, format="json")
    assert made.status_code == 201
    body = made.json()
    assert body == BODY | {
        "id": body["id"],
        "amount": text,
        "member": "",
        "per": 1_000_000,
        "valid_from": "2026-03-01T11:00:00Z",
    }
    again = client.put(f"{PRICES}{body['id']}/", body, format="json", headers={"If-Match": made.headers["ETag"]})
    assert json.loads(again.content) == body


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"amount": "a lot"}, "Write a number such as 0.15"),
        ({"amount": True}, "Write a number such as 0.15"),
        ({"amount": "1e3"}, "Write a number such as 0.15"),
        ({"amount": "-1"}, "greater than or equal to 0"),
        ({"valid_from": "2026-03-01T10:00:00Z"}, "choose 2026-03-01 11:00"),
        ({"valid_from": "2026-03-01T11:30:00Z"}, "a full hour"),
        ({"currency": "gbp"}, "LIMITS['CURRENCIES']"),
    ],
)
def test_invalid_price_is_a_problem(client: APIClient, fields: dict[str, Any], message: str) -> None:
    response = client.post(PRICES, BODY | fields, format="json")
    assert response.status_code == 400
    assert message in response.content.decode()
    assert not Price.objects.exists()


def test_price_that_has_begun_stays(client: APIClient, time: Any) -> None:
    made = client.post(PRICES, BODY, format="json").json()
    address = f"{PRICES}{made['id']}/"
    time.shift(timedelta(hours=1))
    changed = client.patch(address, {"amount": "1"}, format="json", headers={"If-Match": "*"})
    deleted = client.delete(address, headers={"If-Match": "*"})
    assert (changed.status_code, deleted.status_code) == (400, 409)
    assert "add a new price" in changed.content.decode()
    assert "add a new price" in deleted.content.decode()
    assert AuditEvent.objects.count() == 1


def test_history_of_a_unit_is_a_filter(client: APIClient) -> None:
    for hour in range(11, 15):
        client.post(PRICES, BODY | {"amount": str(hour), "valid_from": f"2026-03-01T{hour}:00:00Z"}, format="json")
    client.post(PRICES, BODY | {"unit": "images"}, format="json")
    query = {"unit": "input_tokens", "since": "2026-03-01T12:00:00Z", "ordering": "-valid_from"}
    listed = client.get(PRICES, query).json()["results"]
    assert [row["amount"] for row in listed] == ["14", "13", "12"]
