"""Views worth limiting: a quick one, its asynchronous twin, and two slow ones that occupy a place while they work."""

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Final

from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.shortcuts import render
from django.views.decorators.http import require_GET

from project.demo.seed import USERS

__all__ = ["aping", "export", "index", "ping", "stream"]

MAX_MS: Final = 30_000
_MS_BETWEEN_ROWS: Final = 20


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    """Say what there is to try."""
    site = request.build_absolute_uri("/").rstrip("/")
    return render(request, "demo/index.html", {"pid": os.getpid(), "site": site, "users": USERS})


@require_GET
def ping(request: HttpRequest) -> JsonResponse:
    """Answer at once, and say which process did."""
    return JsonResponse({"pong": True, "pid": os.getpid()})


@require_GET
async def aping(request: HttpRequest) -> JsonResponse:
    """Answer as `ping` does, from a coroutine."""
    await asyncio.sleep(0)
    return JsonResponse({"pong": True, "pid": os.getpid()})


@require_GET
def export(request: HttpRequest) -> HttpResponse:
    """Work for as many milliseconds as `?ms=` asks, then say which process did it."""
    ms = _milliseconds(request)
    if ms is None:
        return _refused()
    time.sleep(ms / 1000)
    return JsonResponse({"ms": ms, "pid": os.getpid()})


@require_GET
def stream(request: HttpRequest) -> HttpResponseBase:
    """Say at once which process works, then send rows for as many milliseconds as `?ms=` asks."""
    ms = _milliseconds(request)
    return _refused() if ms is None else StreamingHttpResponse(_rows(ms), content_type="text/plain")


def _rows(ms: int) -> Iterator[bytes]:
    yield b"process %d\n" % os.getpid()
    end = time.monotonic() + ms / 1000
    number = 0
    while time.monotonic() < end:
        time.sleep(_MS_BETWEEN_ROWS / 1000)
        number += 1
        yield b"row %d\n" % number


def _milliseconds(request: HttpRequest) -> int | None:
    asked = request.GET.get("ms", "0")
    if not (asked.isascii() and asked.isdecimal() and len(asked) <= 6):
        return None
    return min(int(asked), MAX_MS)


def _refused() -> HttpResponseBadRequest:
    return HttpResponseBadRequest("ms must be a whole number of milliseconds")
