"""A site to ask: any views at any addresses, synchronous or asynchronous, with limits in memory and a clock to move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client
from django.urls import path as address
from pytest_django import Settings
from rest_framework import throttling

from limits_app.integrations.drf import rates
from limits_app.policies import resolver
from limits_app.services.url_matching import endpoints
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.integrations.rest import RATES
from tests.integrations.site import Ask, View, who
from tests.opened import VERBS, fail_at, put_store
from tests.servers import shared
from tests.servers.redis import RedisServer
from tests.stores.redis.support import store_on

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "limits_app.integrations.middleware.LimitsMiddleware",
]


@pytest.fixture(autouse=True)
def clock(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    """The time of a memory store that nobody has used yet."""
    clock = FakeClock()
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}, "ENTITY_OF_REQUEST": who}
    settings.MIDDLEWARE = MIDDLEWARE
    put_store(monkeypatch, MemoryStore(clock=clock))
    resolver.clear()
    endpoints.clear()
    yield clock
    resolver.clear()
    endpoints.clear()


@pytest.fixture
def serve(settings: Settings) -> Callable[..., None]:
    """Put views at addresses: `serve({"x/": view})`; each is named like its address, without slashes."""

    def put(views: dict[str, View]) -> None:
        settings.ROOT_URLCONF = tuple(
            address(where, view, name=where.strip("/").replace("/", "-") or "index") for where, view in views.items()
        )

    return put


@pytest.fixture(params=["wsgi", "asgi"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Send requests through the synchronous and through the asynchronous handler."""
    sync_client, async_client = Client(raise_request_exception=False), AsyncClient(raise_request_exception=False)

    def send(path: str = "/", method: str = "GET", who: str = "ann", **headers: str) -> HttpResponseBase:
        named = {"X-Who": who} | {name.replace("_", "-"): value for name, value in headers.items()}
        if request.param == "wsgi":
            return sync_client.generic(method, path, headers=named)
        return async_to_sync(_asked)(async_client, method, path, named)

    return send


@pytest.fixture
def send(ask: Ask, default_entities: None) -> Callable[..., Any]:
    """Send requests of a person, through the synchronous and through the asynchronous handler."""
    return lambda person=None: ask(X_Person=str(person)) if person else ask()


@pytest.fixture
def default_entities(settings: Settings, clock: FakeClock) -> None:
    """Entities as they are by default."""
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": "limits_app.integrations.identity.entity_of_request"}


@pytest.fixture
def take_down(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a store unavailable: the default one, or that of an alias."""

    def go(alias: str | None = None) -> None:
        fail_at(monkeypatch, *VERBS, alias=alias, reason="connection refused")

    return go


@pytest.fixture(scope="session")
def server_of_limits() -> RedisServer:
    return shared.redis()


@pytest.fixture
def on_redis(server_of_limits: RedisServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits are in a Redis, under keys that nobody has used yet."""
    store = store_on(server_of_limits)
    put_store(monkeypatch, store)
    yield
    store.close()


@pytest.fixture(params=[throttling, rates], ids=["theirs", "ours"])
def module(
    request: pytest.FixtureRequest, settings: Settings, default_entities: None, clock: FakeClock, monkeypatch: Any
) -> ModuleType:
    """The throttles of the REST framework and ours, on the same clock."""
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": RATES}
    monkeypatch.setattr(throttling.SimpleRateThrottle, "timer", staticmethod(lambda: clock() / 1e6 + 1e9))
    monkeypatch.setattr(throttling.SimpleRateThrottle, "THROTTLE_RATES", RATES)
    cache.clear()
    module: ModuleType = request.param
    return module


async def _asked(client: AsyncClient, method: str, path: str, headers: dict[str, str]) -> HttpResponseBase:
    response: HttpResponseBase = await client.generic(method, path, headers=headers)
    return response
