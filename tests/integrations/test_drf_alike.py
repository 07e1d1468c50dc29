"""What the REST framework documents of its throttles, asked of its classes and of ours alike, and of subclasses."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings
from rest_framework import throttling
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle, SimpleRateThrottle
from rest_framework.views import APIView

from limits_app.testing import FakeClock
from tests.integrations.rest import RATES, Members, ask, of, statuses, view_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("rate", "allowed", "seconds"), [("1/s", 1, 1), ("2/min", 2, 60), ("2/hour", 2, 3_600), ("5/day", 5, 86_400)]
)
def test_a_rate_is_enforced(rate: str, allowed: int, seconds: int, module: ModuleType, clock: FakeClock) -> None:
    view = view_of(of(module, "UserRateThrottle", rate=rate))
    assert statuses(view, allowed + 2) == [200] * allowed + [429] * 2
    clock.advance(seconds - 0.5)
    assert statuses(view, 1) == [429]
    clock.advance(0.5)
    assert statuses(view, allowed + 1) == [200] * allowed + [429]


def test_the_window_slides(module: ModuleType, clock: FakeClock) -> None:
    view = view_of(of(module, "UserRateThrottle", rate="2/min"))
    seen = []
    for wait in (0, 40, 19, 2, 38, 2):
        clock.advance(wait)
        seen += statuses(view, 1)
    assert seen == [200, 200, 429, 200, 429, 200]


def test_a_refused_request_counts_nothing(module: ModuleType, clock: FakeClock) -> None:
    view = view_of(of(module, "UserRateThrottle", rate="1/min"))
    statuses(view, 1)
    for _ in range(59):
        clock.advance(1)
        assert statuses(view, 1) == [429]
    clock.advance(1)
    assert statuses(view, 1) == [200]


USER, SCOPED, SIMPLE = "UserRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle"


@pytest.mark.parametrize(
    ("name", "attributes", "of_view", "expected"),
    [
        pytest.param(USER, {"scope": "free"}, {}, [200] * 9, id="a_rate_of_none"),
        pytest.param(USER, {"rate": "1/min"}, {}, [200, 429], id="the_rate_of_the_class_before_that_of_its_scope"),
        pytest.param(
            USER, {"rate": "2 in 10", "parse_rate": lambda *_: (2, 600)}, {}, [200, 200, 429], id="own_parser"
        ),
        pytest.param(USER, {"THROTTLE_RATES": {"user": "1/day"}}, {}, [200, 429], id="own_rates"),
        pytest.param(USER, {"get_rate": lambda _: "1/day"}, {}, [200, 429], id="a_rate_of_a_method"),
        pytest.param(
            SIMPLE, {"rate": "1/min", "scope": "own", "get_cache_key": lambda *_: None}, {}, [200] * 3, id="no_key"
        ),
        pytest.param(SCOPED, {}, {}, [200] * 5, id="no_scope"),
        pytest.param(SCOPED, {}, {"throttle_scope": ""}, [200] * 5, id="an_empty_scope"),
        pytest.param(SCOPED, {}, {"throttle_scope": None}, [200] * 5, id="a_scope_of_none"),
        pytest.param(
            SCOPED, {"scope_attr": "part"}, {"part": "uploads"}, [200, 429], id="another_attribute_for_the_scope"
        ),
    ],
)
def test_rates_and_scopes(name: str, attributes: Any, of_view: Any, expected: list[int], module: ModuleType) -> None:
    assert statuses(view_of(of(module, name, **attributes), **of_view), len(expected)) == expected


@pytest.mark.parametrize(
    ("name", "attributes", "of_view", "error", "message"),
    [
        (USER, {"scope": "nothing"}, {}, ImproperlyConfigured, "No default throttle rate set for 'nothing' scope"),
        (USER, {"scope": None}, {}, ImproperlyConfigured, r"You must set either `.scope` or `.rate`"),
        (SCOPED, {}, {"throttle_scope": "nothing"}, ImproperlyConfigured, "No default throttle rate set for 'nothing'"),
        (SIMPLE, {"rate": "1/min", "scope": "own"}, {}, NotImplementedError, "must be overridden"),
    ],
)
def test_throttles_that_are_not_complete(
    name: str, attributes: Any, of_view: Any, error: type[Exception], message: str, module: ModuleType
) -> None:
    with pytest.raises(error, match=message):
        ask(view_of(of(module, name, **attributes), **of_view))


def test_a_rate_of_zero_is_a_block_here(module: ModuleType) -> None:
    status = 429 if module is throttling else 403
    assert statuses(view_of(of(module, "UserRateThrottle", rate="0/min")), 2) == [status, status]


def test_users_are_throttled_each_by_themselves_and_visitors_by_address(module: ModuleType) -> None:
    view = view_of(module.UserRateThrottle)
    for client in ({"person": 1}, {"person": 2}, {"REMOTE_ADDR": "203.0.113.1"}, {"REMOTE_ADDR": "203.0.113.2"}):
        assert statuses(view, 4, **client) == [200, 200, 200, 429]


def test_the_throttle_for_visitors_lets_users_through(module: ModuleType) -> None:
    view = view_of(module.AnonRateThrottle)
    assert statuses(view, 5, person=1) == [200] * 5
    assert statuses(view, 3) == [200, 200, 429]


def test_throttles_of_one_scope_are_shared_by_all_views(module: ModuleType) -> None:
    views = [view_of(module.UserRateThrottle) for _ in range(4)]
    assert [ask(view, 1).status_code for view in views] == [200, 200, 200, 429]
    assert statuses(view_of(of(module, "UserRateThrottle", scope="burst")), 3, person=1) == [200, 200, 429]


def test_a_request_that_is_turned_away_before_is_not_counted(module: ModuleType) -> None:
    view = view_of(of(module, "UserRateThrottle", rate="1/min"), permission_classes=[Members])
    assert statuses(view, 3) == [403, 403, 403]
    assert statuses(view, 2, person=1) == [200, 429]


@pytest.mark.parametrize("key", ["everybody", "device-7", "x" * 400, "\N{ROCKET}"])
def test_a_throttle_class_may_override_the_identity(key: str, module: ModuleType) -> None:
    view = view_of(of(module, "SimpleRateThrottle", rate="2/min", scope="own", get_cache_key=lambda *_: key[:200]))
    assert statuses(view, 1, person=1) + statuses(view, 2, person=2) == [200, 200, 429]


def test_a_class_may_find_the_client_in_its_own_way(module: ModuleType) -> None:
    def by_device(self: object, request: Any) -> str:
        return str(request.headers.get("X-Device", ""))

    view = view_of(of(module, "AnonRateThrottle", get_ident=by_device))
    assert statuses(view, 3, headers={"X-Device": "a"}) == [200, 200, 429]
    assert statuses(view, 1, headers={"X-Device": "b"}) == [200]


def test_a_view_names_its_scope_and_shares_it_with_the_views_of_the_same_scope(module: ModuleType) -> None:
    first, second, other = (
        view_of(module.ScopedRateThrottle, throttle_scope=scope) for scope in ("burst", "burst", "daily")
    )
    assert [ask(view, 1).status_code for view in (first, second, first)] == [200, 200, 429]
    assert statuses(other, 2, person=1) == [200, 200]
    assert statuses(second, 1, person=2) == [200]


def test_every_throttle_of_a_view_must_let_it_through(module: ModuleType, clock: FakeClock) -> None:
    view = view_of(of(module, "UserRateThrottle", scope="burst"), of(module, "UserRateThrottle", scope="daily"))
    assert statuses(view, 3) == [200, 200, 429]
    clock.advance(1)
    assert statuses(view, 3)[-1] == 429


@pytest.mark.parametrize(
    ("elapsed", "seconds"),
    [(0, "60 seconds"), (0.1, "60 seconds"), (10.5, "50 seconds"), (59, "1 second"), (59.9, "1 second")],
)
def test_retry_after_is_in_whole_seconds(elapsed: float, seconds: str, module: ModuleType, clock: FakeClock) -> None:
    view = view_of(of(module, "UserRateThrottle", rate="1/min"))
    ask(view)
    clock.advance(elapsed)
    refused = ask(view)
    assert (refused.status_code, refused["Retry-After"]) == (429, seconds.split(maxsplit=1)[0])
    assert refused.data["detail"] == f"Request was throttled. Expected available in {seconds}."
    assert refused.data["detail"].code == "throttled"


def test_of_several_waits_the_longest_is_reported(module: ModuleType) -> None:
    view = view_of(
        of(module, "UserRateThrottle", scope="short", rate="1/min"),
        of(module, "UserRateThrottle", scope="long", rate="1/hour"),
    )
    ask(view)
    assert ask(view)["Retry-After"] == "3600"


def test_a_throttle_of_another_kind_goes_along(module: ModuleType) -> None:
    class Never(BaseThrottle):
        def allow_request(self, request: object, view: object) -> bool:
            return False

        def wait(self) -> float:
            return 7

    refused = ask(view_of(module.UserRateThrottle, Never))
    assert (refused.status_code, refused["Retry-After"]) == (429, "7")


def test_wait_returns_seconds(module: ModuleType, clock: FakeClock) -> None:
    throttle, view = of(module, "AnonRateThrottle", rate="1/min")(), APIView()
    allowed = [throttle.allow_request(view.initialize_request(APIRequestFactory().get("/")), view) for _ in range(2)]
    clock.advance(20)
    assert allowed == [True, False]
    assert throttle.wait() == 60


def test_the_methods_of_a_view_count_together(module: ModuleType) -> None:
    view = view_of(of(module, "UserRateThrottle", rate="2/min"))
    seen = [view(getattr(APIRequestFactory(), verb)("/")).status_code for verb in ("get", "post", "get")]
    assert seen == [200, 200, 429]


def forwarded(view: Callable[..., Any], header: str, peer: str = "203.0.113.9") -> int:
    """Ask through proxies."""
    status: int = ask(view, headers={"X-Forwarded-For": header}, REMOTE_ADDR=peer).status_code
    return status


@pytest.mark.parametrize(
    ("proxies", "first", "second", "same"),
    [
        pytest.param(1, "198.51.100.1", "198.51.100.1", True, id="one_proxy_and_one_client"),
        pytest.param(1, "198.51.100.1", "198.51.100.2", False, id="one_proxy_and_two_clients"),
        pytest.param(1, "8.8.8.8, 198.51.100.1", "9.9.9.9, 198.51.100.1", True, id="what_stands_before_is_forged"),
        pytest.param(2, "198.51.100.1, 192.0.2.1", "198.51.100.1, 192.0.2.2", True, id="two_proxies"),
        pytest.param(2, "198.51.100.1, 192.0.2.1", "198.51.100.2, 192.0.2.1", False, id="two_proxies_and_two_clients"),
        pytest.param(5, "198.51.100.1, 192.0.2.1", "198.51.100.1, 192.0.2.2", True, id="fewer_than_there_should_be"),
        pytest.param(0, "198.51.100.1", "198.51.100.2", True, id="no_proxies"),
    ],
)
def test_client_is_found_by_the_number_of_proxies(
    proxies: int, first: str, second: str, same: bool, module: ModuleType, settings: Settings
) -> None:
    settings.REST_FRAMEWORK = {"NUM_PROXIES": proxies, "DEFAULT_THROTTLE_RATES": RATES}
    view = view_of(of(module, "AnonRateThrottle", rate="1/min"))
    assert (forwarded(view, first), forwarded(view, second)) == (200, 429 if same else 200)


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
def test_an_allowing_throttle_does_not_override_others(order: int, module: ModuleType) -> None:
    view = view_of(*[subclass(module), exempting(module, scope="other", rate="1/min")][::order])
    assert statuses(view, 5, headers={"X-Free": "1"}) == [200, 200, 200, 429, 429]
    assert statuses(view, 2, person=2) == [200, 429]


@pytest.mark.parametrize("order", [1, -1], ids=["after", "before"])
def test_changed_rate_of_a_request_counts(order: int, module: ModuleType) -> None:
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


def test_the_rate_may_depend_on_the_user(module: ModuleType) -> None:
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
