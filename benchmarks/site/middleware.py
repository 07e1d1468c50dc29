"""Who sends a request."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase

from benchmarks.site import USER_HEADER

__all__ = ["identify"]


def identify(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Let the header of a request name its user, without a query."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        request.user = User(pk=int(request.headers[USER_HEADER]))
        return get_response(request)

    return middleware
