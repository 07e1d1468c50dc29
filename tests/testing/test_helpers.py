"""Exhausting limits, and what is asserted of responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpResponse, JsonResponse

from limits_app import services
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.models import Entity
from limits_app.testing import FakeClock, assert_limited, assert_not_limited, exhaust, freeze_limits, override_limits


@pytest.fixture(autouse=True)
def clock() -> Iterator[FakeClock]:
    """State and time of its own for each test."""
    with freeze_limits() as clock:
        yield clock


def left(resource: str, entity: str | None = None) -> dict[str, object]:
    """How much is left of each limit."""
    return {key: stats["available"] for key, stats in services.limit_set(resource, entity).get_stats().items()}


def test_all_that_is_left_is_taken() -> None:
    several = CallLimit(5, 60), RateLimit("tpm", 100, 60), ResourceLimit("slots", 2)
    with override_limits("llm", *several):
        services.try_acquire("llm", requested={"tpm": 7}).release()
        with exhaust("llm") as taken:
            assert taken
            assert left("llm") == {"call_count": 0, "slots": 0, "tpm": 0}
        assert left("llm") == {"call_count": 0, "slots": 2, "tpm": 0}, "permits go back with the block"


def test_some_limits_may_be_left_alone() -> None:
    with override_limits("llm", CallLimit(5, 60), RateLimit("tpm", 100, 60)):
        exhaust("llm", keys=["tpm"])
        assert left("llm") == {"call_count": 5, "tpm": 0}


def test_another_client_has_its_own_limits() -> None:
    with override_limits("api", CallLimit(5, 60)):
        exhaust("api", entity=User(pk=7))
        assert [left("api", entity) for entity in ("user:7", "user:8")] == [{"call_count": 0}, {"call_count": 5}]


@pytest.mark.parametrize("entity", [AnonymousUser(), User(), 7], ids=["logged_out", "unsaved", "no_user"])
def test_an_entity_that_is_not_a_user_does_not_exhaust_the_site(entity: object) -> None:
    with override_limits("api", CallLimit(5, 60)):
        with pytest.raises(TypeError, match=r"entity of exhaust must be a saved user.*'ip:192.0.2.7'.*None"):
            exhaust("api", entity=entity)
        assert left("api") == {"call_count": 5}


def test_exhausted_limit_may_be_exhausted_again() -> None:
    with override_limits("api", CallLimit(5, 60)):
        assert exhaust("api")
        assert exhaust("api")
        assert left("api") == {"call_count": 0}


def test_blocked_resource_cannot_be_exhausted() -> None:
    with override_limits("api", blocked=True):
        assert not exhaust("api")


@pytest.mark.django_db(transaction=True)
def test_remaining_amount_of_a_parent_counts_too() -> None:
    parent = Entity.objects.create(identifier="team")
    Entity.objects.create(identifier="ann", parent=parent, cascade=True)
    services.set_entity_limits("team", [CallLimit(3, 60)], resource="api")
    services.set_entity_limits("ann", [CallLimit(5, 60)], resource="api")
    exhaust("api", entity="ann")
    assert not services.check("api", entity="ann").allowed
    assert left("api", "team") == {"call_count": 0}


REFUSED = {"Retry-After": "30", "Cache-Control": "no-store"}


@pytest.mark.parametrize(
    ("check", "response"),
    [
        pytest.param(assert_limited, HttpResponse("fine"), id="it_was_admitted"),
        pytest.param(assert_limited, JsonResponse({}, status=429), id="a_cache_might_keep_it"),
        pytest.param(
            lambda response: assert_limited(response, retry_after=31),
            HttpResponse(status=429, headers=REFUSED),
            id="another_moment",
        ),
        pytest.param(assert_not_limited, HttpResponse(status=429, headers=REFUSED), id="it_was_refused"),
    ],
)
def test_an_assertion_fails(check: Callable[[HttpResponse], None], response: HttpResponse) -> None:
    with pytest.raises(AssertionError):
        check(response)


def test_an_assertion_holds() -> None:
    assert_limited(HttpResponse(status=429, headers=REFUSED), retry_after=30)
    assert_limited(HttpResponse(status=429, headers=REFUSED))
    assert_not_limited(HttpResponse(status=404))
