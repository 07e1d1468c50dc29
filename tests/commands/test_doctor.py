"""The doctor finds what is wrong, says what to do, changes nothing, and never hangs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from struct import pack
from threading import Event
from typing import Any, Final, Literal

import pytest
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, models
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model, QuerySet
from django.db.utils import NotSupportedError
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone
from pytest_django import DjangoDbBlocker, Settings
from redis import Redis

from limits_app.engine.counting import HOUR_US
from limits_app.integrations.middleware import LimitsMiddleware
from limits_app.models import (
    BackgroundJob,
    BucketKind,
    CodeLimits,
    Endpoint,
    Entity,
    Policy,
    Pool,
    Resource,
    UsagePeriod,
    UsageSnapshot,
    note_scheduled,
)
from limits_app.services.doctor import Severity, diagnose, findings
from limits_app.services.doctor.environment import answers
from limits_app.services.limits_file import apply, read_content
from limits_app.services.limits_file.stored import client_policies, general_objects
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.redis import RedisStore
from tests.commands.running import run
from tests.opened import put_store
from tests.servers.pgbouncer import pgbouncer
from tests.servers.postgres import postgres_server
from tests.servers.redis import redis_server
from tests.stores.database.databases import ALIAS, database
from tests.stores.redis.support import names_of

LIMITED: Final = "limits: [calls=1/s]"


def found(name: str) -> list[str]:
    """What the findings of one id say."""
    return [one.message for one in diagnose() if one.id == f"limits_app.{name}"]


WRONG: Final = [
    (f"policies: [{{limits: [x=1/s]}}, {{resource: a, {LIMITED}}}]", "D010", "policy resource a drops 'x'"),
    (f"policies: [{{enforcement: 'off', {LIMITED}}}]", "D011", "policy system never applies: it is switched off"),
    (f"policies: [{{rollout_percent: 0, {LIMITED}}}]", "D011", "it is rolled out to 0 % of entities"),
    (
        f"policies: [{{valid_from: 2020-01-01T00:00:00Z, valid_until: 2020-02-01T00:00:00Z, {LIMITED}}}]",
        "D011",
        "it ended at 2020-02-01",
    ),
    (f"entities: {{u: {{blocked: true}}}}\npolicies: [{{entity: u, {LIMITED}}}]", "D011", "blocked itself"),
    (f"entities: {{u: {{unlimited: true}}}}\npolicies: [{{entity: u, {LIMITED}}}]", "D011", "unlimited itself"),
    ("pools: {p: {members: {m: {enabled: false}}}}", "D012", "pool p has no enabled member"),
    (
        "pools: {p: {members: {m: {config: {api_key: {env: NOT_SET_ANYWHERE}}}}}}",
        "D013",
        "member 'm' of pool p needs for 'api_key' the environment variable NOT_SET_ANYWHERE",
    ),
    ("resources: {api: {}}", "D014", "resource api has no limits for entities without"),
    ("pools: {p: {members: {m: {}}}}\nresources: {api: {pool: p}}", "D014", "resource api has"),
    ("entities: {u: {cascade: true}}", "D015", "entity u has a row without configuration"),
]


@pytest.mark.parametrize(("text", "name", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_settings_without_effect_are_found(text: str, name: str, said: str) -> None:
    apply(read_content(text))
    [message] = found(name)
    assert said in message


ENDPOINTS: Final = """
resources: {api: {}}
endpoints:
- {name: orders, view_name: "%s", resource: api}
- {name: files, path: "%s", resource: api}
"""


def test_enabled_rules_for_missing_urls_are_found() -> None:
    apply(read_content(ENDPOINTS % ("shop:orders", "/no/such/")))
    assert found("D019") == [
        "endpoint orders is about the view 'shop:orders', which the site does not have",
        "endpoint files is about '/no/such/', where the site has no view",
    ]
    Endpoint.objects.update(enabled=False)
    assert found("D019") == []


@pytest.mark.parametrize(
    ("view", "where", "settings_of_urls"),
    [
        pytest.param("admin:index", "/admin/login/", {}, id="what_the_site_has"),
        pytest.param(f"{__name__}.unnamed", "/unnamed/", {"ROOT_URLCONF": __name__}, id="a_view_without_a_name"),
        pytest.param(f"{__name__}.unnamed", "/<path:rest>", {"ROOT_URLCONF": __name__}, id="a_route"),
        pytest.param("admin:index", "/no/such/*", {}, id="a_wildcard"),
        pytest.param("admin:index", "/en/admin/", {"ROOT_URLCONF": "tests.commands.translated_urls"}, id="languages"),
        pytest.param("nosuch", "/nosuch/", {"ROOT_URLCONF": None}, id="no_urls"),
    ],
)
def test_and_others_are_not(view: str, where: str, settings_of_urls: dict[str, Any], settings: Settings) -> None:
    for name, value in settings_of_urls.items():
        setattr(settings, name, value)
    apply(read_content(ENDPOINTS % (view, where)))
    assert found("D019") == []


class Hosts:
    """A middleware that chooses the URLs for each host."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        self.choose(request)
        return self.get_response(request)

    @staticmethod
    def choose(request: HttpRequest) -> None:
        if request.get_host().startswith("api."):
            request.urlconf = "tests.commands.translated_urls"


