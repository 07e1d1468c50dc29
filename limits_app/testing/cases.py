"""For tests that are classes of unittest."""

from __future__ import annotations

from unittest import TestCase

from django.http.response import HttpResponseBase

from limits_app.testing.assertions import assert_limited, assert_not_limited
from limits_app.testing.clock import FakeClock
from limits_app.testing.isolation import freeze_limits

__all__ = ["LimitsMixin"]


class LimitsMixin(TestCase):
    """Gives each test unused limits, whose time changes only by `self.limits_clock`.

    It goes before the test case of Django that is used, whichever that is.
    """

    limits_clock: FakeClock

    def setUp(self) -> None:
        """Begin a test."""
        super().setUp()
        self.limits_clock = self.enterContext(freeze_limits())

    def assertLimited(self, response: HttpResponseBase, *, retry_after: int | None = None) -> None:  # noqa: N802 - as unittest has it
        """Fail unless a response is a refusal, and says to come back in `retry_after` seconds."""
        assert_limited(response, retry_after=retry_after)

    def assertNotLimited(self, response: HttpResponseBase) -> None:  # noqa: N802 - as unittest has it
        """Fail when a response is a refusal."""
        assert_not_limited(response)
