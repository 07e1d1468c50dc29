"""A site with a read replica that lags behind: what is configured counts at once all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from limits_app import CallLimit, InvalidLimit, limits
from limits_app.integrations.endpoints import endpoints
from limits_app.models import Endpoint, Entity, Policy, Resource
from tests.stores.database.databases import ALIAS, migrated, sqlite_in


class Router:
    """Reads from a replica, and writes where it can be written."""

    def db_for_read(self, model: type, **hints: Any) -> str:
        return ALIAS

    def db_for_write(self, model: type, **hints: Any) -> str:
        return "default"

    def allow_relation(self, *objects: object, **hints: Any) -> bool:
        return True


@pytest.fixture(autouse=True)
def replica(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A replica to which nothing ever comes."""
    with (
        django_db_blocker.unblock(),
        migrated(sqlite_in(tmp_path), "limits_app"),
        override_settings(DATABASE_ROUTERS=[Router()]),
    ):
        yield


def test_a_change_counts_on_the_next_acquire() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]
    limits.set_resource_limits("api", [CallLimit(2, 60)], reason="more")
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]
    Policy.objects.using("default").update(enforcement="off")
    assert limits.try_acquire("api")
    assert not Policy.objects.exists()


def test_a_chain_is_read_where_it_was_written() -> None:
    limits.set_entity_limits("tenant:acme", [CallLimit(1, 60)])
    limits.set_entity_limits("user:1", [CallLimit(9, 60)], resource="api")
    primary = Entity.objects.using("default")
    primary.filter(identifier="user:1").update(parent=primary.get(identifier="tenant:acme"), cascade=True)
    assert [bool(limits.try_acquire("api", entity="user:1")) for _ in range(2)] == [True, False]
    assert limits.explain("api", entity="user:1").chain[1].entity == "tenant:acme"


def test_an_endpoint_counts_on_the_next_request() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    endpoints.clear()
    assert endpoints.current().find("/new/", None, "GET") is None
    api = Resource.objects.using("default").get()
    Endpoint.objects.using("default").create(name="new", path="/new/", resource=api)
    assert endpoints.current().find("/new/", None, "GET") is not None
    endpoints.clear()


def test_what_is_wrong_is_found_where_it_would_be_written() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)], weekly_hours="mon")
    with pytest.raises(InvalidLimit, match="overlaps"):
        limits.set_resource_limits("api", [CallLimit(1, 60)], weekly_hours="mon-fri")


def test_what_is_rolled_back_never_counts() -> None:
    limits.set_resource_limits("api", [CallLimit(2, 60)])
    with transaction.atomic():
        limits.set_resource_limits("api", [CallLimit(9, 60)])
        assert limits.try_acquire("api")
        transaction.set_rollback(True)
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]
