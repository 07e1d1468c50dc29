"""Views worth limiting: a quick one, its asynchronous twin, and a slow one that occupies its process."""

import asyncio
import os
import time
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.views.decorators.http import require_GET

__all__ = ["aping", "export", "index", "ping"]

MAX_EXPORT_MS: Final = 30_000

PAGE: Final = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>limits_app demo</title></head>
<body><h1>limits_app demo</h1><ul>{}</ul></body>
</html>
"""


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    """Link to what there is to try."""
    addresses = [reverse("ping"), reverse("aping"), reverse("export", query={"ms": 500}), reverse("admin:index")]
    links = format_html_join("", '<li><a href="{}">{}</a></li>', ((address, address) for address in addresses))
    return HttpResponse(format_html(PAGE, links))


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
    asked = request.GET.get("ms", "0")
    if not (asked.isascii() and asked.isdecimal() and len(asked) <= 6):
        return HttpResponseBadRequest("ms must be a whole number of milliseconds")
    ms = min(int(asked), MAX_EXPORT_MS)
    time.sleep(ms / 1000)
    return JsonResponse({"ms": ms, "pid": os.getpid()})
