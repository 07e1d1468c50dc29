"""Other limits than those of the database, without asking it."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings

from limits_app import limited, limits, services
from limits_app.engine.errors import InvalidLimit, LimitExceeded
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.policies import policy_source
from limits_app.testing import assert_not_limited, disable_limits, fresh_limits, override_limits


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """State of its own for each test."""
    with fresh_limits():
        yield


def admitted(resource: str = "reports", entity: str | None = None) -> int:
    """How many of three calls are admitted."""
    return sum(bool(services.try_acquire(resource, entity=entity)) for _ in range(3))


def test_a_limit_is_another_one_within_the_block() -> None:
    with override_limits("reports", CallLimit(2, 60)):
        assert admitted() == 2
        with override_limits("reports", CallLimit(4, 60)):
            assert admitted() == 2, "what was used stays used"


def test_every_way_in_sees_it() -> None:
    @limited("reports")
    def report() -> str:
        return "report"

    with override_limits("reports", CallLimit(1, 60)):
        assert report() == "report"
        with pytest.raises(LimitExceeded):
            report()
        assert "requests: 0 of 1 left" in limits.explain("reports").text()


def test_other_threads_see_it() -> None:
    found: list[int] = []
    with override_limits("reports", CallLimit(1, 60)):
        thread = Thread(target=lambda: found.append(admitted()))
        thread.start()
        thread.join()
    assert found == [1]


def test_clients_share_compiled_limits_again_after_it() -> None:
    with override_limits("reports", CallLimit(1, 60)), override_limits("exports", CallLimit(1, 60)):
        assert not policy_source.is_database
    assert policy_source.is_database


def test_no_limits_are_no_limit() -> None:
    with override_limits("reports", CallLimit(1, 60)), override_limits("reports"):
        assert admitted() == 3


def test_everything_can_be_blocked() -> None:
    with override_limits("reports", blocked=True):
        assert admitted() == 0


def test_a_limit_may_be_meant_for_one_entity() -> None:
    with override_limits("reports", CallLimit(1, 60)), override_limits("reports", CallLimit(2, 60), entity="ann"):
        assert [admitted(entity=entity) for entity in ("ann", "bob")] == [2, 1]


def test_of_two_the_latest_counts_whichever_ends_first() -> None:
    earlier, later = override_limits("reports", CallLimit(1, 60)), override_limits("reports", CallLimit(2, 60))
    earlier.enable()
    later.enable()
    earlier.disable()
    assert admitted() == 2
    later.disable()


@pytest.mark.django_db
def test_other_resources_are_not_overridden() -> None:
    services.set_resource_limits("mails", [CallLimit(1, 60)])
    with override_limits("reports", CallLimit(2, 60)):
        assert [admitted("mails"), admitted("reports")] == [1, 2]


def test_nothing_is_limited_where_limits_are_disabled() -> None:
    with override_limits("reports", CallLimit(1, 60)), disable_limits():
        assert [admitted("reports"), admitted("mails")] == [3, 3]
        with override_limits("mails", CallLimit(1, 60)):
            assert admitted("mails") == 1, "the innermost counts"


def test_one_resource_can_be_disabled() -> None:
    both = override_limits("reports", CallLimit(1, 60)), override_limits("mails", CallLimit(1, 60))
    with both[0], both[1], disable_limits("reports"):
        assert [admitted("reports"), admitted("mails")] == [3, 1]


@pytest.mark.parametrize("wrong", [("", ()), ("a b", ()), ("x", (RateLimit("rpm", 1, 1), RateLimit("rpm", 2, 1)))])
def test_an_impossible_request_is_rejected_immediately(wrong: tuple[str, tuple[RateLimit, ...]]) -> None:
    with pytest.raises(InvalidLimit):
        override_limits(wrong[0], *wrong[1])


def test_a_site_without_a_database_answers_where_limits_are_disabled(settings: Settings) -> None:
    settings.MIDDLEWARE = ["limits_app.integrations.middleware.LimitsMiddleware"]
    settings.ROOT_URLCONF = (path("", lambda request: HttpResponse("fine")),)
    with disable_limits():
        assert_not_limited(Client().get("/"))
