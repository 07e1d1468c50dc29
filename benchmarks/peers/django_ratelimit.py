"""django-ratelimit: the check under its decorator, over Django's local memory cache."""

from __future__ import annotations

from benchmarks import django_site
from benchmarks.harness import Contender

__all__ = ["admitted", "refused"]


def admitted() -> list[Contender]:
    """One rate per address."""
    return [_contender("1000000/h", limited=False)]


def refused() -> list[Contender]:
    """A rate that is used up."""
    return [_contender("1/d", limited=True)]


def _contender(rate: str, *, limited: bool) -> Contender:
    django_site.configure()
    from django.test import RequestFactory
    from django_ratelimit.core import is_ratelimited  # type: ignore[import-untyped]

    request = RequestFactory().get("/")

    def once() -> object:
        return is_ratelimited(request, group="bench", key="ip", rate=rate, increment=True)

    once()
    assert once() is limited
    return Contender("django-ratelimit, local memory cache", once)
