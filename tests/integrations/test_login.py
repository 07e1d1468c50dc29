"""Log-in throttling: every way to log in is charged once for a failure, and nothing for a success."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth import aauthenticate, authenticate
from django.contrib.auth.backends import BaseBackend, ModelBackend
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.contrib.messages.middleware import MessageMiddleware
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from pytest_django import Settings
from rest_framework.authentication import BasicAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app import services
from limits_app.engine.limits import CallLimit
from limits_app.integrations import login
from limits_app.integrations.identity import entity_of_account, normalize_entity
from limits_app.integrations.login import ACCOUNT, ACCOUNT_AND_ADDRESS, ADDRESS, LoginLimitBackend
from limits_app.models import Resource
from tests.flushing import made_once
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.login_site import BACKENDS
from tests.integrations.site import limit
from tests.opened import fail_at

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

EMAIL_BACKEND = f"{__name__}.EmailBackend"
CLIENT = "ip:127.0.0.1"
LIMIT = 4
HERE = Path(__file__).resolve()


class EmailBackend(ModelBackend):
    """Logs users in by their e-mail address, which the form may send as the name."""

    def authenticate(  # type: ignore[override]  # as backends of sites do
        self, request: HttpRequest | None, username: str = "", email: str = "", password: str = "", **_: object
    ) -> Any:
        user = User.objects.filter(email__iexact=email or username).first()
        return user if user is not None and user.check_password(password) else None


class Denying(BaseBackend):
    """Rejects everybody for its own reasons."""

    def authenticate(self, request: HttpRequest | None, **credentials: object) -> None:
        raise PermissionDenied


class Failing(BaseBackend):
    """A directory that is down."""

    def authenticate(self, request: HttpRequest | None, **credentials: object) -> None:
        raise ConnectionError("the directory is down")


class Refusing(BaseBackend):
    """Says that a password is wrong by an error, which the REST framework, or Django, answers."""

    def authenticate(self, request: HttpRequest | None, **credentials: object) -> None:
        if request is not None and request.path == "/form/":
            raise Http404
        raise AuthenticationFailed


class Basic(APIView):
    """A view with basic authentication."""

    authentication_classes = (BasicAuthentication,)

    def get(self, request: Request) -> Response:
        return Response(request.user.get_username())


def ask_by_email(request: HttpRequest) -> HttpResponse:
    """Check an e-mail address and a password, without logging in."""
    user = authenticate(request, email=request.GET["name"], password=request.GET["password"])
    return HttpResponse(status=401 if user is None else 200)


async def ask_async(request: HttpRequest) -> HttpResponse:
    """Check a name and a password in a coroutine, without logging in."""
    user = await aauthenticate(request, username=request.GET["name"], password=request.GET["password"])
    return HttpResponse(status=401 if user is None else 200)


def ask_often(request: HttpRequest) -> HttpResponse:
    """Check several passwords in one request."""
    users = [
        authenticate(request, username=request.GET["name"], password=password)
        for password in request.GET.getlist("password")
    ]
    return HttpResponse(json.dumps([user is not None for user in users]))


def stream(request: HttpRequest) -> StreamingHttpResponse:
    """Check a name and a password, and stream what is left for the account."""
    user = authenticate(request, username=request.GET["name"], password=request.GET["password"])
    assert user is not None
    return StreamingHttpResponse(str(used(ACCOUNT, f"account:{user.pk}")) for _ in range(1))


def ask_without_request(request: HttpRequest) -> HttpResponse:
    """Check a name and a password, and say nothing about the request."""
    user = authenticate(username=request.GET["name"], password=request.GET["password"])
    return HttpResponse(status=401 if user is None else 200)


class FormView(LoginView):
    """Django's view without a template."""

    def form_invalid(self, form: object) -> HttpResponse:
        return HttpResponse("try again")


urlpatterns = [
    path("admin/", admin.site.urls),
    path("form/", FormView.as_view()),
    path("basic/", Basic.as_view()),
    path("email/", ask_by_email),
    path("async/", ask_async),
    path("often/", ask_often),
    path("bare/", ask_without_request),
    path("stream/", stream),
]

LogIn = Callable[..., int]


def by_admin(name: str, password: str, **options: Any) -> int:
    return Client(**options).post("/admin/login/?next=/admin/", {"username": name, "password": password}).status_code


def by_form(name: str, password: str, **options: Any) -> int:
    return Client(**options).post("/form/", {"username": name, "password": password}).status_code


