"""Throttle classes that override something of the framework's: the same answers from a subclass of ours."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from tests.integrations.rest import RATES, ask, of, statuses, view_of

pytestmark = pytest.mark.django_db(transaction=True)


def subclass(module: ModuleType, name: str = "UserRateThrottle", **attributes: Any) -> Any:
    """A throttle class with a rate, and a scope of its own."""
    return of(module, name, **{"scope": "own", "rate": "3/min"} | attributes)


def exempting(module: ModuleType, **attributes: Any) -> Any:
    """A throttle that lets whoever says so through."""

    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        return "X-Free" in request.headers or super(kind, self).allow_request(request, view)

    kind = subclass(module, allow_request=allow_request, **attributes)
    return kind


def upgrading(module: ModuleType, **attributes: Any) -> Any:
    """A throttle with a higher rate for whoever says so."""

    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        if "X-Gold" in request.headers:
            self.rate = "5/min"
            self.num_requests, self.duration = self.parse_rate(self.rate)
        return bool(super(kind, self).allow_request(request, view))

    kind = subclass(module, allow_request=allow_request, **attributes)
    return kind


@pytest.mark.parametrize("order", [1, -1], ids=["after", "before"])
def test_a_throttle_that_lets_somebody_through_speaks_for_itself_alone(order: int, module: ModuleType) -> None:
    view = view_of(*[subclass(module), exempting(module, scope="other", rate="1/min")][::order])
    assert statuses(view, 5, headers={"X-Free": "1"}) == [200, 200, 200, 429, 429]
    assert statuses(view, 2, person=2) == [200, 429]


@pytest.mark.parametrize("order", [1, -1], ids=["after", "before"])
def test_a_rate_that_is_changed_on_the_way_is_what_counts(order: int, module: ModuleType) -> None:
    view = view_of(*[subclass(module, scope="other", rate="9/min"), upgrading(module)][::order])
    assert statuses(view, 6, headers={"X-Gold": "1"}) == [200] * 5 + [429]
    assert statuses(view, 4, person=2) == [200] * 3 + [429]


def test_of_two_throttles_that_decide_alone_each_counts(module: ModuleType) -> None:
    view = view_of(upgrading(module), exempting(module, scope="other", rate="2/min"), subclass(module, scope="third"))
    assert statuses(view, 3, person=1) == [200, 200, 429]
    assert statuses(view, 4, person=2, headers={"X-Free": "1"}) == [200, 200, 200, 429]
    gold = {"X-Free": "1", "X-Gold": "1"}
    assert statuses(view, 4, person=3, headers=gold) == [200, 200, 200, 429]


def test_a_throttle_may_count_in_its_own_way(module: ModuleType) -> None:
    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        self.key, self.now = self.get_cache_key(request, view), self.timer()
        self.history = self.cache.get(self.key, [])
        return bool(self.throttle_failure() if len(self.history) >= 2 else self.throttle_success())

    view = view_of(subclass(module), subclass(module, scope="other", rate="2/min", allow_request=allow_request))
    assert statuses(view, 4) == [200, 200, 429, 429]
    assert ask(view)["Retry-After"] == "60"


def test_rates_may_be_read_by_a_class_beside(module: ModuleType) -> None:
    class Generous(SimpleRateThrottle):
        def parse_rate(self, rate: str | None) -> tuple[int | None, int | None]:
            requests, seconds = super().parse_rate(rate)
            return (requests or 0) + 1, seconds

    kind = type("Beside", (module.UserRateThrottle, Generous), {"scope": "own", "rate": "1/min"})
    assert statuses(view_of(kind), 3) == [200, 200, 429]


def test_the_rate_may_depend_on_who_it_is(module: ModuleType) -> None:
    def get_cache_key(self: Any, request: Request, view: APIView) -> Any:
        if request.user.is_authenticated:
            self.num_requests, self.duration = self.parse_rate("4/min")
        return super(kind, self).get_cache_key(request, view)

    kind = subclass(module, rate="1/min", get_cache_key=get_cache_key)
    view = view_of(kind)
    assert statuses(view, 2) == [200, 429]
    assert statuses(view, 5, person=1) == [200] * 4 + [429]


def test_a_rate_may_be_taken_away_on_the_way(module: ModuleType) -> None:
    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        self.rate = None
        return bool(super(kind, self).allow_request(request, view))

    kind = subclass(module, allow_request=allow_request)
    assert statuses(view_of(kind), 5) == [200] * 5


def test_a_scope_of_a_view_beside_other_throttles(module: ModuleType) -> None:
    view = view_of(subclass(module), module.ScopedRateThrottle, throttle_scope="burst")
    assert statuses(view, 3) == [200, 200, 429]
    assert statuses(view_of(module.ScopedRateThrottle, throttle_scope="burst"), 1) == [429]
    view = view_of(subclass(module, scope="other"), module.ScopedRateThrottle)
    assert statuses(view, 4) == [200, 200, 200, 429]


def test_a_view_may_make_its_throttles(module: ModuleType) -> None:
    wide, narrow = subclass(module, rate="9/min"), subclass(module, scope="other", rate="2/min")
    view = view_of(wide, get_throttles=lambda self: [wide(), narrow()])
    assert statuses(view, 3) == [200, 200, 429]


def test_the_table_of_rates_is_that_of_the_site(module: ModuleType) -> None:
    assert {**module.UserRateThrottle.THROTTLE_RATES} == RATES
