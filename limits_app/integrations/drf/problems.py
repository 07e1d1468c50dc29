"""Refusals of throttles in the form that all other refusals have, instead of the framework's `detail`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework import views
from rest_framework.exceptions import Throttled
from rest_framework.request import Request

from limits_app.core.errors import LimitExceeded, StoreUnavailable
from limits_app.integrations.drf.errors import TooMuchAtOnce, Unavailable
from limits_app.integrations.drf.throttle import decided, http
from limits_app.integrations.refusals import refusal

__all__ = ["exception_handler"]


def exception_handler(error: Exception, context: Mapping[str, Any]) -> HttpResponseBase | None:
    """Answer as `refusal` does where limits refuse; REST_FRAMEWORK["EXCEPTION_HANDLER"] names it.

    All other errors are answered as the framework does by default; a handler of your own may call this one.
    """
    request: Request = context["request"]
    refused = _refused(error, request)
    if refused is None:
        return views.exception_handler(error, dict(context))
    views.set_rollback()
    return refusal(http(request), refused)


def _refused(error: Exception, request: Request) -> LimitExceeded | StoreUnavailable | None:
    """What limits said, which the framework was told in its own words."""
    if isinstance(error, TooMuchAtOnce | Unavailable):
        cause = error.__cause__
        return cause if isinstance(cause, LimitExceeded | StoreUnavailable) else None
    outcome = decided(request) if isinstance(error, Throttled) else None
    return None if outcome is None else LimitExceeded(outcome)
