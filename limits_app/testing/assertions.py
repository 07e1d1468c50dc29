"""Assertions about responses, a mixin for test cases of unittest, and using up what a limit has."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Any
from unittest import TestCase

from django.http.response import HttpResponseBase

from limits_app import services
from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import UNLIMITED, Amount, is_currency
from limits_app.engine.errors import NeverAdmissible
from limits_app.engine.outcome import TOTAL_PREFIX, Outcome
from limits_app.integrations.identity import entity_of_user
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


def exhaust(resource: str, *, entity: Any = None, keys: Collection[str] | None = None) -> Acquisition:
    """Take all that is left of the limits on a resource, or of some of them, by key, and say that it was used.

    `entity` is an identifier, or a user; None is the site itself. Permits are held until the acquisition is released,
    at the end of its block where it has one. It is falsy when there was nothing to take, since everything is blocked.
    Raises TypeError for an anonymous user: anonymous requests are charged to an entity of the request.
    """
    name = entity if entity is None or isinstance(entity, str) else _name_of(entity)
    most: dict[str, Amount] = {}

    def all_that_is_left(limits: LimitSet) -> dict[str, Amount]:
        for name, stats in limits.get_stats().items():
            if stats["type"] == UNLIMITED:
                continue
            key = name.removeprefix(TOTAL_PREFIX)
            available = stats["available"] if keys is None or key in keys else 0
            left: Amount = available if isinstance(available, int | float) else 0
            left = left if is_currency(key) else int(left)
            most[key] = min(most.get(key, left), left)
        return most

    while True:
        before = dict(most)
        try:
            acquisition = services.try_acquire(resource, entity=name, requested=all_that_is_left)
        except NeverAdmissible as error:
            _lower(most, error.outcome)
            continue
        if acquisition or before == most:
            break
        _lower(most, acquisition.outcome)
    if acquisition:
        uses = acquisition.acquisitions
        acquisition.update({key: uses[key].requested for key in acquisition.shape.must_report})
    return acquisition


def _name_of(user: Any) -> str:
    name = entity_of_user(user) if hasattr(user, "is_authenticated") else None
    if name is None:
        raise TypeError(
            f"entity of exhaust must be a saved user, text such as 'ip:192.0.2.7' for a visitor, or None for the site; "
            f"got {user!r}"
        )
    return name


def _lower(most: dict[str, Amount], outcome: Outcome) -> None:
    """Ask no more than those have left that refused: several scopes may limit the same key."""
    for status in outcome.violations:
        most[status.key] = min(most[status.key], int(status.remaining))
