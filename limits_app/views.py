"""The page on which users see their own limits; include `limits_app.urls` to add it to a site."""

from __future__ import annotations

from http import HTTPStatus

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from limits_app import conf
from limits_app.integrations.identity import entity_of_api_key
from limits_app.integrations.request import limits_of
from limits_app.services.limit_words import own_limits_or_none, own_plan


@never_cache
def own_limits(request: HttpRequest) -> HttpResponse:
    """Show the limits of the client with their current usage: a page, or JSON for a client that prefers it.

    The client is a user who is logged in, or has an API key that LIMITS["API_KEY_OF_REQUEST"] finds.
    """
    is_json = request.get_preferred_type(["text/html", "application/json"]) == "application/json"
    has_key = entity_of_api_key(request) is not None
    if is_json and (has_key or request.user.is_authenticated):
        return _as_json(request)
    if is_json:
        return JsonResponse({"detail": "Log in, or send an API key."}, status=HTTPStatus.UNAUTHORIZED)
    return _page(request) if has_key else login_required(_page)(request)


def _page(request: HttpRequest) -> HttpResponse:
    return render(request, "limits_app/own_limits.html", {"base_template": conf.get(conf.BASE_TEMPLATE)})


def _as_json(request: HttpRequest) -> JsonResponse:
    limits = limits_of(request)
    plan = limits.plan_of(limits.entity)
    own = own_limits_or_none(limits.entity, plan=plan)
    if own is None:
        return JsonResponse({"detail": "The store is unavailable."}, status=HTTPStatus.SERVICE_UNAVAILABLE)
    return JsonResponse({"plan": own_plan(limits.entity, plan), "limits": [limit.as_dict() for limit in own]})
