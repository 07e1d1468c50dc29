"""Checks of hazards: what is allowed, and dangerous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.core.checks import INFO, run_checks
from django.core.checks.registry import registry as django_registry
from django.db import OperationalError, ProgrammingError, connection, connections
from django.http import HttpResponse
from django.urls import include, path, re_path
from django.views import View
from django.views.decorators.http import require_http_methods
from pytest_django import Settings
from redis import Redis
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.viewsets import ViewSet

from limits_app import CallLimit, checks, limits
from limits_app.acquiring.store import Store
from limits_app.audit import protect
from limits_app.engine.errors import CannotProtect, StoreUnavailable
from limits_app.integrations.login import LoginLimitBackend
from limits_app.models import Endpoint
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.opened import open_none, put_store
from tests.replacing import temporary_files_in, without_package
from tests.servers.machine import free_ports
from tests.servers.redis import redis_server
from tests.services.failing import FailingStore

MEMORY = {"default": {"KIND": "memory"}}
REDIS = "django_redis.cache.RedisCache"
POSTGRES = "django.db.backends.postgresql"
LIMITS = "limits_app.integrations.middleware.LimitsMiddleware"
USERS = "django.contrib.auth.middleware.AuthenticationMiddleware"
CORS = "corsheaders.middleware.CorsMiddleware"
LOGIN = "limits_app.integrations.login.LoginLimitBackend"
MODEL = "django.contrib.auth.backends.ModelBackend"


class OwnLogin(LoginLimitBackend):
    """The backend of a site with other limits."""


def ids(messages: list[Any]) -> list[str]:
    """The identifiers of messages, without what they have in common; each has a hint."""
    assert all(message.hint for message in messages)
    return [message.id.removeprefix("limits_app.") for message in messages]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, []),
        ({"ENABLED": False}, ["W059"]),
        ({"ON_UNAVAILABLE": "local"}, ["W040"]),
        ({"ON_UNAVAILABLE": "local", "EXPECTED_PROCESSES": 8}, []),
        ({"ON_UNAVAILABLE": "allow"}, []),
        ({"STORES": {"default": {"KIND": "process"}, "other": {"KIND": "process"}}}, ["W041"]),
        ({"STORES": {"default": {"KIND": "memory"}, "other": {"KIND": "process"}}}, []),
        ({"STORES": {"default": {"KIND": "process"}, "other": {"KIND": "memory"}}}, []),
        ({"STORES": {"default": {"KIND": "process"}, "other": {"KIND": "process", "STATE_DIR": "/x"}}}, []),
        ({"ON_UNAVAILABLE": "local", "STORE": "missing"}, []),
        ({"TRUSTED_PROXIES": ["8.0.0.0/8"]}, ["W051"]),
        ({"TRUSTED_PROXIES": ["2000::/3"]}, ["W051"]),
        ({"TRUSTED_PROXIES": ["104.16.0.0/13", "2400:cb00::/32", "10.0.0.0/8", "fd00::/8", "unix"]}, []),
        ({"STORES": {"default": {"KIND": "database", "USING": "nowhere"}}}, ["E055"]),
        ({"EXPECTED_PROCESSES": 100_000}, ["W058"]),
        ({"EXPECTED_PROCESSES": 100_000, "STORES": {"default": {"KIND": "memory"}}}, []),
        ({"STORES": {"default": {"KIND": "redis", "CACHE": "nowhere"}}}, ["E056"]),
        ({"STORES": {"default": {"KIND": "redis"}}}, ["E056"]),
        ({"STORES": {"default": {"KIND": "redis", "URL": "redis://127.0.0.1/0"}}}, []),
    ],
)
def test_hazards_in_the_settings_are_reported(settings: Settings, given: dict[str, Any], found: list[str]) -> None:
    settings.LIMITS = given
    assert ids(checks.check_hazards()) == found


def test_a_process_store_on_kubernetes_is_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LIMITS = {}
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    [found] = checks.check_hazards()
    assert found.id == "limits_app.W058"
    assert "one machine or container, but the site runs on Kubernetes" in found.msg


@pytest.mark.parametrize("given", [{"KIND": "database", "USING": "nowhere"}, {"KIND": "redis", "CACHE": "nowhere"}])
def test_a_store_that_cannot_be_opened_is_not_asked(settings: Settings, given: dict[str, Any]) -> None:
    settings.LIMITS = {"STORES": {"default": given}}
    assert checks.check_stores(["default"]) == []


@pytest.mark.django_db
@pytest.mark.parametrize("databases", [None, ["default"]])
def test_a_log_that_sql_can_change_is_reported_before_deployment(databases: list[str] | None) -> None:
    def reported() -> dict[str, int]:
        return {one.id or "": one.level for one in run_checks(include_deployment_checks=True, databases=databases)}

    assert reported()["limits_app.I001"] == INFO
    assert "limits_app.I001" not in {one.id for one in run_checks(databases=databases)}
    protect()
    assert "limits_app.I001" not in reported()


@pytest.mark.django_db
def test_a_database_that_has_no_triggers_for_the_log_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "vendor", "oracle")
    with pytest.raises(CannotProtect, match="on PostgreSQL, SQLite, MySQL and MariaDB; the database 'default' is"):
        protect()
    assert checks.check_audit_log() == []


@pytest.mark.django_db
def test_a_log_that_cannot_be_read_is_not_reported() -> None:
    def unavailable(*_: object) -> None:
        raise OperationalError("no database yet")

    with connection.execute_wrapper(unavailable):
        assert checks.check_audit_log() == []


def test_missing_packages(settings: Settings, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> None:
    for name in ("redis", "limits_app.stores.redis"):
        without_package(monkeypatch, name)
    open_none(monkeypatch)  # a store that was opened before needs none
    settings.LIMITS = {"STORES": {"default": {"KIND": "redis", "URL": "redis://127.0.0.1:1/0"}}}
    assert ids(checks.check_hazards()) == ["E058"]
    assert checks.check_stores(["default"]) == []
    with pytest.raises(StoreUnavailable, match="pip install"):
        registry.store()


@pytest.mark.parametrize("cache", [None, "counted"])
@pytest.mark.parametrize("backend", ["absent_package.RedisCache", "absent_package.caches.RedisCache"])
def test_a_cache_whose_package_is_missing_is_reported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, backend: str, cache: str | None, transactional_db: None
) -> None:
    open_none(monkeypatch)
    settings.CACHES = {cache or "default": {"BACKEND": backend, "LOCATION": "redis://127.0.0.1:1/0"}}
    settings.LIMITS = {"STORES": {"default": {"KIND": "redis"} | ({"CACHE": cache} if cache else {})}}
    assert ids(checks.check_hazards()) == ["E058"]
    assert "'absent_package'" in checks.check_hazards()[0].msg
    assert checks.check_stores(["default"]) == []
    with pytest.raises(StoreUnavailable, match=f"cache '{cache or 'default'}' cannot be imported"):
        registry.store().version()


@pytest.mark.parametrize("backend", [REDIS, "django.core.cache.backends.redis.RedisCache"])
def test_a_redis_cache_is_accepted_as_a_store(settings: Settings, backend: str) -> None:
    settings.CACHES = {"counted": {"BACKEND": backend, "LOCATION": "redis://127.0.0.1/0"}, **settings.CACHES}
    settings.LIMITS = {"STORES": {"default": {"KIND": "redis", "CACHE": "counted"}}}
    assert checks.check_hazards() == []


@pytest.mark.parametrize(
    ("cache", "everywhere", "found"),
    [
        ({"BACKEND": REDIS, "OPTIONS": {"IGNORE_EXCEPTIONS": True}}, False, ["W042"]),
        ({"BACKEND": REDIS}, True, ["W042"]),
        ({"BACKEND": REDIS, "OPTIONS": {"IGNORE_EXCEPTIONS": False}}, True, []),
        ({"BACKEND": REDIS}, False, []),
        ({"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, True, []),
    ],
)
def test_a_cache_hides_outages(settings: Settings, cache: dict[str, Any], everywhere: bool, found: list[str]) -> None:
    settings.CACHES = {"default": cache}
    settings.DJANGO_REDIS_IGNORE_EXCEPTIONS = everywhere
    assert ids(checks.check_hazards()) == found


@pytest.mark.parametrize(("has_locks", "found"), [(False, ["W057"]), (True, [])])
def test_a_process_store_without_file_locks(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, has_locks: bool, found: list[str]
) -> None:
    for package in [] if has_locks else ["fcntl", "msvcrt"]:
        without_package(monkeypatch, package)
    settings.LIMITS = {"STORES": {"default": {"KIND": "process"}, "other": {"KIND": "memory"}}}
    assert ids(checks.check_hazards()) == found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"NAME": ":memory:"}, ["W049"]),
        ({"ENGINE": POSTGRES, "DISABLE_SERVER_SIDE_CURSORS": True}, ["W052"]),
        ({"ENGINE": POSTGRES, "DISABLE_SERVER_SIDE_CURSORS": False}, []),
        ({"ATOMIC_REQUESTS": True}, ["W056"]),
        ({"OPTIONS": {"transaction_mode": "immediate"}}, ["W056"]),
        ({"OPTIONS": {"transaction_mode": "EXCLUSIVE"}}, ["W056"]),
        ({"OPTIONS": {"transaction_mode": "DEFERRED"}}, []),
        ({"ENGINE": POSTGRES, "ATOMIC_REQUESTS": True}, []),
    ],
)
def test_a_database_that_does_not_suit_a_store_is_reported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], found: list[str]
) -> None:
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/limits.sqlite3"}
    there = connections.configure_settings({"default": {}, "there": {**file, **changes}})["there"]
    monkeypatch.setitem(connections.settings, "there", there)
    settings.LIMITS = {"STORES": {"default": {"KIND": "database", "USING": "there"}}}
    assert ids(checks.check_hazards()) == found
    assert ids(checks.check_deployment()) == ([] if "ENGINE" in changes else ["W053"])
    del connections["there"]


@pytest.mark.parametrize(
    ("order", "found"), [([LIMITS, USERS], ["W043"]), ([USERS, LIMITS], []), ([LIMITS], []), ([USERS], [])]
)
def test_a_middleware_before_authentication_is_reported(settings: Settings, order: list[str], found: list[str]) -> None:
    settings.MIDDLEWARE = order
    assert ids(checks.check_hazards()) == found


@pytest.mark.parametrize(("order", "found"), [([LIMITS, CORS], ["W070"]), ([CORS, LIMITS], []), ([CORS], [])])
def test_middleware_that_sees_preflights_first_is_reported(
    settings: Settings, order: list[str], found: list[str]
) -> None:
    settings.MIDDLEWARE = order
    assert ids(checks.check_hazards()) == found


@pytest.mark.django_db(transaction=True)
def test_rules_for_some_methods_of_a_view_are_reported(settings: Settings) -> None:
    settings.LIMITS = {"STORES": MEMORY}
    settings.ROOT_URLCONF = (
        path("function/", page),
        path("post/", require_http_methods(["GET", "POST"])(page)),
        path("class/<int:pk>/", type("Page", (View,), {"get": page, "put": page}).as_view(), name="class"),
    )
    for name, where in [("function", "/function/"), ("post", "/post/"), ("class", "/class/*")]:
        Endpoint.objects.create(name=name, path=where, limits="5/min", methods="GET")
    Endpoint.objects.create(name="by name", view_name="class", limits="5/min", methods="GET,PUT")
    Endpoint.objects.create(name="off", path="/function/", limits="5/min", methods="GET", enabled=False)
    assert [(one.id, one.msg) for one in checks.check_stores(["default"])] == [
        ("limits_app.W071", "the URL rule 'function' counts GET only, but a view of it answers every method"),
        ("limits_app.I002", "the URL rule 'post' counts GET only, but its views answer POST too"),
        ("limits_app.I002", "the URL rule 'class' counts GET only, but its views answer PUT too"),
    ]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("where", "others"),
    [
        ("/orders/", "/orders.<format>"),  # which the router of the REST framework adds
        ("/orders/5/", "/orders/<pk>.<format>"),
        ("/reports", "/reports/"),
        ("/reports/", "/reports"),
        ("/twice/", "/again/<int:year>/"),
        ("/again/<int:year>/", "/twice/"),
        ("/twi*", ""),
        ("/again/*", "/twice/"),
        ("/in/a/", "/<language>/in/a/"),
        ("/once/", ""),
        ("/once", ""),
        ("/nowhere/", ""),
    ],
)
def test_rules_for_one_of_the_urls_of_a_view_are_reported(settings: Settings, where: str, others: str) -> None:
    settings.LIMITS, settings.USE_I18N = {"STORES": MEMORY}, True
    router = DefaultRouter()
    router.register("orders", Orders, basename="order")
    settings.ROOT_URLCONF = (
        *router.urls,
        re_path("^reports/?$", page),
        path("twice/", twice),
        path("again/<int:year>/", twice),
        path("once/", lambda request: HttpResponse("once")),
        *i18n_patterns(path("in/", include([path("a/", in_languages)])), prefix_default_language=False),
    )
    Endpoint.objects.create(name="rule", path=where, limits="5/min")
    Endpoint.objects.create(name="off", path=where, limits="5/min", enabled=False)
    reported = [message.msg for message in checks.check_stores(["default"])]
    assert reported == ([f"the URL rule 'rule' counts {where} only, but its views answer {others} too"] * bool(others))


@pytest.mark.django_db(transaction=True)
def test_a_rule_for_a_view_by_name_counts_all_its_urls(settings: Settings) -> None:
    settings.LIMITS = {"STORES": MEMORY}
    router = DefaultRouter()
    router.register("orders", Orders, basename="order")
    settings.ROOT_URLCONF = (*router.urls,)
    Endpoint.objects.create(name="rule", view_name="order-list", limits="5/min")
    assert checks.check_stores(["default"]) == []


class Orders(ViewSet):
    """Views with several URLs."""

    def list(self, request: Any, **_: Any) -> Response:
        """All."""
        return Response("orders")

    def retrieve(self, request: Any, **_: Any) -> Response:
        """One."""
        return Response("order")


def twice(request: object, year: int = 0) -> HttpResponse:
    """Answer at two URLs."""
    return HttpResponse("twice")


def in_languages(request: object) -> HttpResponse:
    """Answer in each language."""
    return HttpResponse("in languages")


def page(*args: object) -> HttpResponse:
    """Answer."""
    return HttpResponse("page")


@pytest.mark.parametrize(
    ("backends", "middleware", "found"),
    [
        ([LOGIN, MODEL], [LIMITS], []),
        ([f"{__name__}.OwnLogin", MODEL], [LIMITS], []),
        ([MODEL, LOGIN], [LIMITS], ["W076"]),
        ([MODEL, f"{__name__}.OwnLogin"], [LIMITS], ["W076"]),
        ([LOGIN], [], ["W077"]),
        (["nowhere.Backend", LOGIN], [], ["W076", "W077"]),
        ([MODEL], [], []),
    ],
)
def test_weak_log_in_limits_are_reported(
    settings: Settings, backends: list[str], middleware: list[str], found: list[str]
) -> None:
    settings.AUTHENTICATION_BACKENDS, settings.MIDDLEWARE = backends, middleware
    assert ids(checks.check_hazards()) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"STORES": MEMORY}, ["W044"]),
        ({"STORES": {"default": {"KIND": "process"}, "other": {"KIND": "memory"}}, "STATE_DIR": "/x"}, ["W044"]),
        ({}, ["W045"]),
        ({"STORES": {"default": {"KIND": "memory"}, "other": {"KIND": "process"}}}, ["W044", "W045"]),
        ({"STATE_DIR": "/var/lib/limits"}, []),
        ({"STATE_DIR": "/x", "STORES": {"default": {"KIND": "process"}, "other": {"KIND": "database"}}}, ["W053"]),
    ],
)
def test_hazards_are_reported_in_deployment_checks(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], found: list[str]
) -> None:
    settings.LIMITS = given
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
    assert ids(checks.check_deployment()) == found
    reported = run_checks(tags=["limits_app"], include_deployment_checks=True, databases=[])
    assert [report.id for report in reported] == [f"limits_app.{name}" for name in found]
    assert run_checks(tags=["limits_app"], databases=[]) == []


def test_temporary_directory_of_any_setting_is_reported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary_files_in(monkeypatch, tmp_path / "temporary")
    for default, given, found in (("state", {}, []), ("temporary", {}, ["W045"]), ("state", "temporary", ["W045"])):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / default))
        settings.LIMITS = given and {"STATE_DIR": str(tmp_path / str(given) / "shop")}
        assert [name for name in ids(checks.check_deployment()) if name == "W045"] == found


def test_nothing_is_asked_unless_databases_may_be(settings: Settings) -> None:
    settings.LIMITS = {"STATE_DIR": "/nowhere/that/could/be"}
    assert checks.check_stores() == []
    assert checks.check_stores in django_registry.get_checks()


@pytest.mark.django_db(transaction=True)
def test_a_local_policy_needs_the_number_of_processes(settings: Settings) -> None:
    settings.LIMITS = {"STORES": MEMORY}
    limits.set_resource_limits("api", [CallLimit(1, 60)], on_unavailable="local")
    limits.set_resource_limits("web", [CallLimit(1, 60)])
    [report] = checks.check_stores(["default"])
    assert ids([report]) == ["W046"]
    assert "policy of resource api is 'local'" in report.msg
    settings.LIMITS = {"STORES": MEMORY, "EXPECTED_PROCESSES": 2}
    assert checks.check_stores(["default"]) == []


@pytest.mark.django_db(transaction=True)
def test_tables_that_cannot_be_read_are_one_message(settings: Settings) -> None:
    settings.LIMITS = {"STORES": MEMORY}

    def no_table(*args: object) -> None:
        raise ProgrammingError("no such table")

    with connection.execute_wrapper(no_table):
        assert ids(checks.check_stores(["default"])) == ["W073"]


@pytest.mark.django_db
def test_stores_that_work_and_agree_about_the_time_are_fine(settings: Settings, tmp_path: Path) -> None:
    settings.LIMITS = {"STATE_DIR": str(tmp_path), "MAP_MEGABYTES": 1}
    assert checks.check_stores(["default"]) == []


@pytest.mark.django_db
def test_an_unusable_store_is_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.LIMITS = {"STATE_DIR": str(tmp_path)}
    store = FailingStore(MemoryStore())
    store.down = True
    _open(store, monkeypatch)
    [report] = checks.check_stores(["default"])
    assert ids([report]) == ["W047"]
    assert "cannot be used: connection refused" in report.msg


@pytest.mark.django_db
def test_clocks_that_differ_are_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.LIMITS = {"STATE_DIR": str(tmp_path)}
    _open(MemoryStore(clock=FakeClock()), monkeypatch)
    [report] = checks.check_stores(["default"])
    assert ids([report]) == ["W048"]
    assert "differ by -" in report.msg


def _open(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put_store(monkeypatch, store)


def reported_of(settings: Settings, url: str) -> list[str | None]:
    """What is reported of a store."""
    settings.LIMITS = {"STORES": {"default": {"KIND": "redis", "URL": url}}}
    return [message.id for message in checks.check_stores(["default"])]


@pytest.mark.django_db
def test_a_redis_that_evicts_keys_is_reported_if_it_allows_info(settings: Settings) -> None:
    with redis_server() as server, Redis(port=server.port) as client:
        assert reported_of(settings, server.url) == []
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert reported_of(settings, server.url) == ["limits_app.W050"]
        client.acl_setuser("default", enabled=True, nopass=True, commands=["-info"])
        assert reported_of(settings, server.url) == []


@pytest.mark.django_db
def test_unreachable_redis_is_reported_as_unreachable(settings: Settings) -> None:
    [port] = free_ports()
    assert reported_of(settings, f"redis://127.0.0.1:{port}/0") == ["limits_app.W047"]


@pytest.mark.django_db
@pytest.mark.parametrize("options", ["0?tls=1", "0?protocol=9", "0?ssl_ca_certs=/ca.crt", "?db=first"])
def test_redis_options_that_do_not_exist_are_an_outage(settings: Settings, options: str) -> None:
    assert reported_of(settings, f"redis://127.0.0.1:6379/{options}") == ["limits_app.W047"]
