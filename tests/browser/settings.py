"""The demo site with a content security policy: what does not come from the site itself is not run and not shown."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from project.settings import *  # noqa: F403 - settings are what its names are
from project.settings import MIDDLEWARE as _MIDDLEWARE

MIDDLEWARE = ["tests.browser.settings.restrict", *_MIDDLEWARE]


def restrict(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Forbid scripts and styles inside pages, and everything from elsewhere."""

    def restricted(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return restricted
