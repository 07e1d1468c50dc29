"""Checks that ask a real Redis."""

from __future__ import annotations

import pytest
from pytest_django import Settings
from redis import Redis

from limits_app import checks
from tests.servers.ports import free_ports
from tests.servers.redis import redis_server

pytestmark = pytest.mark.django_db


def found(settings: Settings, url: str) -> list[str | None]:
    """What is reported of a store."""
    settings.LIMITS = {"STORES": {"default": {"KIND": "redis", "URL": url}}}
    return [message.id for message in checks.check_stores(["default"])]


def test_a_redis_that_evicts_keys_is_reported(settings: Settings) -> None:
    with redis_server() as server:
        assert found(settings, server.url) == []
        with Redis(port=server.port) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        assert found(settings, server.url) == ["limits_app.W050"]


def test_a_redis_that_says_nothing_about_itself_is_fine(settings: Settings) -> None:
    with redis_server() as server:
        with Redis(port=server.port) as client:
            client.acl_setuser("default", enabled=True, nopass=True, commands=["-info"])
        assert found(settings, server.url) == []


def test_a_redis_that_is_not_there_is_reported_as_that(settings: Settings) -> None:
    [port] = free_ports()
    assert found(settings, f"redis://127.0.0.1:{port}/0") == ["limits_app.W047"]
