"""The page on which users see their own limits; include `limits_app.urls` to add it to a site."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache


@never_cache
@login_required
def own_limits(request: HttpRequest) -> HttpResponse:
    """Show the limits of the user with their current usage."""
    return render(request, "limits_app/own_limits.html")
