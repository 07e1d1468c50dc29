"""Views to limit: fast ones, one of them asynchronous, and two slow ones; and the mails that the site has sent."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from django.conf import settings
from django.contrib.admin.views.decorators import staff_member_required
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

__all__ = ["aping", "export", "index", "mail", "ping", "report", "stream"]

MAX_MS: Final = 30_000
_MS_BETWEEN_ROWS: Final = 20
_MOST_MAILS: Final = 50


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    """Describe what to try."""
    site = request.build_absolute_uri("/").rstrip("/")
    return render(request, "demo/index.html", {"pid": os.getpid(), "site": site, "users": USERS})


@require_GET
def ping(request: HttpRequest) -> JsonResponse:
    """Respond immediately with the id of the process."""
    return JsonResponse({"pong": True, "pid": os.getpid()})


@require_GET
async def aping(request: HttpRequest) -> JsonResponse:
    """The same as `ping`, asynchronous."""
    await asyncio.sleep(0)
    return JsonResponse({"pong": True, "pid": os.getpid()})


@require_GET
def report(request: HttpRequest, name: str) -> JsonResponse:
    """Respond immediately; the URL has no limit until an administrator sets one."""
    return JsonResponse({"report": name, "pid": os.getpid()})


@require_GET
@staff_member_required
def mail(request: HttpRequest) -> HttpResponse:
    """Show the mails that were sent, the latest first."""
    folder = getattr(settings, "EMAIL_FILE_PATH", None)
    files = sorted(Path(folder).glob("*.log"), reverse=True) if folder else []
    texts = [file.read_text(errors="replace") for file in files[:_MOST_MAILS]]
    return HttpResponse("\n".join(texts) or "No mail was sent.", content_type="text/plain; charset=utf-8")


@require_GET
def export(request: HttpRequest) -> HttpResponse:
    """Work for `?ms=` milliseconds, then respond with the id of the process."""
    ms = _milliseconds(request)
    if ms is None:
        return _refused()
    time.sleep(ms / 1000)
    return JsonResponse({"ms": ms, "pid": os.getpid()})


@require_GET
def stream(request: HttpRequest) -> HttpResponseBase:
    """Send the id of the process immediately, then rows for `?ms=` milliseconds."""
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
