"""Assertions about responses, and a mixin for test cases of unittest."""

from __future__ import annotations

from http import HTTPStatus
from unittest import TestCase

from django.http.response import HttpResponseBase

from limits_app.testing.clock import FakeClock
from limits_app.testing.isolation import freeze_limits


def assert_limited(response: HttpResponseBase, *, retry_after: int | None = None) -> None:
    """Fail unless a response is rate limited (429) and not cacheable; `retry_after` is the value of its header."""
    status = response.status_code
    assert status == HTTPStatus.TOO_MANY_REQUESTS, f"expected a refusal (429), got {status}"
    assert "no-store" in response.headers.get("Cache-Control", ""), "a refusal must say Cache-Control: no-store"
    if retry_after is not None:
        announced = response.headers.get("Retry-After")
        assert announced == str(retry_after), f"expected Retry-After: {retry_after}, got {announced}"


def assert_not_limited(response: HttpResponseBase) -> None:
    """Fail when a response is rate limited (429)."""
    announced = response.headers.get("Retry-After")
    assert response.status_code != HTTPStatus.TOO_MANY_REQUESTS, f"refused (429), with Retry-After: {announced}"


class LimitsMixin(TestCase):
    """Gives each test unused limits, whose time changes only by `self.limits_clock`.

    List it before the base class of the test case.
    """

    limits_clock: FakeClock

    def setUp(self) -> None:
        """Begin a test."""
        super().setUp()
        self.limits_clock = self.enterContext(freeze_limits())

    def assertLimited(self, response: HttpResponseBase, *, retry_after: int | None = None) -> None:  # noqa: N802 - as unittest has it
        """See `assert_limited`."""
        assert_limited(response, retry_after=retry_after)

    def assertNotLimited(self, response: HttpResponseBase) -> None:  # noqa: N802 - as unittest has it
        """See `assert_not_limited`."""
        assert_not_limited(response)
