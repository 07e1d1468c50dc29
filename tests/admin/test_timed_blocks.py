"""Blocks in shadow mode, with dates or in weekly hours act so, whether the admin or the REST API made them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from limits_app import limits
from limits_app.models import Entity, Policy
from tests.admin.browsing import policy_form
from tests.api.site import ROOT
from tests.replacing import resolve_at

pytestmark = pytest.mark.django_db(transaction=True)

NETWORK, INSIDE, OUTSIDE = "ip:198.51.100.0/24", "198.51.100.9", "203.0.113.9"
MONDAY, EVENING, TUESDAY, LATER = (
    datetime(2027, 3, 1, 10, tzinfo=UTC),
    datetime(2027, 3, 1, 20, tzinfo=UTC),
    datetime(2027, 3, 2, 10, tzinfo=UTC),
    datetime(2027, 4, 5, 10, tzinfo=UTC),
)


def by_form(client: Client, fields: dict[str, Any]) -> None:
    entity = Entity.objects.create(identifier=NETWORK)
    data = {"entity": entity.pk, "effect": "blocked", "slice_seconds": 0, **fields}
    for name in ("valid_from", "valid_until"):
        if name in data:
            moment = datetime.fromisoformat(data.pop(name))
            data |= {f"{name}_0": f"{moment:%Y-%m-%d}", f"{name}_1": f"{moment:%H:%M:%S}"}
    done = client.post(reverse("admin:limits_app_policy_add"), policy_form(**data))
    assert done.status_code == 302


def by_api(client: Client, fields: dict[str, Any]) -> None:
    Entity.objects.create(identifier=NETWORK)
    body = {"entity": NETWORK, "effect": "blocked", **fields}
    done = client.post(f"{ROOT}policies/", body, content_type="application/json")
    assert done.status_code == 201


@pytest.mark.parametrize("make", [by_form, by_api])
@pytest.mark.parametrize(
    ("fields", "blocked"),
    [
        ({}, [MONDAY, EVENING, TUESDAY, LATER]),
        ({"weekly_hours": "mon 09:00-17:00", "time_zone": "UTC"}, [MONDAY, LATER]),
        ({"weekly_hours": "mon 09:00-17:00", "time_zone": "America/New_York"}, [EVENING]),
        ({"valid_from": "2027-03-01T12:00:00+00:00", "valid_until": "2027-03-03T00:00:00+00:00"}, [EVENING, TUESDAY]),
        ({"valid_from": "2027-03-02T00:00:00+00:00"}, [TUESDAY, LATER]),
        ({"enforcement": "shadow"}, []),
        ({"enforcement": "off"}, []),
    ],
)
def test_a_block_acts_when_it_applies(
    make: Any, fields: dict[str, Any], blocked: list[datetime], admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(admin_client, fields)
    assert Policy.objects.get().effect == "blocked"
    before = limits.shadow_refusals().get("", {}).get("blocked", 0)
    found = []
    for moment in (MONDAY, EVENING, TUESDAY, LATER):
        resolve_at(monkeypatch, moment.timestamp)
        if Client(REMOTE_ADDR=INSIDE).get("/no-such-page/").status_code == 403:
            found.append(moment)
        assert Client(REMOTE_ADDR=OUTSIDE).get("/no-such-page/").status_code == 404
    assert found == blocked
    counted = limits.shadow_refusals().get("", {}).get("blocked", 0) - before
    assert counted == (4 if fields.get("enforcement") == "shadow" else 0)
