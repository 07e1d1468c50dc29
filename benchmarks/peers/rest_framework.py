"""Django REST framework: a throttle for users over the local memory cache, made anew for each request as views do."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from benchmarks import django_site
from benchmarks.harness import Contender

__all__ = ["admitted", "refused", "with_hits"]

_NAME = "DRF throttle, local memory cache"


def admitted() -> list[Contender]:
    """A throttle with few requests in its history."""
    return with_hits(10)


def with_hits(count: int) -> list[Contender]:
    """A throttle with a history."""
    once = _check("1000000/hour")

    def prepare() -> None:
        _forget()
        for _ in range(count - 5):
            once()

    assert once()
    return [Contender(_NAME, once, prepare, slice_calls=10)]


def refused() -> list[Contender]:
    """A throttle whose rate is used up."""
    once = _check("1/day")

    def prepare() -> None:
        _forget()
        once()

    prepare()
    assert not once()
    return [Contender(_NAME, once, prepare, slice_calls=1_000)]


def _check(per_user: str) -> Callable[[], bool]:
    django_site.configure()
    from django.test import RequestFactory
    from rest_framework.request import Request
    from rest_framework.throttling import UserRateThrottle
    from rest_framework.views import APIView

    class Throttle(UserRateThrottle):
        rate = per_user

    request, view = Request(RequestFactory().get("/")), APIView()
    request.user = SimpleNamespace(pk=42, is_authenticated=True)  # type: ignore[assignment]  # all that it looks at
    return lambda: bool(Throttle().allow_request(request, view))


def _forget() -> None:
    from django.core.cache import cache

    cache.clear()
