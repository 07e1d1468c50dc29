"""Requests about resources that are counted in another store than the default one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from limits_app import services
from limits_app.core.limits import CallLimit
from limits_app.integrations.decorators import limited
from limits_app.integrations.request import limits_of
from limits_app.models import Resource
from tests.integrations.rest import throttle, view_of
from tests.integrations.site import Ask, endpoint, fine, limit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def far(settings: Settings, tmp_path: Path) -> Resource:
    """A resource that the process store counts, beside one in memory."""
    shared = {"KIND": "process", "STATE_DIR": str(tmp_path), "MAP_MEGABYTES": 4}
    settings.LIMITS = {**settings.LIMITS, "STORES": settings.LIMITS["STORES"] | {"shared": shared}}
    far = limit("far", CallLimit(2, 60))
    far.store = "shared"
    far.save()
    limit("near", CallLimit(2, 60))
    return far


def codes(ask: Ask, times: int = 3, **who: str) -> list[int]:
    return [ask(**who).status_code for _ in range(times)]


def test_endpoints_are_enforced_there_and_changes_of_them_count_at_once(serve: Any, ask: Ask, far: Resource) -> None:
    serve({"": fine})
    rule = endpoint(far)
    assert codes(ask) == [200, 200, 429]
    services.set_resource_limits("far", [CallLimit(4, 60)])
    assert codes(ask) == [200, 200, 429]
    rule.resource = Resource.objects.get(name="near")
    rule.save()
    assert codes(ask) == [200, 200, 429]


def test_decorators_and_throttles_charge_there(serve: Any, ask: Ask) -> None:
    serve({"": limited("far")(fine), "rest/": view_of(throttle("far"))})
    assert codes(ask) == [200, 200, 429]
    assert [ask("/rest/", who="bob").status_code for _ in range(3)] == [200, 200, 429]


def test_who_is_refused_in_one_store_gets_back_what_the_other_took(serve: Any, ask: Ask) -> None:
    serve({"": limited("near")(limited("far")(fine))})
    assert codes(ask) == [200, 200, 429]
    assert [one["used"] < 2.5 for one in services.status("near", entity="ann").limits.values()] == [True]


def test_an_outage_affects_one_store(serve: Any, ask: Ask, far: Resource, take_down: Any) -> None:
    def tell(request: Any) -> Any:
        response = fine(request)
        response["X-Degraded"] = str(limits_of(request).degraded)
        return response

    serve({"": tell, "near/": limited("near")(fine)})
    endpoint(far)
    take_down()
    answers = [ask(who="bob") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer["X-Degraded"] for answer in answers[:2]] == ["False", "False"]
    assert ask("/near/").status_code == 503


def test_throttles_of_one_view_may_be_counted_in_several_stores(serve: Any, ask: Ask) -> None:
    serve({"": view_of(throttle("near"), throttle("far")), "far/": view_of(throttle("far"))})
    assert codes(ask) == [200, 200, 429]
    services.set_resource_limits("near", [CallLimit(9, 60)])
    assert codes(ask) == [429] * 3
    assert ask("/far/").status_code == 429
