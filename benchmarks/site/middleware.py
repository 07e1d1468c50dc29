"""Who sends a request, and which process answers it."""

from __future__ import annotations

import os
from collections.abc import Callable

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase

from benchmarks.site import PROCESS_HEADER, USER_HEADER

__all__ = ["identify"]


def identify(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Let the header of a request name its user, without a query; the response names the process."""
    process = str(os.getpid())

    def middleware(request: HttpRequest) -> HttpResponseBase:
        request.user = User(pk=int(request.headers[USER_HEADER]))
        response = get_response(request)
        response[PROCESS_HEADER] = process
        return response

    return middleware