def by_form_async(name: str, password: str) -> int:
    async def post() -> int:
        response = await AsyncClient().post("/form/", {"username": name, "password": password})
        return response.status_code

    return async_to_sync(post)()


def by_basic(name: str, password: str) -> int:
    token = b64encode(f"{name}:{password}".encode()).decode()
    return Client().get("/basic/", headers={"Authorization": f"Basic {token}"}).status_code


def by_email(name: str, password: str) -> int:
    return Client().get("/email/", {"name": f"{name}@example.org", "password": password}).status_code


def by_coroutine(name: str, password: str) -> int:
    async def get() -> int:
        response = await AsyncClient().get("/async/", {"name": name, "password": password})
        return response.status_code

    return async_to_sync(get)()


def by_view_without_request(name: str, password: str) -> int:
    return Client().get("/bare/", {"name": name, "password": password}).status_code


WAYS = [
    pytest.param(by_admin, id="admin"),
    pytest.param(by_form, id="form"),
    pytest.param(by_form_async, id="form_under_asgi"),
    pytest.param(by_basic, id="basic_authentication"),
    pytest.param(by_email, id="email"),
    pytest.param(by_coroutine, id="coroutine"),
]
RIGHT = {200, 302}


def make_limits() -> None:
    for resource in (ACCOUNT, ADDRESS, ACCOUNT_AND_ADDRESS):
        limit(resource, CallLimit(LIMIT, 3600))


@pytest.fixture(autouse=True)
def user(settings: Settings) -> User:
    """A site with two backends and a user; all three limits are the same."""
    settings.ROOT_URLCONF = __name__
    settings.AUTHENTICATION_BACKENDS = [*BACKENDS, EMAIL_BACKEND]
    messages = f"{MessageMiddleware.__module__}.{MessageMiddleware.__qualname__}"
    settings.MIDDLEWARE = [*MIDDLEWARE[:2], messages, *MIDDLEWARE[2:]]
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    settings.LOGIN_REDIRECT_URL = "/"
    made_once("login", make_limits)
    return User.objects.create_superuser("ann", "ann@example.org", "right")


def used(resource: str, entity: str) -> Any:
    """The attempts that are counted."""
    return round(services.status(resource, entity=entity).limits["call_count"]["used"])  # a moment may have passed


def counts(user: User, address: str = CLIENT) -> list[Any]:
    """The attempts that are counted for an account, for an address, and for both."""
    account = f"account:{user.pk}"
    return [used(ACCOUNT, account), used(ADDRESS, address), used(ACCOUNT_AND_ADDRESS, f"{account} {address}")]


@pytest.mark.parametrize("log_in", WAYS)
def test_failures_count_once_and_successes_nothing(log_in: LogIn, user: User) -> None:
    assert {log_in("ann", "right") for _ in range(3 * LIMIT)} <= RIGHT
    assert counts(user) == [0, 0, 0]
    answers = [log_in("ann", f"guess {number}") for number in range(LIMIT)]
    assert not {302, 429} & {*answers}
    assert counts(user) == [LIMIT] * 3
    assert log_in("ann", "right") == 429
    assert counts(user) == [LIMIT] * 3


@pytest.mark.parametrize("log_in", WAYS)
def test_a_rejected_log_in_has_retry_after(log_in: LogIn, user: User, settings: Settings) -> None:
    for resource in (ADDRESS, ACCOUNT_AND_ADDRESS):
        limit(resource, CallLimit(1000, 3600))
    for number in range(LIMIT):
        by_form("ann", f"guess {number}", REMOTE_ADDR=f"10.0.0.{number}")
    response = Client().post("/form/", {"username": "ann", "password": "right"})
    assert (response.status_code, response["Retry-After"]) == (429, "900")
    assert response["Cache-Control"] == "no-store"
    assert log_in("ann", "right") == 429
    assert counts(user) == [LIMIT, 0, 0]


def test_the_defaults_apply_without_limits_in_the_admin(user: User) -> None:
    for resource in (ACCOUNT, ADDRESS, ACCOUNT_AND_ADDRESS):
        services.delete_resource_limits(resource)
    assert [by_form("ann", "wrong") for _ in range(6)] == [200] * 5 + [429]
    assert counts(user) == [5, 5, 5]
    assert by_form("ann", "right", REMOTE_ADDR="10.0.0.1") == 302  # one address does not lock out the owner
    others = [by_form(f"user {number}", "wrong") for number in range(46)]
    assert others == [200] * 45 + [429]


