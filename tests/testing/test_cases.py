"""Test cases of unittest, of each kind that Django has, run as users run them."""

from __future__ import annotations

import unittest
from unittest import IsolatedAsyncioTestCase, TestCase, defaultTestLoader

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, SimpleTestCase, TransactionTestCase
from django.test import TestCase as DatabaseTestCase
from django.urls import path
from pytest_django import Settings

from limits_app import CallLimit, limited, services
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock, LimitsMixin, disable_limits, freeze_limits, fresh_limits, override_limits
from tests.opened import put_store


@limited("pages")
def page(request: HttpRequest) -> HttpResponse:
    """A view that is limited."""
    return HttpResponse("fine")


@override_limits("pages", CallLimit(1, 60))
class Pages(LimitsMixin, SimpleTestCase):
    """One call in a minute, whichever test comes first."""

    __test__ = False

    def ask(self) -> HttpResponse:
        return page(RequestFactory().get("/"))

    def test_first(self) -> None:
        self.assertNotLimited(self.ask())
        self.assertLimited(self.ask(), retry_after=60)
        self.limits_clock.advance(60)
        self.assertNotLimited(self.ask())

    def test_second(self) -> None:
        self.test_first()

    @override_limits("pages", CallLimit(2, 60))
    def test_that_has_its_own(self) -> None:
        self.assertNotLimited(self.ask())
        self.assertNotLimited(self.ask())
        self.assertLimited(self.ask())

    @disable_limits()
    def test_without_any(self) -> None:
        for _ in range(5):
            self.assertNotLimited(self.ask())

    async def test_of_a_coroutine(self) -> None:
        assert await services.atry_acquire("pages")
        assert not await services.atry_acquire("pages")

    @disable_limits("pages")
    async def test_of_a_decorated_coroutine(self) -> None:
        assert await services.atry_acquire("pages")
        assert await services.atry_acquire("pages")


@override_limits("pages", CallLimit(1, 60))
@freeze_limits(attr_name="time")
class Decorated(SimpleTestCase):
    """The same, without the mixin."""

    __test__ = False
    time: FakeClock

    def test_first(self) -> None:
        assert services.try_acquire("pages")
        assert not services.try_acquire("pages")
        self.time.advance(60)
        assert services.try_acquire("pages")

    def test_second(self) -> None:
        self.test_first()


def ran(case: type[TestCase]) -> unittest.TestResult:
    """What comes of a test case."""
    result = unittest.TestResult()
    defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


def with_base(base: type[TestCase]) -> type[TestCase]:
    """The same tests in another kind of test case."""
    return type(
        base.__name__, (LimitsMixin, base), {name: value for name, value in vars(Pages).items() if name != "__dict__"}
    )


@pytest.mark.parametrize("case", [Pages, Decorated], ids=["mixin", "decorators"])
def test_each_test_of_a_case_begins_again(case: type[TestCase]) -> None:
    result = ran(case)
    assert result.testsRun >= 2
    assert result.wasSuccessful(), result.failures + result.errors


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("base", [DatabaseTestCase, TransactionTestCase, IsolatedAsyncioTestCase])
def test_it_goes_with_every_test_case(base: type[TestCase]) -> None:
    result = ran(with_base(base))
    assert result.testsRun >= 5
    assert result.wasSuccessful(), result.failures + result.errors


def test_a_failed_assertion_is_a_failure_of_the_test() -> None:
    class Failing(LimitsMixin, SimpleTestCase):
        def test_it(self) -> None:
            self.assertLimited(HttpResponse())

    [(_, text)] = ran(Failing).failures
    assert "expected a refusal (429), got 200" in text


@fresh_limits()
class Unlimited(SimpleTestCase):
    """Tests of a site whose middleware asks for endpoints, where the database may not be asked."""

    __test__ = False

    def test_a_page_without_limits(self) -> None:
        assert self.client.get("/plain/").status_code == 200

    @override_limits("pages", CallLimit(1, 60))
    def test_a_page_with_limits(self) -> None:
        assert [self.client.get("/page/").status_code for _ in range(2)] == [200, 429]
        assert self.client.get("/plain/").status_code == 200


@override_limits("pages", CallLimit(1, 60))
class Overridden(LimitsMixin, SimpleTestCase):
    """The same, with the mixin."""

    __test__ = False

    def test_a_page_with_limits(self) -> None:
        self.assertNotLimited(self.client.get("/page/"))
        self.assertLimited(self.client.get("/page/"))


@pytest.fixture
def site(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site with the middleware, a limited page and one that is not, and a store that nobody else has used."""
    put_store(monkeypatch, MemoryStore())
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "limits_app.integrations.middleware.LimitsMiddleware",
    ]
    settings.ROOT_URLCONF = (path("page/", page), path("plain/", lambda request: HttpResponse("plain")))


@pytest.mark.parametrize("case", [Unlimited, Overridden], ids=["decorators", "mixin"])
def test_no_endpoints_apply_without_database_access(site: None, case: type[TestCase]) -> None:
    result = ran(case)
    assert result.testsRun >= 1
    assert result.wasSuccessful(), result.failures + result.errors


def test_that_goes_for_pytest_too(site: None) -> None:
    with override_limits("pages", CallLimit(1, 60)):
        assert [Client().get("/page/").status_code for _ in range(2)] == [200, 429]


def test_a_test_without_database_access_gets_an_error(site: None) -> None:
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        Client().get("/plain/")
