"""Clients are found by the same rule in every database."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from limits_app import limits
from limits_app.models import Entity
from limits_app.services.clients import find_clients
from tests.stores.database.databases import ALIAS

pytestmark = [pytest.mark.slow, pytest.mark.release]


@pytest.fixture
def site(site_database: str) -> None:
    call_command("migrate", "auth", database=ALIAS, verbosity=0)  # names of users are searched too


def test_clients_are_found_in_any_case_in_every_database(site: None) -> None:
    limits.set_entity("Key:a_b", name="50% Off")
    limits.set_entity("key:axb", name="Acme")
    limits.set_entity("key:A_B")
    assert Entity.objects.using(ALIAS).count() == 3

    def identifiers(text: str) -> list[str]:
        return [client.identifier for client in find_clients(text)]

    assert identifiers("key:A_B")[0] == "key:A_B"
    assert {*identifiers("KEY:a_b")} == {"Key:a_b", "key:A_B"}, "the underscore is no wildcard"
    assert identifiers("50% o") == ["Key:a_b"]
    assert identifiers("aCM") == ["key:axb"]
    assert identifiers("%") == []
