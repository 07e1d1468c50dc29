"""Blocks for a time of a client whose identifier is erased, and of its combinations."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client

from limits_app import limits, services
from limits_app.models import Denial, UsageSnapshot
from limits_app.services.combinations import combined_name
from tests.integrations.site import endpoint

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("parts", ["", "query:q"])
def test_an_erased_client_begins_again_without_its_blocks(serve: Any, parts: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.GET["q"])

    serve({"x/": view})
    rule = {"limits": "1/h", "block_for": "2h", "combined_with": parts}
    endpoint(None, "/x/", counted_by="ip", **rule)

    def statuses() -> list[int]:
        return [Client().get(f"/x/?q={value}", REMOTE_ADDR="192.0.2.1").status_code for value in "aa"]

    assert statuses() == [200, 429]
    assert statuses() == [429, 429]
    services.erase("ip:192.0.2.1")
    assert statuses() == [200, 429]
    limits.roll_up()
    services.erase("ip:192.0.2.1")
    for model in (UsageSnapshot, Denial):
        assert not model.objects.filter(entity__contains="192.0.2.1").exists()


@pytest.mark.parametrize("name", ["acme", "tenant:acme", "ip:192.0.2.1"])
def test_an_erasure_finds_a_client_in_its_combinations(name: str) -> None:
    services.set_resource_limits("mail", "1/h")
    others = [f"{name}x", f"x{name}", f"{name}:phone"]
    for client in (name, *others):
        combination = combined_name(client, [b"a"])
        assert [limits.try_acquire("mail", entity=combination).admitted for _ in range(2)] == [True, False]
    limits.roll_up()
    services.erase(name)
    for model in (UsageSnapshot, Denial):
        ends = {row.entity.partition(" ")[2] for row in model.objects.filter(resource="mail")}
        assert name not in ends
        assert ends.issuperset(others)