@pytest.mark.parametrize(
    "name",
    [
        "ann@example.org",
        "ANN@Example.org",
        "Ann",
        " ann",
        "\uff41nn",
        "ann\u2003",
        "\N{MATHEMATICAL BOLD SMALL A}nn",
    ],
)
def test_all_names_of_an_account_share_their_attempts(name: str, user: User) -> None:
    for _ in range(LIMIT):
        assert by_basic(name, "wrong") == 401
    assert used(ACCOUNT, f"account:{user.pk}") == LIMIT
    assert by_form("ann", "right", REMOTE_ADDR="10.0.0.1") == 429


def test_all_spellings_of_a_name_without_account_share_their_attempts(user: User) -> None:
    for name in ("Nobody", "nobody", " NOBODY", "\uff4eobody"):
        assert by_basic(name, "wrong") == 401
    assert used(ACCOUNT, entity_of_account("nobody")) == LIMIT
    assert used(ACCOUNT, f"account:{user.pk}") == 0


@pytest.mark.parametrize("name", ["", "\x00", "\ud800", "a" * 100_000, "*", "ip:10.0.0.0/33"])
def test_any_name_is_counted(name: str, user: User) -> None:
    request = RequestFactory().get("/")
    for _ in range(LIMIT):
        LoginLimitBackend().authenticate(request, username=name, password="wrong")
        login.user_login_failed.send(sender=__name__, credentials={}, request=request)
    with pytest.raises(PermissionDenied):
        LoginLimitBackend().authenticate(request, username=name, password="wrong")
    assert used(ACCOUNT, f"account:{user.pk}") == 0


@pytest.mark.parametrize("name", ["ann\x00", "\x00\x00ann", "a\udcffnn", "ann@example.org\x00"])
def test_characters_that_no_database_stores_make_no_other_account(name: str, user: User) -> None:
    """Some collations of MySQL ignore NUL."""
    assert LoginLimitBackend().accounts_of({"username": name}) == [f"account:{user.pk}"]


def test_names_that_are_too_long_share_their_attempts(user: User) -> None:
    """Some collations of MySQL ignore characters such as zero-width spaces, however many there are."""
    names = ["ann" + "\u200b" * 400, "\u200b" * 401 + "ann", "a" * 1000]
    assert len({*map(tuple, (LoginLimitBackend().accounts_of({"username": name}) for name in names))}) == 1
    assert LoginLimitBackend().accounts_of({"username": "ann" + " " * 1000}) == [f"account:{user.pk}"]


class LongKeys(LoginLimitBackend):
    """Users of a site whose primary keys are long."""

    def accounts_of(self, credentials: Mapping[str, Any]) -> list[str]:
        return ["account:" + "k" * 240, "account:a*", "account:a*"]


def test_long_names_take_no_long_time(user: User) -> None:
    """To normalize many combining characters takes a time that grows with the square of their number."""
    name, before = "\u0301\u0327" * 100_000, process_time()
    assert len(LoginLimitBackend().accounts_of({"username": name})) == 1
    assert entity_of_account(name) != entity_of_account("")
    assert process_time() - before < 5


def test_a_user_with_a_long_primary_key_is_counted() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="2001:db8::1")
    for _ in range(LIMIT):
        LongKeys().authenticate(request, username="ann", password="wrong")
        login.user_login_failed.send(sender=__name__, credentials={}, request=request)
    with pytest.raises(PermissionDenied):
        LongKeys().authenticate(request, username="ann", password="wrong")
    assert used(ACCOUNT, normalize_entity("account:a*")) == LIMIT


def test_an_empty_name_is_not_that_of_users_without_an_address(user: User) -> None:
    User.objects.filter(pk=user.pk).update(email="")
    for name in (" ", "\u2003", "\x00"):
        assert LoginLimitBackend().accounts_of({"username": name}) == [entity_of_account("")]


def test_the_case_of_all_letters_is_ignored(user: User) -> None:
    """SQLite, and PostgreSQL with the locale C, ignore the case of ASCII only."""
    User.objects.filter(pk=user.pk).update(username="zoë@exämple.org")
    for name in ("ZOË@EXÄMPLE.ORG", "Zoë@Exämple.org"):
        assert LoginLimitBackend().accounts_of({"username": name}) == [f"account:{user.pk}"]


