"""Decisions over HTTP: other programs acquire limits, and settle, extend, renew and cancel by a token in the body."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.core.signing import Signer
from django.db import connection
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app import services
from limits_app.engine import member_key
from limits_app.engine.limits import CallLimit, LimitDefinition, QuotaLimit, RateLimit, ResourceLimit
from limits_app.models import CodeLimits, Limit, Pool, PoolMember, Price, Resource, UsageSnapshot
from limits_app.policies import resolver
from limits_app.services.tokens import LONGEST_TOKEN
from limits_app.testing import FakeClock
from tests.api.site import ROOT, as_user, person
from tests.opened import fail_at

pytestmark = pytest.mark.django_db(transaction=True)

TOKENS = RateLimit("tokens", 1000, 3600)
SLOTS = ResourceLimit("slots", 2)
LEASE_ENDED = "urn:problem-type:limits-app:lease-ended"


@pytest.fixture
def program() -> APIClient:
    """The client of a program that may use limits."""
    return as_user(person("program", "use_limits"))


def limit(*limits: LimitDefinition, resource: str = "llm") -> None:
    services.set_resource_limits(resource, limits)


def post(client: APIClient, verb: str, **fields: Any) -> Any:
    return client.post(f"{ROOT}{verb}/", fields, format="json")


def acquired(client: APIClient, **fields: Any) -> Any:
    response = post(client, "acquire", **{"resource": "llm", "entity": "user:7", **fields})
    assert response.status_code == 200, response.data
    return response.data


def state(key: str = "tokens", entity: str = "user:7") -> Any:
    return services.limit_set("llm", entity).get_stats()[key]


def test_program_acquires_and_settles_its_usage(program: APIClient) -> None:
    limit(TOKENS, SLOTS)
    data = acquired(program, amounts={"tokens": 500}, lease_seconds=30)
    assert (data["amounts"], data["degraded"], data["lease_seconds"]) == ({"slots": 1, "tokens": 500}, False, 30)
    assert {status["key"]: status["remaining"] for status in data["limits"]} == {"slots": 1, "tokens": 500}
    assert (state()["used"], state("slots")["used"]) == (500, 1)
    settled = post(program, "settle", token=data["token"], usage={"tokens": 120})
    assert (settled.status_code, settled.data) == (200, {"done": True})
    assert (state()["used"], state("slots")["used"]) == (120, 0)


def test_acquiring_again_reads_no_limits_from_the_database(program: APIClient, django_assert_num_queries: Any) -> None:
    limit(TOKENS)
    for verb in ("acquire", "acquire"):
        post(program, verb, resource="llm", entity="user:7", amounts={"tokens": 1})
    with django_assert_num_queries(0):
        post(program, "acquire", resource="llm", entity="user:7", amounts={"tokens": 1})


def test_limits_in_code_apply_to_programs(program: APIClient, settings: Settings) -> None:
    CodeLimits.objects.create(resource="mail", limits="call_count=2/h")
    assert acquired(program, resource="mail", entity="user:8")["limits"][0]["remaining"] == 1
    CodeLimits.objects.create(resource="mail", limits="call_count=9/h")
    assert acquired(program, resource="mail", entity="user:9")["limits"][0]["remaining"] == 1
    resolver.clear()
    assert acquired(program, resource="mail", entity="user:9")["limits"][0]["remaining"] == 7


@pytest.mark.parametrize("of_resource", [False, True], ids=["request", "resource"])
def test_extensions_have_the_priority_of_the_request_or_the_resource(program: APIClient, of_resource: bool) -> None:
    limit(RateLimit("tokens", 1000, 3600, keep={"low": 60, "normal": 20}))
    if of_resource:
        Resource.objects.filter(name="llm").update(request_priority="low")
        resolver.clear()
    named = {} if of_resource else {"priority": "low"}
    rejected = post(program, "acquire", resource="llm", entity="user:7", amounts={"tokens": 401}, **named)
    assert rejected.status_code == 422
    data = acquired(program, amounts={"tokens": 300}, **named)
    assert [status["priority"] for status in data["limits"]] == ["low"]
    extended = post(program, "extend", token=data["token"], amounts={"tokens": 100})
    assert extended.status_code == 200
    assert post(program, "extend", token=extended.data["token"], amounts={"tokens": 1}).status_code == 429
    assert acquired(program, amounts={"tokens": 600}, priority="high")
    unknown = post(program, "acquire", resource="llm", priority="urgent")
    assert unknown.status_code == 400


@pytest.mark.parametrize(
    ("verb", "fields", "used"),
    [
        ("settle", {"usage": {"tokens": 100}}, 100),
        ("settle", {}, 500),
        ("settle", {"usage": {"tokens": 700}}, 700),
        ("cancel", {}, 0),
    ],
)
def test_a_token_is_of_no_use_twice(program: APIClient, verb: str, fields: dict[str, Any], used: int) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 500})["token"]
    assert post(program, verb, token=token, **fields).status_code == 200
    assert state()["used"] == used
    for again, more in (("settle", {}), ("cancel", {}), ("renew", {}), ("extend", {"amounts": {"tokens": 1}})):
        response = post(program, again, token=token, **more)
        assert (response.status_code, response.data["type"]) == (409, LEASE_ENDED)
        assert response["Content-Type"] == "application/problem+json"
    assert state()["used"] == used


def test_a_token_settles_money_at_the_prices_of_its_acquire(program: APIClient) -> None:
    limit(QuotaLimit.per_month("usd", 5))
    price = {"resource": "llm", "unit": "output_tokens", "per": 1_000_000, "currency": "usd"}
    Price.objects.create(amount=Decimal(10), valid_from=datetime(2026, 1, 1, tzinfo=UTC), **price)
    data = acquired(program, amounts={"output_tokens": 1000})
    assert state("usd")["used"] == 0.01
    extended = post(program, "extend", token=data["token"], amounts={"output_tokens": 1000})
    assert state("usd")["used"] == 0.02
    Price.objects.create(amount=Decimal(50), valid_from=datetime(2026, 2, 1, tzinfo=UTC), **price)
    assert post(program, "settle", token=extended.data["token"], usage={"output_tokens": 1500}).status_code == 200
    assert state("usd")["used"] == 0.015


def test_a_token_that_is_settled_100_times_in_parallel_refunds_once(program: APIClient) -> None:
    limit(TOKENS, QuotaLimit.per_day("q", 1000))
    token = acquired(program, amounts={"tokens": 500, "q": 500})["token"]
    user = program.handler._force_user  # type: ignore[attr-defined]  # of the framework's client

    def settle(_: int) -> int:
        return int(post(as_user(user), "settle", token=token, usage={"tokens": 100, "q": 100}).status_code)

    with ThreadPoolExecutor(10) as pool:
        statuses = [*pool.map(settle, range(100))]
    assert (statuses.count(200), statuses.count(409)) == (1, 99)
    assert (state()["used"], state("q")["used"]) == (100, 100)


def test_permits_of_a_killed_program_are_free_when_the_lease_ends(program: APIClient, clock: FakeClock) -> None:
    limit(SLOTS)
    token = acquired(program, lease_seconds=120)["token"]
    acquired(program, lease_seconds=20)
    clock.advance(19)
    assert post(program, "acquire", resource="llm", entity="user:7").status_code == 429
    clock.advance(1)
    acquired(program, lease_seconds=10)
    clock.advance(99)
    assert state("slots")["used"] == 1
    assert post(program, "renew", token=token).status_code == 200
    clock.advance(119)
    assert state("slots")["used"] == 1
    clock.advance(1)
    assert state("slots")["used"] == 0
    assert post(program, "renew", token=token).status_code == 409


@pytest.mark.parametrize("seconds", [1, 2.5, 3600])
def test_a_renewal_and_an_extension_have_the_lease_of_the_token(program: APIClient, seconds: float) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 1}, lease_seconds=seconds)["token"]
    renewed = post(program, "renew", token=token)
    assert (renewed.status_code, renewed.data["lease_seconds"]) == (200, seconds)
    extended = post(program, "extend", token=token, amounts={"tokens": 1})
    assert (extended.status_code, extended.data["lease_seconds"]) == (200, seconds)


def test_extensions_are_decided_by_the_changed_limits_of_the_client(program: APIClient) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 100})["token"]
    services.set_entity_limits("user:7", [RateLimit("tokens", 150, 3600)], resource="llm")
    assert post(program, "extend", token=token, amounts={"tokens": 60}).status_code == 429
    extended = post(program, "extend", token=token, amounts={"tokens": 50})
    assert extended.status_code == 200
    assert state()["used"] == 150
    limit(SLOTS)
    services.set_entity_limits("user:7", [SLOTS], resource="llm")
    unknown = post(program, "extend", token=extended.data["token"], amounts={"tokens": 1})
    assert (unknown.status_code, "tokens" in str(unknown.data)) == (400, True)


def test_amounts_without_permits_have_a_lease_and_count_as_used_after_it(program: APIClient, clock: FakeClock) -> None:
    limit(QuotaLimit("tokens", 1000, session_seconds=86_400))
    token = acquired(program, amounts={"tokens": 300}, lease_seconds=60)["token"]
    clock.advance(60)
    assert post(program, "settle", token=token, usage={"tokens": 0}).status_code == 409
    assert state()["used"] == 300


def test_an_acquisition_is_extended_by_a_token_that_replaces_the_first(program: APIClient) -> None:
    limit(TOKENS, SLOTS, CallLimit(10, 60))
    token = acquired(program, amounts={"tokens": 100})["token"]
    extended = post(program, "extend", token=token, amounts={"tokens": 300, "slots": 1}).data
    assert extended["amounts"] == {"call_count": 1, "slots": 2, "tokens": 400}
    assert (state()["used"], state("slots")["used"], state("call_count")["used"]) == (400, 2, 1)
    rejected = post(program, "extend", token=extended["token"], amounts={"tokens": 601})
    assert (rejected.status_code, rejected.data["violated-policies"]) == (429, ["tokens"])
    more = post(program, "extend", token=extended["token"], amounts={"tokens": 100}).data["token"]
    assert post(program, "renew", token=more).status_code == 200
    assert post(program, "settle", token=more, usage={"tokens": 350}).status_code == 200
    assert (state()["used"], state("slots")["used"]) == (350, 0)
    assert post(program, "settle", token=token, usage={"tokens": 0}).status_code == 409


def test_an_extension_follows_changes_of_the_limits(program: APIClient) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 900})["token"]
    limit(RateLimit("tokens", 2000, 3600))
    extended = post(program, "extend", token=token, amounts={"tokens": 1000})
    assert extended.status_code == 200
    assert post(program, "settle", token=extended.data["token"], usage={"tokens": 10}).status_code == 200
    assert state()["used"] == 10


def test_acquisition_is_settled_after_its_limits_were_removed(program: APIClient) -> None:
    limit(TOKENS, SLOTS)
    token = acquired(program, amounts={"tokens": 500})["token"]
    services.delete_resource_limits("llm")
    assert post(program, "settle", token=token, usage={"tokens": 100}).status_code == 200
    limit(TOKENS, SLOTS)
    assert (state()["used"], state("slots")["used"]) == (100, 0)


def test_the_member_of_a_pool_that_has_admitted_is_extended_and_settled(program: APIClient) -> None:
    pool = Pool.objects.create(name="models")
    for name in ("a", "b"):
        Limit.objects.create(member=PoolMember.objects.create(pool=pool, name=name), key="tpm", text="100/min")
    Resource.objects.create(name="llm", pool=pool)
    token = acquired(program, amounts={"tpm": 60})["token"]
    assert post(program, "extend", token=token, amounts={"tpm": 41}).status_code == 429
    extended = post(program, "extend", token=token, amounts={"tpm": 40})
    assert extended.status_code == 200
    PoolMember.objects.update(config={"region": "eu"})
    assert post(program, "extend", token=extended.data["token"], amounts={"tpm": 1}).status_code == 429
    assert post(program, "settle", token=extended.data["token"], usage={"tpm": 30}).status_code == 200
    members = services.status("llm").members
    assert sorted(member["tpm"]["used"] for member in members.values()) == [0, 30]


def test_a_member_of_a_pool_with_a_price_of_its_own_is_settled_at_it(program: APIClient) -> None:
    pool = Pool.objects.create(name="models")
    PoolMember.objects.create(pool=pool, name="east")
    Resource.objects.create(name="llm", pool=pool)
    services.set_resource_limits("llm", ["usd=5/month"])
    begun = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
    for resource, member, amount in (("llm", "", 1), ("models", "east", 2)):
        values = {"unit": "pages", "amount": amount, "per": 1000, "currency": "usd", "valid_from": begun}
        Price.objects.create(resource=resource, member=member, **values)
    token = acquired(program, amounts={"pages": 300})["token"]
    extended = post(program, "extend", token=token, amounts={"pages": 100})
    assert post(program, "settle", token=extended.data["token"], usage={"pages": 350}).status_code == 200
    assert services.status("llm", entity="user:7").limits["usd"]["used"] == 0.7
    services.roll_up()
    assert {row.admitted for row in UsageSnapshot.objects.filter(key__startswith="pages")} == {350}
    assert UsageSnapshot.objects.filter(period="day", key=member_key("pages", "models", "east")).count() == 1


def test_a_rejection_is_answered_as_everywhere(program: APIClient) -> None:
    limit(CallLimit(1, 60), TOKENS)
    acquired(program, amounts={"tokens": 1})
    rejected = post(program, "acquire", resource="llm", entity="user:7", amounts={"tokens": 1})
    assert (rejected.status_code, rejected.data["violated-policies"]) == (429, ["call_count"])
    assert rejected.data["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert rejected["Content-Type"] == "application/problem+json"
    assert (rejected["Retry-After"], rejected["RateLimit"].split(", ")[-2]) == ("60", '"call_count";r=0;t=60')
    too_much = post(program, "acquire", resource="llm", entity="user:8", amounts={"tokens": 1001})
    assert (too_much.status_code, too_much.data["violated-policies"]) == (422, ["tokens"])
    services.set_entity("user:9", blocked=True)
    assert post(program, "acquire", resource="llm", entity="user:9", amounts={"tokens": 1}).status_code == 403


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"resource": "no such name!"}, "#"),
        ({"entity": "ip:10.0.0.0/8"}, "#"),
        ({"amounts": {"tokens": True}}, "#/amounts/tokens"),
        ({"amounts": {"tokens": "9" * 33}}, "#/amounts/tokens"),
        ({"amounts": {"tokens": -1}}, "#"),
        ({"amounts": {"token": 1}}, "#"),
        ({"amounts": {}}, "#"),
        ({"amounts": {"lease:token": 5, "tokens": 1}}, "#"),
        ({"lease_seconds": 0.5}, "#/lease_seconds"),
        ({"lease_seconds": 3601}, "#/lease_seconds"),
        ({"idempotency_key": "k" * 256}, "#/idempotency_key"),
        ({"priority_of_mine": "high"}, "#/priority_of_mine"),
    ],
)
def test_invalid_requests_charge_nothing(program: APIClient, fields: dict[str, Any], pointer: str) -> None:
    limit(TOKENS)
    asked = {"resource": "llm", "entity": "user:7", "amounts": {"tokens": 1}} | fields
    response = post(program, "acquire", **asked)
    assert (response.status_code, response.data["errors"][0]["pointer"]) == (400, pointer)
    assert state()["used"] == 0


@pytest.mark.parametrize("key", ["lease:token", "idempotency:call_count"])
def test_programs_cannot_choose_the_holder_of_a_token(program: APIClient, key: str) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 10}, idempotency_key="once")["token"]
    requests = {
        "acquire": {"resource": "llm", "entity": "user:7", "amounts": {key: 1}},
        "extend": {"token": token, "amounts": {key: 0}},
        "settle": {"token": token, "usage": {key: 0}},
    }
    assert [post(program, verb, **fields).status_code for verb, fields in requests.items()] == [400] * 3
    assert state()["used"] == 10


def test_invalid_usage_settles_nothing(program: APIClient) -> None:
    limit(TOKENS, CallLimit(10, 60))
    token = acquired(program, amounts={"tokens": 100})["token"]
    for usage in ({"tokens": -1}, {"token": 1}, {"call_count": 2}, {"lease:token": 0}):
        assert post(program, "settle", token=token, usage=usage).status_code == 400
    for amounts in ({}, {"token": 1}, {"lease:token": 1}):
        assert post(program, "extend", token=token, amounts=amounts).status_code == 400
    assert state()["used"] == 100
    assert post(program, "settle", token=token, usage={"tokens": 0}).status_code == 200


def test_a_token_belongs_to_its_user(program: APIClient, root: APIClient) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 100})["token"]
    for verb, fields in (("settle", {}), ("cancel", {}), ("renew", {}), ("extend", {"amounts": {"tokens": 1}})):
        response = post(root, verb, token=token, **fields)
        assert (response.status_code, response.data["errors"][0]["pointer"]) == (400, "#/token")
    assert state()["used"] == 100


def test_users_need_the_permission(program: APIClient) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 100})["token"]
    other = as_user(person("ann", "view_policy"))
    for verb in ("acquire", "extend", "settle", "renew", "cancel"):
        assert post(other, verb, token=token).status_code == 403
        assert post(as_user(None), verb, token=token).status_code in {401, 403}


def test_tokens_of_a_former_secret_are_valid_while_it_is_a_fallback(program: APIClient, settings: Settings) -> None:
    limit(TOKENS)
    tokens = [acquired(program, amounts={"tokens": 100})["token"] for _ in range(2)]
    former, settings.SECRET_KEY = settings.SECRET_KEY, "another secret of this site"
    assert post(program, "settle", token=tokens[0]).status_code == 400
    settings.SECRET_KEY_FALLBACKS = [former]
    assert post(program, "settle", token=tokens[0], usage={"tokens": 0}).status_code == 200
    settings.SECRET_KEY_FALLBACKS = []
    assert post(program, "settle", token=tokens[1]).status_code == 400


def test_changed_tokens_are_invalid(program: APIClient) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 100})["token"]
    content, signature = token.split(":")
    signer = Signer(salt="limits_app.token")
    changed = [
        "",
        "x",
        content,
        f"{content}:{signature[:-1]}",
        f"{content[:-4]}AAAA:{signature}",
        signer.sign(content[:-4]),
        signer.sign("AAAA" * 20),
        signer.sign("not base64!"),
        Signer(salt="another").sign(content),
        token + "A",
        "A" * (LONGEST_TOKEN + 1),
    ]
    for text in changed:
        response = post(program, "settle", token=text)
        assert (response.status_code, response.data["errors"][0]["pointer"]) == (400, "#/token")
    assert post(program, "settle", token=token).status_code == 200


def test_a_token_shows_no_names(program: APIClient) -> None:
    limit(TOKENS)
    first, second = (acquired(program, entity="user:secret-name", amounts={"tokens": 1})["token"] for _ in range(2))
    assert "secret-name" not in first
    assert first[:40] != second[:40]


def test_tokens_of_another_namespace_are_invalid(program: APIClient, settings: Settings) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 100})["token"]
    settings.LIMITS = {**settings.LIMITS, "NAMESPACE": lambda: "another"}
    assert post(program, "settle", token=token).status_code == 400
    settings.LIMITS = {**settings.LIMITS, "NAMESPACE": lambda: ""}
    assert post(program, "settle", token=token).status_code == 200


def test_a_repeated_idempotency_key_is_charged_once_and_takes_its_permits_again(program: APIClient) -> None:
    limit(TOKENS, SLOTS)
    first, second = (acquired(program, amounts={"tokens": 100}, idempotency_key="k")["token"] for _ in range(2))
    assert (state()["used"], state("slots")["used"]) == (100, 2)
    assert post(program, "settle", token=second, usage={"tokens": 0}).status_code == 200
    assert (state()["used"], state("slots")["used"]) == (100, 1)
    assert post(program, "settle", token=first, usage={"tokens": 10}).status_code == 200
    assert (state()["used"], state("slots")["used"]) == (10, 0)
    other = post(program, "acquire", resource="llm", entity="user:7", amounts={"tokens": 5}, idempotency_key="k")
    assert other.status_code == 400


def test_a_cancelled_request_may_be_repeated_with_its_idempotency_key(program: APIClient) -> None:
    limit(TOKENS)
    token = acquired(program, amounts={"tokens": 100}, idempotency_key="k")["token"]
    assert post(program, "cancel", token=token).status_code == 200
    acquired(program, amounts={"tokens": 100}, idempotency_key="k")
    assert state()["used"] == 100


@pytest.mark.parametrize("key", [None, "k"])
def test_a_resource_without_limits_gives_a_token_that_is_settled_once(program: APIClient, key: str | None) -> None:
    token = acquired(program, resource="free", idempotency_key=key)["token"]
    assert post(program, "renew", token=token).status_code == 200
    assert post(program, "settle", token=token).status_code == 200
    assert post(program, "settle", token=token).status_code == 409


def test_limits_that_code_has_set_apply(program: APIClient) -> None:
    services.try_acquire("llm", entity="user:1", default_limits="2/min")
    services.roll_up()
    statuses = [post(program, "acquire", resource="llm", entity="user:7").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_money_is_text(program: APIClient) -> None:
    limit(QuotaLimit("usd", Decimal("1.5"), session_seconds=3600))
    data = acquired(program, amounts={"usd": "0.000001"})
    assert post(program, "extend", token=data["token"], amounts={"usd": "1.5"}).status_code == 429
    assert post(program, "settle", token=data["token"], usage={"usd": "0.25"}).status_code == 200
    assert state("usd")["used"] == Decimal("0.25")


@pytest.mark.parametrize(
    ("method", "verb", "fields"),
    [
        ("acquire", "acquire", {"resource": "llm", "entity": "user:7", "amounts": {"tokens": 1}}),
        ("acquire", "extend", {"amounts": {"tokens": 1}}),
        ("settle", "settle", {"usage": {"tokens": 1}}),
        ("settle", "cancel", {}),
        ("renew", "renew", {}),
    ],
)
def test_an_unavailable_store_is_503(
    program: APIClient, monkeypatch: pytest.MonkeyPatch, method: str, verb: str, fields: dict[str, Any]
) -> None:
    limit(TOKENS)
    named = fields if verb == "acquire" else {"token": acquired(program, amounts={"tokens": 100})["token"], **fields}
    fail_at(monkeypatch, method)
    response = post(program, verb, **named)
    assert (response.status_code, response["Content-Type"]) == (503, "application/problem+json")
    assert int(response["Retry-After"]) >= 1


def test_a_policy_that_decides_in_place_of_the_store_gives_no_token(
    program: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(TOKENS)
    services.set_resource_limits("llm", [TOKENS], on_unavailable="allow")
    acquired(program, amounts={"tokens": 1})
    fail_at(monkeypatch, "acquire")
    data = acquired(program, amounts={"tokens": 100})
    assert (data["token"], data["degraded"]) == (None, True)


@pytest.mark.parametrize("priority", [None, "low"])
def test_a_request_that_names_no_amounts_is_settled_by_its_defaults(program: APIClient, priority: str | None) -> None:
    limit(QuotaLimit.per_month("usd", 5), CallLimit(10, 60), SLOTS)
    price = {"resource": "llm", "unit": "requests", "amount": Decimal(10), "per": 1000, "currency": "usd"}
    Price.objects.create(valid_from=datetime(2026, 1, 1, tzinfo=UTC), **price)
    data = acquired(program, priority=priority)
    assert (state("usd")["used"], state("slots")["used"]) == (0.01, 1)
    assert post(program, "extend", token=data["token"], amounts={"slots": 1}).status_code == 200
    assert post(program, "settle", token=data["token"]).status_code == 200
    assert state("usd")["used"] == 0.01


def test_a_token_of_a_priority_that_was_removed_is_settled(program: APIClient, settings: Settings) -> None:
    limit(RateLimit("tokens", 100, 3600), SLOTS)
    token = acquired(program, amounts={"tokens": 30}, priority="low")["token"]
    settings.LIMITS = {**settings.LIMITS, "PRIORITIES": ["high", "normal"]}
    assert post(program, "settle", token=token, usage={"tokens": 5}).status_code == 200
    assert (state()["used"], state("slots")["used"]) == (5, 0)


@pytest.fixture
def _unreadable(db: None) -> Iterator[None]:
    """The table of policies lacks a column, as during a deployment."""
    rename = "ALTER TABLE limits_app_policy RENAME COLUMN %s TO %s"
    with connection.cursor() as cursor:
        cursor.execute(rename % ("effect", "former_effect"))
        resolver.clear()
        yield
        cursor.execute(rename % ("former_effect", "effect"))


@pytest.mark.usefixtures("_unreadable")
def test_limits_that_cannot_be_read_give_no_token_where_requests_are_allowed(
    program: APIClient, settings: Settings
) -> None:
    assert post(program, "acquire", resource="llm", entity="user:7", amounts={"tokens": 1}).status_code == 503
    settings.LIMITS = {**settings.LIMITS, "ON_UNRESOLVED": "allow"}
    data = acquired(program, amounts={"tokens": 100})
    assert (data["token"], data["limits"]) == (None, [])


def test_an_acquisition_of_very_many_limits_charges_nothing(program: APIClient) -> None:
    limits = [QuotaLimit(f"key{uuid4().hex}", 10, session_seconds=60 + number) for number in range(100)]
    limit(*limits)
    response = post(program, "acquire", resource="llm", entity="user:7", amounts={one.key: 1 for one in limits})
    assert response.status_code == 400
    assert "4096 characters" in response.data["errors"][0]["detail"]
    assert {state["used"] for state in services.limit_set("llm", "user:7").get_stats().values()} == {0}
