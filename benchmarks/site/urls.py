"""The view of the site, in several forms; packages are imported only for the form that needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from benchmarks.site import UNMATCHED_PATH


def plain(_request: HttpRequest, **_parameters: int) -> HttpResponse:
    """Answer without limits."""
    return HttpResponse("fine")


def _ratelimit() -> Any:
    from django_ratelimit.decorators import ratelimit

    return ratelimit(key="user", rate="100000000/h")(plain)


def _api(*throttles: type) -> Any:
    from rest_framework.response import Response
    from rest_framework.views import APIView

    class View(APIView):
        throttle_classes = throttles

        def get(self, _request: Any, **_parameters: int) -> Response:
            return Response("fine")

    return View.as_view()


def _their_throttle() -> Any:
    from rest_framework.throttling import UserRateThrottle

    return _api(UserRateThrottle)


def _our_throttle() -> Any:
    from limits_app.integrations.drf.rates import UserRateThrottle

    return _api(UserRateThrottle)


def _admin() -> Any:
    from django.contrib import admin

    urlpatterns.append(path("admin/", admin.site.urls))
    return plain


_VIEWS: Final[Mapping[str, Callable[[], Any]]] = {
    "plain": lambda: plain,
    "ratelimit": _ratelimit,
    "api": _api,
    "their throttle": _their_throttle,
    "our throttle": _our_throttle,
    "admin": _admin,
}

urlpatterns: list[Any] = []
_VIEW: Final = _VIEWS[settings.SITE.view]()
urlpatterns += [path("page/<int:number>/", _VIEW), path(UNMATCHED_PATH.removeprefix("/"), _VIEW)]
