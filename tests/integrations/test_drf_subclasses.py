"""Throttle classes that override something of the framework's: the same answers from a subclass of ours."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rest_framework import throttling
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle, SimpleRateThrottle
from rest_framework.views import APIView

from limits_app import services
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limits import CallLimit, RateLimit
from limits_app.integrations.drf import rates
from limits_app.integrations.drf.errors import Unavailable
from limits_app.stores import registry
from limits_app.testing import FakeClock
from tests.integrations.rest import RATES, ask, of, statuses, view_of
from tests.integrations.site import limit

pytestmark = pytest.mark.django_db(transaction=True)


def subclass(module: ModuleType, name: str = "UserRateThrottle", **attributes: Any) -> Any:
    """A throttle class with a rate, and a scope of its own."""
    return of(module, name, **{"scope": "own", "rate": "3/min"} | attributes)


# ---------------------------------------------------------------- allow_request


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


def test_what_is_asked_after_a_refusal_is_counted_once(module: ModuleType) -> None:
    class Never(BaseThrottle):
        def allow_request(self, request: object, view: object) -> bool:
            return False

    first, last = subclass(module), subclass(module, scope="other")
    alone = exempting(module, scope="third", rate="1/min")
    statuses(view_of(first, alone, last), 2)
    assert statuses(view_of(last), 3) == [200, 429, 429]
    assert statuses(view_of(first, Never), 2) == [429, 429]


def test_a_throttle_may_go_on_after_the_usual_decision(module: ModuleType) -> None:
    seen = []

    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        allowed = super(kind, self).allow_request(request, view)
        seen.append((allowed, self.num_requests - len(self.history), self.history[-1] + self.duration - self.now))
        return bool(allowed and "X-Bad" not in request.headers)

    kind = subclass(module, allow_request=allow_request)
    view = view_of(kind)
    assert [*statuses(view, 3), *statuses(view, 1, headers={"X-Bad": "1"})] == [200, 200, 200, 429]
    assert seen == [(True, 2, 60), (True, 1, 60), (True, 0, 60), (False, 0, 60)]


def test_the_history_shrinks_as_time_goes_by(module: ModuleType, clock: FakeClock) -> None:
    seen = []

    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        allowed = super(kind, self).allow_request(request, view)
        seen.append((len(self.history), round(self.history[-1] + self.duration - self.now), self.key))
        return bool(allowed)

    kind = subclass(module, allow_request=allow_request)
    view = view_of(kind)
    for wait in (0, 20, 20, 10, 15):
        clock.advance(wait)
        ask(view)
    key = "throttle_own_127.0.0.1"
    assert seen == [(1, 60, key), (2, 40, key), (3, 20, key), (3, 10, key), (3, 15, key)]


def test_a_throttle_may_refuse_what_the_rate_allows_and_says_how_fast_to_go_on(module: ModuleType) -> None:
    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        super(kind, self).allow_request(request, view)
        return False

    kind = subclass(module, allow_request=allow_request)
    refused = ask(view_of(kind))
    assert (refused.status_code, refused["Retry-After"]) == (429, "20")  # 60 seconds for the 3 that are allowed


def test_a_throttle_may_count_in_its_own_way(module: ModuleType) -> None:
    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        self.key, self.now = self.get_cache_key(request, view), self.timer()
        self.history = self.cache.get(self.key, [])
        return bool(self.throttle_failure() if len(self.history) >= 2 else self.throttle_success())

    view = view_of(subclass(module), subclass(module, scope="other", rate="2/min", allow_request=allow_request))
    assert statuses(view, 4) == [200, 200, 429, 429]
    assert ask(view)["Retry-After"] == "60"


def test_the_history_is_not_known_before_anybody_was_asked(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match="history"):
        assert subclass(module)().history


def test_one_throttle_may_be_asked_several_times(module: ModuleType, clock: FakeClock) -> None:
    throttle, view = subclass(module, rate="2/min")(), APIView()
    seen = []
    for _ in range(3):
        request = view.initialize_request(APIRequestFactory().get("/"))
        seen.append((throttle.allow_request(request, view), len(throttle.history), throttle.wait()))
        clock.advance(10)
    assert seen == [(True, 1, 30), (True, 2, 50), (False, 2, 40)]


def test_a_view_may_ask_another_throttle_after_one_has_refused(module: ModuleType) -> None:
    soft, hard = subclass(module, rate="1/min"), subclass(module, scope="other", rate="2/min")

    def get(self: APIView, request: Request) -> Response:
        return Response([kind().allow_request(request, self) for kind in (soft, hard)])

    view = view_of(get=get)
    assert [ask(view).data for _ in range(3)] == [[True, True], [False, True], [False, False]]


# ---------------------------------------------------------------- hooks


def test_a_class_is_told_of_its_refusals_alone(module: ModuleType) -> None:
    told = []

    def telling(name: str) -> Any:
        return lambda self: bool(told.append(name))

    wide, narrow = (subclass(module, scope=n, rate=n, throttle_failure=telling(n)) for n in ("3/min", "1/min"))
    view = view_of(wide, narrow)
    assert statuses(view, 2) == [200, 429]
    assert told == ["1/min"]


def test_a_class_may_let_pass_what_it_would_refuse(module: ModuleType) -> None:
    view = view_of(subclass(module, rate="1/min", throttle_failure=lambda self: True))
    assert statuses(view, 3) == [200] * 3


def test_a_class_may_refuse_in_its_own_words(module: ModuleType) -> None:
    def throttle_failure(self: Any) -> bool:
        raise Throttled(self.wait(), f"{len(self.history)} are enough.")

    view = view_of(subclass(module, throttle_failure=throttle_failure), subclass(module, scope="other", rate="9/min"))
    assert statuses(view, 3) == [200] * 3
    refused = ask(view)
    assert (refused["Retry-After"], str(refused.data["detail"])[:13]) == ("60", "3 are enough.")


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside_another"])
def test_a_class_may_leave_a_request_uncounted(others: bool, module: ModuleType) -> None:
    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        self.method = request.method
        return bool(super(kind, self).allow_request(request, view))

    def throttle_success(self: Any) -> bool:
        return self.method == "GET" or super(kind, self).throttle_success()

    kind = subclass(module, allow_request=allow_request, throttle_success=throttle_success)
    view = view_of(*[subclass(module, scope="other", rate="99/min")] * others, kind)
    assert statuses(view, 9) == [200] * 9
    seen = [view(APIRequestFactory().post("/")).status_code for _ in range(4)]
    assert seen == [200, 200, 200, 429]
    assert statuses(view, 1) == [429]


def test_a_class_may_count_a_request_several_times(module: ModuleType) -> None:
    def throttle_success(self: Any) -> bool:
        for _ in range(2):
            self.history.insert(0, self.now)
        self.cache.set(self.key, self.history, self.duration)
        return True

    view = view_of(subclass(module, rate="4/min", throttle_success=throttle_success))
    assert statuses(view, 3) == [200, 200, 429]


def test_a_class_may_have_the_last_word(module: ModuleType) -> None:
    view = view_of(subclass(module, throttle_success=lambda self: False))
    assert statuses(view, 1) == [429]


def test_no_class_is_told_of_a_success_without_a_rate(module: ModuleType) -> None:
    view = view_of(of(module, "UserRateThrottle", scope="free", throttle_success=lambda self: False))
    assert statuses(view, 1) == [200]


# ---------------------------------------------------------------- rates and keys


def test_a_rate_of_zero_says_to_wait_for_the_period(module: ModuleType) -> None:
    refused = ask(view_of(subclass(module, rate="0/min")))
    assert (refused.status_code, refused["Retry-After"]) == (429, "60")


def test_less_than_nothing_is_nothing(module: ModuleType) -> None:
    assert statuses(view_of(subclass(module, parse_rate=lambda *_: (-1, 60))), 2) == [429, 429]


def test_rates_may_be_read_by_a_class_beside(module: ModuleType) -> None:
    class Generous(SimpleRateThrottle):
        def parse_rate(self, rate: str | None) -> tuple[int | None, int | None]:
            requests, seconds = super().parse_rate(rate)
            return (requests or 0) + 1, seconds

    kind = type("Beside", (module.UserRateThrottle, Generous), {"scope": "own", "rate": "1/min"})
    assert statuses(view_of(kind), 3) == [200, 200, 429]


def test_rates_may_be_read_by_a_class_beside_one_that_is_not_told_of_its_subclasses(module: ModuleType) -> None:
    class Generous(SimpleRateThrottle):
        def parse_rate(self, rate: str | None) -> tuple[int | None, int | None]:
            return 2, 60

    class Registry(module.UserRateThrottle):  # type: ignore[name-defined, misc]
        def __init_subclass__(cls) -> None:
            """As many registries do, without telling those above."""

    kind = type("Beside", (Registry, Generous), {"scope": "own", "rate": "1/min"})
    assert statuses(view_of(kind), 3) == [200, 200, 429]


def test_a_rate_may_be_whatever_a_class_beside_reads(module: ModuleType) -> None:
    class Pair(SimpleRateThrottle):
        def parse_rate(self, rate: Any) -> tuple[int | None, int | None]:
            return rate[0], rate[1]

    kind = type("Beside", (module.UserRateThrottle, Pair), {"scope": "own", "rate": [2, 60]})
    assert statuses(view_of(kind), 3) == [200, 200, 429]


@pytest.mark.parametrize("view", [None, Mock(), SimpleNamespace(throttle_classes=None), APIView()])
def test_a_throttle_may_be_asked_with_anything_in_the_place_of_a_view(module: ModuleType, view: Any) -> None:
    kind, asking = subclass(module, rate="1/min"), APIRequestFactory()
    assert [kind().allow_request(Request(asking.get("/")), view) for _ in range(2)] == [True, False]


def test_rates_are_read_as_the_framework_reads_them_now(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(subclass(module, rate="3/min"))
    assert statuses(view, 1) == [200]
    monkeypatch.setattr(throttling.SimpleRateThrottle, "parse_rate", lambda _, rate: (int(rate[0]) - 1, 60))
    assert statuses(view, 2) == [200, 429]


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


def test_keys_of_another_form_are_counted_apart(module: ModuleType) -> None:
    first, second = subclass(module), subclass(module, cache_format="other_%(scope)s_%(ident)s")
    assert [statuses(view_of(kind), 4) for kind in (first, second)] == [[200, 200, 200, 429]] * 2
    assert [statuses(view_of(kind), 4, person=1) for kind in (first, second)] == [[200, 200, 200, 429]] * 2


@pytest.mark.parametrize("person", [None, 1], ids=["visitor", "user"])
def test_visitors_may_have_keys_of_another_form(person: int | None, module: ModuleType) -> None:
    view = view_of(subclass(module, "AnonRateThrottle", cache_format="other_%(scope)s_%(ident)s"))
    assert statuses(view, 4, person) == [200, 200, 200, 200 if person else 429]


def test_a_scope_may_be_chosen_where_the_framework_is_passed_over(module: ModuleType) -> None:
    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        self.scope = view.scopes.get(request.method)
        if not self.scope:
            return True
        self.rate = self.get_rate()
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return bool(super(module.ScopedRateThrottle, self).allow_request(request, view))

    kind = of(module, "ScopedRateThrottle", allow_request=allow_request)
    view = view_of(kind, subclass(module), scopes={"GET": "burst"})
    assert statuses(view, 3) == [200, 200, 429]


def test_a_scope_of_a_view_beside_other_throttles(module: ModuleType) -> None:
    view = view_of(subclass(module), module.ScopedRateThrottle, throttle_scope="burst")
    assert statuses(view, 3) == [200, 200, 429]
    assert statuses(view_of(module.ScopedRateThrottle, throttle_scope="burst"), 1) == [429]
    view = view_of(subclass(module, scope="other"), module.ScopedRateThrottle)
    assert statuses(view, 4) == [200, 200, 200, 429]


# ---------------------------------------------------------------- throttles that a view makes


def test_a_view_may_make_its_throttles(module: ModuleType) -> None:
    wide, narrow = subclass(module, rate="9/min"), subclass(module, scope="other", rate="2/min")
    view = view_of(wide, get_throttles=lambda self: [wide(), narrow()])
    assert statuses(view, 3) == [200, 200, 429]


def test_throttles_of_other_kinds_are_made_once(module: ModuleType) -> None:
    made = []

    class Open(BaseThrottle):
        def __init__(self) -> None:
            made.append(self)

        def allow_request(self, request: object, view: object) -> bool:
            return True

    def anything() -> BaseThrottle:
        return Open()

    view = view_of(Open, subclass(module), anything, subclass(module, scope="other"))
    assert statuses(view, 2) == [200, 200]
    assert len(made) == 4


def test_the_table_of_rates_is_that_of_the_site(module: ModuleType) -> None:
    assert {**module.UserRateThrottle.THROTTLE_RATES} == RATES


# ---------------------------------------------------------------- what is ours alone


def reading(seen: list[Any], **attributes: Any) -> Any:
    """A throttle of ours that reads the history of its decisions."""

    def allow_request(self: Any, request: Request, view: APIView) -> bool:
        allowed = super(kind, self).allow_request(request, view)
        seen.append((allowed, len(self.history)))
        return bool(allowed)

    kind = subclass(rates, allow_request=allow_request, **attributes)
    return kind


def test_the_history_is_as_long_as_what_is_left_lets_the_rate_be() -> None:
    seen: list[Any] = []
    view = view_of(reading(seen))
    limit("own", CallLimit(2, 60))
    statuses(view, 3)
    services.set_resource_limits("own", [RateLimit("tokens", 9, 60)])
    statuses(view, 1)
    assert seen == [(True, 2), (True, 3), (False, 3), (True, 0)]


def test_there_is_no_history_where_nothing_is_counted() -> None:
    seen: list[Any] = []
    statuses(view_of(reading(seen, rate=None, get_rate=lambda self: None)), 1)
    statuses(view_of(reading(seen, get_cache_key=lambda *_: None)), 1)
    assert seen == [(True, 0), (True, 0)]


def test_nor_while_the_store_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise StoreUnavailable("connection refused")

    throttle, view = subclass(rates, throttle_success=lambda self: True)(), APIView()
    request = view.initialize_request(APIRequestFactory().get("/"))
    for verb in ("acquire", "version", "peek"):
        monkeypatch.setattr(registry.store(), verb, unreachable)
    with pytest.raises(Unavailable):
        throttle.allow_request(request, view)
    assert throttle.history == []


def test_a_class_with_hooks_may_charge_nobody_and_what_can_never_be_paid_is_422() -> None:
    def throttle_success(self: Any) -> bool:
        raise AssertionError("nobody was counted")

    hooked = {"throttle_success": throttle_success}
    assert statuses(view_of(subclass(rates, get_cache_key=lambda *_: None, **hooked)), 1) == [200]
    assert statuses(view_of(subclass(rates, cost=4, **hooked)), 1) == [422]


def test_a_refusal_that_says_nothing_has_nothing_to_say_of_waiting() -> None:
    assert not ask(view_of(subclass(rates, allow_request=lambda *_: False))).has_header("Retry-After")
