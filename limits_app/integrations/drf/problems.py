"""Refusals of throttles as problem details, like those of all other integrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework import views
from rest_framework.exceptions import Throttled
from rest_framework.request import Request

from limits_app.engine.errors import LimitExceeded, StoreUnavailable
from limits_app.integrations.drf.throttle import ThrottleRejection, throttled_outcome
from limits_app.integrations.refusals import refusal


def exception_handler(error: Exception, context: Mapping[str, Any]) -> HttpResponseBase | None:
    """Answer as `refusal` does where limits reject a request; REST_FRAMEWORK["EXCEPTION_HANDLER"] names it.

    All other errors are answered as the framework does by default; a handler of your own may call this one.
    """
    request: Request = context["request"]
    rejected = _rejection(error, request)
    if rejected is None:
        return views.exception_handler(error, dict(context))
    views.set_rollback()
    return refusal(request, rejected, refunds=True)


def _rejection(error: Exception, request: Request) -> LimitExceeded | StoreUnavailable | None:
    """Return the error of the limits behind an error of the framework."""
    if isinstance(error, ThrottleRejection):
        return error.error
    outcome = throttled_outcome(request) if isinstance(error, Throttled) else None
    return None if outcome is None else LimitExceeded(outcome)