def test_names_are_stored_as_digests() -> None:
    by_basic("my secret passphrase", "wrong")
    names = LoginLimitBackend().accounts_of({"username": "my secret passphrase", "password": "x"})
    assert names == [entity_of_account("my secret passphrase")]
    assert "secret" not in names[0]


def test_other_credentials_are_no_names(user: User) -> None:
    accounts = LoginLimitBackend().accounts_of
    assert accounts({"domain": "CORP", "password": "ann", "first_name": "ann", "otp": 7}) == []
    assert accounts({"phone": 4912345, "username": None}) == [entity_of_account("4912345")]
    assert accounts({"username": "ann", "email": "ann@example.org", "login": "bob"}) == [
        f"account:{user.pk}",
        entity_of_account("bob"),
    ]


def test_a_name_counts_for_all_accounts_that_it_may_mean(user: User) -> None:
    other = User.objects.create_user("ann@example.org", "other@example.org", "other")
    assert [by_form("ann@example.org", "wrong") for _ in range(LIMIT)] == [200] * LIMIT
    assert [used(ACCOUNT, f"account:{one.pk}") for one in (user, other)] == [LIMIT] * 2
    for number in range(12):
        User.objects.create_user(f"twin {number}", "twins@example.org")
    assert LoginLimitBackend().accounts_of({"email": "twins@example.org"}) == [entity_of_account("twins@example.org")]


def test_an_address_is_that_of_the_client_behind_trusted_proxies(user: User, settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "TRUSTED_PROXIES": ["127.0.0.1"]}
    for number in range(LIMIT):
        Client().post(
            "/form/",
            {"username": f"user {number}", "password": "wrong"},
            headers={"X-Forwarded-For": f"10.0.0.{number}, 10.9.9.9"},
        )
    assert (used(ADDRESS, "ip:10.9.9.9"), used(ADDRESS, CLIENT)) == (LIMIT, 0)


@pytest.mark.parametrize("right", [False, True])
def test_concurrent_guesses_never_exceed_the_limit(right: bool, user: User, settings: Settings) -> None:
    """The last backend waits until all guesses were charged or rejected."""
    settings.AUTHENTICATION_BACKENDS = [*BACKENDS, f"{__name__}.Slow"]
    Slow.checked = 0
    passwords = ["right" if right and number == 0 else f"guess {number}" for number in range(12)]
    with ThreadPoolExecutor(12) as threads:
        answers = [*threads.map(_by_basic_in_thread, passwords)]
    assert answers.count(200) <= 1
    assert Slow.checked <= LIMIT
    assert answers.count(429) >= 12 - LIMIT - 1
    assert used(ACCOUNT, f"account:{user.pk}") == Slow.checked


class Slow(ModelBackend):
    """Counts the guesses that are checked."""

    checked = 0

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> None:
        type(self).checked += 1


def _by_basic_in_thread(password: str) -> int:
    try:
        return by_basic("ann", password)
    finally:
        connection.close()


def test_concurrent_guesses_of_one_request_never_exceed_the_limit(user: User) -> None:
    request = RequestFactory().get("/")
    limits = login.RequestLimits(request)
    limits.has_middleware, request.limits = True, limits  # type: ignore[attr-defined]  # as the middleware does

    async def guess() -> list[Any]:
        passwords = ["right", *[f"guess {number}" for number in range(9)]]
        return await asyncio.gather(*[aauthenticate(request, username="ann", password=one) for one in passwords])

    users = async_to_sync(guess)()
    assert users == [user] + [None] * 9
    limits.end()
    assert counts(user) == [LIMIT - 1] * 3


def test_every_failure_of_a_request_counts(user: User) -> None:
    passwords = ["right", "wrong", "right", "wrong", "right"]
    answer = Client().get("/often/", {"name": "ann", "password": passwords})
    assert json.loads(answer.content) == [True, False, True, False, True]
    assert counts(user) == [2, 2, 2]
    assert json.loads(Client().get("/often/", {"name": "ann", "password": ["right"] * 20}).content) == [True] * 20
    assert counts(user) == [2, 2, 2]
    assert Client().get("/often/", {"name": "ann", "password": ["wrong"] * 20}).status_code == 429
    assert counts(user) == [LIMIT] * 3


