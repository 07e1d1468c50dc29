"""The page of the tenants."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path


def page(request: HttpRequest) -> HttpResponse:
    """A page."""
    return HttpResponse("ok")


urlpatterns = [path("", page)]
