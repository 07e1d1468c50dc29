"""Adds the id of the server process to each response, to show that several processes share limits."""

import os
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Final, cast

from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

__all__ = ["PROCESS_HEADER", "tell_process"]

PROCESS_HEADER: Final = "X-Demo-Process"

Sync = Callable[[HttpRequest], HttpResponseBase]
Async = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def tell_process(get_response: Sync | Async) -> Sync | Async:
    """Add the id of this process to all responses, also rejections."""
    if iscoroutinefunction(get_response):

        async def tell_later(request: HttpRequest) -> HttpResponseBase:
            return _told(await cast(Async, get_response)(request))

        return tell_later

    def tell(request: HttpRequest) -> HttpResponseBase:
        return _told(cast(Sync, get_response)(request))

    return tell


def _told(response: HttpResponseBase) -> HttpResponseBase:
    response[PROCESS_HEADER] = str(os.getpid())
    return response