def test_a_backend_that_denies_counts_once(user: User, settings: Settings) -> None:
    settings.AUTHENTICATION_BACKENDS = [BACKENDS[0], f"{__name__}.Denying", *BACKENDS[1:]]
    assert by_form("ann", "right") == 200
    assert counts(user) == [1, 1, 1]


@pytest.mark.parametrize("has_middleware", [True, False])
def test_an_attempt_that_ends_in_an_error_counts(has_middleware: bool, user: User, settings: Settings) -> None:
    settings.AUTHENTICATION_BACKENDS = [*BACKENDS, f"{__name__}.Failing"]
    if not has_middleware:
        settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    assert by_form("ann", "right", raise_request_exception=False) == 302
    assert by_form("ann", "wrong", raise_request_exception=False) == 500
    assert counts(user) == [1, 1, 1]


@pytest.mark.parametrize("log_in", [by_form, by_basic])
def test_an_error_that_becomes_a_response_counts(log_in: LogIn, user: User, settings: Settings) -> None:
    settings.AUTHENTICATION_BACKENDS = [*BACKENDS, f"{__name__}.Refusing"]
    assert {log_in("ann", "right") for _ in range(3 * LIMIT)} <= RIGHT
    assert log_in("ann", "wrong") in {401, 404}
    assert counts(user) == [1, 1, 1]


def test_a_log_in_counts_nothing_while_its_response_is_streamed(user: User) -> None:
    response = Client().get("/stream/", {"name": "ann", "password": "right"})
    assert response.getvalue() == b"0"


@pytest.mark.parametrize("log_in", [by_form, by_basic, by_view_without_request])
def test_without_the_middleware_a_rejected_log_in_looks_like_a_failed_one(
    log_in: LogIn, user: User, settings: Settings
) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    assert {log_in("ann", "right") for _ in range(3 * LIMIT)} <= RIGHT
    failed = log_in("ann", "wrong")
    assert [log_in("ann", "wrong") for _ in range(LIMIT)] == [failed] * LIMIT
    assert log_in("ann", "right") == failed
    assert used(ACCOUNT, f"account:{user.pk}") == LIMIT


def test_without_a_request_only_the_account_is_counted(user: User) -> None:
    for _ in range(3 * LIMIT):
        assert authenticate(username="ann", password="right") == user
    for _ in range(LIMIT):
        assert authenticate(username="ann", password="wrong") is None
    assert authenticate(username="ann", password="right") is None
    assert counts(user) == [LIMIT, 0, 0]


def test_an_attempt_without_a_request_is_refunded_when_its_task_ends(user: User) -> None:
    async def check() -> list[Any]:
        users = [asyncio.create_task(aauthenticate(username="ann", password="right")) for _ in range(2)]
        return [await one for one in users]

    for _ in range(LIMIT):
        assert async_to_sync(check)() == [user, user]
    assert counts(user) == [0, 0, 0]


def test_a_log_in_that_passes_by_the_backends_counts_nothing(user: User) -> None:
    client = Client()
    client.force_login(user)
    assert client.get("/admin/").status_code == 200
    assert client.login(username="ann", password="right")
    assert counts(user) == [0, 0, 0]


def test_resources_in_several_stores_are_charged_all_or_nothing(
    user: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}, "other": {"KIND": "memory"}}}
    Resource.objects.filter(name=ADDRESS).update(store="other")
    services.set_resource_limits(ADDRESS, [CallLimit(2, 3600)])
    assert {by_form("ann", "right") for _ in range(3 * LIMIT)} == {302}
    assert [by_form("ann", "wrong") for _ in range(3)] == [200, 200, 429]
    assert counts(user) == [2, 2, 2]


def test_a_store_that_is_down_rejects(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, "acquire", reason="no answer")
    assert by_form("ann", "right") == 503


@pytest.mark.product
def test_users_of_django_allauth_are_limited_by_name_and_address() -> None:
    command = [sys.executable, "-m", "tests.integrations.login_site"]
    done = subprocess.run(command, cwd=HERE.parents[2], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["right"] == [302] * 14
    assert answers["used_by_right"] == 0
    assert answers["wrong"] == [200] * 6 + [429]
    assert answers["used_by_wrong"] == [6, 6]
    assert answers["locked"] == 429


@pytest.fixture(autouse=True)
def _no_attempt() -> Iterator[None]:
    """Forget the attempt of the test before, whose store is another one."""
    login.forget_attempt()
    yield
    login.forget_attempt()