def hosts(get_response: Any) -> Any:
    """`Hosts` as a function."""

    def middleware(request: HttpRequest) -> Any:
        request.urlconf = "tests.commands.translated_urls"
        return get_response(request)

    return middleware


@pytest.mark.parametrize(("middleware", "known"), [("Hosts", False), ("hosts", False), ("Unrelated", True)])
def test_views_of_other_urls_that_a_middleware_chooses_are_not_reported(
    middleware: str, known: bool, settings: Settings
) -> None:
    settings.MIDDLEWARE = ["django.middleware.common.CommonMiddleware", f"{__name__}.{middleware}"]
    apply(read_content(ENDPOINTS % ("shop:orders", "/no/such/")))
    assert bool(found("D019")) is known


class Unrelated:
    """A middleware that only reads the URLs of a request."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        assert getattr(request, "urlconf", None) is None or request.urlconf
        return self.get_response(request)


HIDDEN: Final = """
resources: {api: {}}
endpoints:
- {name: first, path: "/x/", resource: api, methods: "%s", stop: %s}
- {name: second, path: "x/", resource: api, methods: "%s", order: 200}
"""


@pytest.mark.parametrize(
    ("first", "second", "is_hidden"),
    [("", "", True), ("", "GET", True), ("GET, POST", "GET", True), ("GET", "", False), ("GET", "POST", False)],
)
def test_endpoints_that_another_one_hides_are_found(first: str, second: str, is_hidden: bool) -> None:
    apply(read_content(HIDDEN % (first, "false", second)))
    assert found("D025") == []
    apply(read_content(HIDDEN % (first, "true", second)))
    message = "endpoint second of order 200 never applies: endpoint first comes first and skips later rules"
    assert found("D025") == [message] * is_hidden


def test_policies_of_entities_that_never_used_anything_are_found() -> None:
    apply(read_content(f"resources: {{api: {{}}}}\npolicies: [{{entity: 'customer acme', {LIMITED}}}]"))
    assert found("D026") == []  # no usage is counted
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    about = {
        "resource": "api",
        "bucket": BucketKind.ENTITY,
        "key": "call_count",
        "period": UsagePeriod.HOUR,
        "start": hour,
    }
    UsageSnapshot.objects.create(entity="tenant:acme", **about)
    assert found("D026") == ["the entity 'customer acme' has a policy and never used anything"]
    UsageSnapshot.objects.create(entity="customer acme", **about)
    assert found("D026") == []


def test_endpoints_without_a_middleware_that_looks_at_them_are_found(settings: Settings) -> None:
    apply(read_content(ENDPOINTS % ("admin:index", "/admin/login/")))
    assert found("D024") == []
    settings.MIDDLEWARE = [f"{__name__}.OwnMiddleware"]
    assert found("D024") == []
    settings.MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "no.such.Middleware"]
    assert found("D024") == ["endpoints have no effect, because MIDDLEWARE does not contain LimitsMiddleware: 2"]
    Endpoint.objects.update(enabled=False)
    assert found("D024") == []


class OwnMiddleware(LimitsMiddleware):
    """What a site makes of ours."""


def unnamed(request: HttpRequest) -> HttpResponse:
    """A view that goes by no name."""
    return HttpResponse()


urlpatterns = [path("unnamed/", unnamed)]


RIGHT: Final = """
pools: {p: {members: {m: {limits: [x=1/s]}, off: {enabled: false}}}}
resources: {served: {pool: p}, open: {}, limited: {}}
entities: {t: {name: Tenant}, u: {parent: v}}
policies:
- {resource: open, effect: unlimited}
- {resource: limited, weekly_hours: mon, limits: [calls=1/s]}
- {resource: limited, valid_from: 2026-01-01T00:00:00Z, valid_until: 2999-01-01T00:00:00Z, limits: [calls=2/s]}
"""


def test_valid_configuration_has_no_findings() -> None:
    apply(read_content(RIGHT))
    assert [one.id for one in diagnose()] == ["limits_app.W044", "limits_app.I001"]


def test_hours_that_cannot_be_read_are_found() -> None:
    Policy.objects.create(weekly_hours="sat", time_zone="UTC")
    QuerySet.update(Policy.objects.all(), weekly_hours="sometimes")
    assert "policy system sometimes never applies" in found("D011")[0]


def test_of_many_findings_of_a_kind_some_are_reported() -> None:
    apply(read_content("resources: {" + ", ".join(f"r{number}: {{}}" for number in range(14)) + "}"))
    messages = found("D014")
    assert (len(messages), messages[-1]) == (11, "more resources have no limits: 4")


def test_policies_of_clients_are_read_in_parts_with_all_policies_of_a_client() -> None:
    entries = [f"{{resource: r{number % 2}, entity: u{number // 2}, {LIMITED}}}" for number in range(9)]
    apply(read_content(f"policies: [{', '.join(entries)}, {{{LIMITED}}}, {{entity: 'user:*', {LIMITED}}}]"))
    parts = [[policy.key[:2] for policy in part] for part in client_policies(DEFAULT_DB_ALIAS, most=3)]
    assert [len(part) for part in parts] == [4, 4, 1]
    assert sorted(key for part in parts for key in part) == sorted((f"r{n % 2}", f"u{n // 2}") for n in range(9))
    general = [entry.key[1] for entry in general_objects(DEFAULT_DB_ALIAS) if entry.section.name == "policies"]
    assert sorted(general) == ["", "user:*"]


def test_findings_are_written_as_they_are_found_with_the_number_of_checked_policies() -> None:
    apply(
        read_content(f"policies: [{', '.join(f'{{entity: u{n}, rollout_percent: 0, {LIMITED}}}' for n in range(14))}]")
    )
    checked: list[int] = []
    unreachable = [one.message for one in findings(5.0, checked.append) if one.id == "limits_app.D011"]
    assert (len(unreachable), unreachable[-1], checked) == (11, "more policies never apply: 4", [14])


def test_a_pool_without_enabled_members_is_reported_where_it_is_used() -> None:
    apply(read_content("pools: {p: {}, q: {}}\nresources: {r: {pool: q}}"))
    severities = [one.severity for one in diagnose() if one.id == "limits_app.D012"]
    assert severities == [Severity.ERROR, Severity.WARNING]


def used(resource: str, ago: timedelta, entity: str = "", member: str = "") -> None:
    start, bucket = timezone.now() - ago, BucketKind.MEMBER if member else BucketKind.ENTITY
    whose = {"resource": resource, "bucket": bucket, "entity": entity or member, "key": "k", "admitted_milli": 1000}
    UsageSnapshot.objects.create(period=UsagePeriod.HOUR, start=start, **whose)


def refused(resource: str, ago: timedelta) -> None:
    """A rejection was counted."""
    UsageSnapshot.objects.create(
        period=UsagePeriod.HOUR, start=timezone.now() - ago, resource=resource, key="k", refused=1
    )


def test_unused_and_unknown_resources_are_reported() -> None:
    apply(read_content("resources: {old: {}, refused: {}, new: {}}\npolicies: [{limits: [k=1/s]}]"))
    used("old", timedelta(days=40))
    refused("refused", timedelta(days=2))
    for number in range(12):
        used(f"strange{number:02}", timedelta(minutes=5))
    used("new", timedelta(minutes=5))
    assert found("D020") == ["old has not been used for 30 days"]
    assert found("D021")[0].endswith("strange09 and 2 more")


def test_resources_with_limits_in_code_need_no_row() -> None:
    apply(read_content("policies: [{limits: [k=1/s]}]"))
    used("reports", timedelta(minutes=5))
    used("misspelled", timedelta(minutes=5))
    CodeLimits.objects.create(resource="reports", limits="calls=5/min")
    assert found("D021") == ["resources without a row and without limits in code are used: misspelled"]


def test_pools_need_no_resource_of_their_name() -> None:
    apply(read_content("pools: {regions: {members: {eu: {limits: [calls=1/s]}}}}\nresources: {r: {pool: regions}}"))
    used("r", timedelta(minutes=5))
    used("regions", timedelta(minutes=5), member="eu")
    assert found("D021") == []


def test_entities_without_a_row_are_counted() -> None:
    apply(read_content("resources: {api: {}}\nentities: {u: {name: U}}\npolicies: [{limits: [k=1/s]}]"))
    used("api", timedelta(minutes=5), "u")
    assert found("D021") + found("D023") == []
    used("api", timedelta(minutes=5), "v")
    assert found("D023")[0].startswith("entities without a row that were active within a day: 1;")


def test_usage_that_is_no_longer_rolled_up_is_found() -> None:
    assert found("D022") == [], "no process has answered a request yet"
    note_scheduled("roll_up", now=timezone.now() - timedelta(hours=4))
    assert found("D022")[0].startswith("usage was last rolled up at ")
    BackgroundJob.objects.update(ran_at=timezone.now() - timedelta(hours=2))
    assert found("D022") == []


def test_empty_rows_of_entities_are_counted() -> None:
    Entity.objects.bulk_create([Entity(identifier=f"user:{number}") for number in range(1_200)])
    child = Entity.objects.create(identifier="child", parent=Entity.objects.get(identifier="user:0"))
    Entity.objects.filter(identifier="user:1").update(billing_from=timezone.now())
    assert found("D015")[-1] == "more entities have rows without configuration: 1188"
    assert not any("user:0 " in message or child.identifier in message for message in found("D015"))


def test_missing_migrations_are_found_and_the_tables_not_read() -> None:
    last = MigrationRecorder.Migration.objects.filter(app="limits_app").order_by("-name")[0]
    MigrationRecorder(connection).record_unapplied("limits_app", last.name)
    try:
        assert found("D002") == [f"migrations of limits_app are not applied: {last.name}"]
    finally:
        MigrationRecorder(connection).record_applied("limits_app", last.name)


def test_a_database_that_is_too_old_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise NotSupportedError("3.9 is needed")

    monkeypatch.setattr(connection, "check_database_version_supported", check)
    assert found("D003") == ["the database 'default' is too old: 3.9 is needed"]


def test_a_database_that_fails_during_the_checks_is_found() -> None:
    def fail(execute: Callable[..., Any], sql: str, *details: Any) -> Any:
        if Policy._meta.db_table in sql:
            raise DatabaseError("gone away")
        return execute(sql, *details)

    with connection.execute_wrapper(fail):
        assert found("D005") == ["the database 'default' failed during the checks: gone away"]


def test_a_database_that_cannot_be_reached_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise DatabaseError("no route")

    monkeypatch.setattr("limits_app.services.doctor.environment._ask_database", failing)
    with connection.execute_wrapper(failing):
        assert [finding.id for finding in diagnose()] == ["limits_app.D001", "limits_app.W044"]


def test_a_store_that_cannot_be_used_is_found(settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "redis", "URL": "redis://127.0.0.1:1/0"}}}
    [first, *_] = diagnose()
    assert (first.id, first.severity) == ("limits_app.D004", Severity.ERROR)
    assert first.message.startswith("the store 'default' cannot be used: StoreUnavailable")


def test_settings_that_cannot_be_read_are_all_that_is_found(settings: Settings) -> None:
    settings.LIMITS = {"STROE": "default"}
    findings = diagnose()
    assert findings
    assert {one.severity for one in findings} == {Severity.ERROR}


@pytest.fixture
def never() -> Iterator[Event]:
    """What nobody sets before the test is over."""
    event = Event()
    yield event
    event.set()


def test_call_that_never_answers_is_abandoned(never: Event) -> None:
    assert answers(never.wait, 0.01) == "it did not answer within 0.01 seconds"


def test_a_store_that_hangs_delays_no_request(never: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(MemoryStore):
        def version(self, namespace: str = "") -> int:
            never.wait()
            return super().version(namespace)

    put_store(monkeypatch, Hanging())
    findings = diagnose(patience_seconds=0.01)
    assert "did not answer" in {one.id: one.message for one in findings}["limits_app.D004"]


def test_nothing_is_changed() -> None:
    apply(read_content(RIGHT))
    models = list(apps.get_app_config("limits_app").get_models())
    before = [[*model._base_manager.values_list()] for model in models]
    diagnose()
    assert [[*model._base_manager.values_list()] for model in models] == before


def test_exit_code_depends_on_the_findings() -> None:
    Resource.objects.create(name="r", pool=Pool.objects.create(name="p"))
    ran = run("doctor --format json --patience 2s")
    assert (ran.code, json.loads(ran.out)[0]["id"]) == (3, "limits_app.D012")
    assert "ERROR limits_app.D012: pool p has no enabled member:" in run("doctor").out


def test_a_site_without_problems_is_reported_as_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limits_app.management.limits.state.findings", lambda *_: [])
    ran = run("doctor --fail-on warning")
    assert (ran.code, ran.out, ran.err) == (0, "", "No problems found.\n0 errors, 0 warnings, 0 info\n")


def past_the_app(rows: models.QuerySet[Any], **values: object) -> None:
    """Write as other programs do, whom nothing stops."""
    models.QuerySet(rows.model, rows.query).update(**values)


def test_entities_that_are_their_own_ancestors_are_found() -> None:
    apply(read_content("entities: {t: {name: T}, u: {parent: t}}"))
    past_the_app(Entity.objects.filter(identifier="t"), parent=Entity.objects.get(identifier="u"))
    assert found("D016") == [f"entity {name} is its own ancestor: choose another parent" for name in "tu"]


def test_dates_that_overlap_are_found() -> None:
    if connection.vendor == "postgresql":
        return  # which lets nobody write them
    dated = f"valid_until: 2999-01-01T00:00:00Z, {LIMITED}"
    first = f"{{valid_from: 2997-01-01T00:00:00Z, valid_until: 2998-01-01T00:00:00Z, {LIMITED}}}"
    apply(read_content(f"policies: [{first}, {{valid_from: 2998-01-01T00:00:00Z, {dated}}}]"))
    past_the_app(
        Policy.objects.filter(valid_until__year=2998), valid_until=Policy.objects.latest("valid_until").valid_until
    )
    [message] = found("D017")
    assert "overlaps with" in message


def test_usage_that_waits_in_redis_is_found(settings: Settings) -> None:
    with redis_server() as server:
        settings.LIMITS = {"STORES": {"default": {"KIND": "redis", "URL": server.url, "PREFIX": "doctor"}}}
        store = registry.store()
        assert isinstance(store, RedisStore)
        assert found("D027") == []
        usage = names_of(store).usage(names_of(store).tags[0], b"")
        with Redis(port=server.port) as client:
            client.rpush(usage, b"c" + pack("<d", store.clock() / HOUR_US - 2))
            assert found("D027") == []
            client.lpush(usage, b"c" + pack("<d", store.clock() / HOUR_US - 4))
            [said] = found("D027")
        assert said.startswith("the store 'default' has usage since ")
        store.close()


@pytest.mark.product
@pytest.mark.alone  # which sessions a pooler gives depends on when its server returns them
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_of_transactions_is_found(
    settings: Settings, django_db_blocker: DjangoDbBlocker, mode: Literal["session", "transaction"]
) -> None:
    with postgres_server() as server, pgbouncer(server, mode) as pooler:
        with django_db_blocker.unblock(), database(server.settings):
            pass  # the tables, without the pooler
        with django_db_blocker.unblock(), database(pooler.settings, bare=True):
            settings.LIMITS = {"STORES": {"default": {"KIND": "database", "USING": ALIAS}}}
            findings = diagnose(patience_seconds=60)
            assert ("limits_app.D029" in {one.id for one in findings}) == (mode == "transaction"), findings
            registry.store().close()  # type: ignore[attr-defined]  # a store on a server has it


class PooledRouter:
    """Puts everything into the database behind the pooler."""

    def db_for_read(self, model: type[Model], **hints: object) -> str:
        return ALIAS

    db_for_write = db_for_read


@pytest.mark.product
@pytest.mark.alone  # which sessions a pooler gives depends on when its server returns them
@pytest.mark.parametrize(
    ("mode", "disabled", "expected"),
    [("transaction", False, True), ("transaction", True, False), ("session", False, False)],
)
def test_cursors_of_the_site_behind_a_pooler_of_transactions_are_found(
    settings: Settings,
    django_db_blocker: DjangoDbBlocker,
    mode: Literal["session", "transaction"],
    disabled: bool,
    expected: bool,
) -> None:
    with postgres_server() as server, pgbouncer(server, mode) as pooler:
        options = pooler.settings | {"DISABLE_SERVER_SIDE_CURSORS": disabled}
        with django_db_blocker.unblock(), database(options, bare=True):
            settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
            settings.DATABASE_ROUTERS = [PooledRouter()]
            findings = diagnose(patience_seconds=60)
            assert ("limits_app.D036" in {finding.id for finding in findings}) == expected, findings
