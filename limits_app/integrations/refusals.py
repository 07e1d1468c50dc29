"""Refusals: what a visitor gets instead of a response when limits say no."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from inspect import isawaitable
from math import ceil
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.template.response import SimpleTemplateResponse
from django.utils.translation import gettext, ngettext

from limits_app import conf
from limits_app.core.errors import LimitExceeded, StoreUnavailable
from limits_app.core.outcome import LimitStatus, Outcome
from limits_app.integrations.headers import set_headers
from limits_app.integrations.request import limits_of

__all__ = ["PROBLEM", "QUOTA_EXCEEDED", "REFUSALS", "refusal", "seconds_of", "violated"]

logger = logging.getLogger("limits_app")

REFUSALS: Final = (LimitExceeded, StoreUnavailable)
"""The errors that visitors get as a response."""

TEMPLATE: Final = "limits_app/429.html"
PROBLEM: Final = "application/problem+json"
QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
_PERMIT_SECONDS: Final = 1
"""When a permit comes back nobody knows; so long, clients that wait are told to."""
_STORE_SECONDS: Final = 5
"""When a store comes back of which nobody says so."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What is said, whatever the form; `retry_after` is in whole seconds, or None where waiting does not help."""

    status: HTTPStatus
    title: str
    detail: str
    retry_after: int | None
    problem_type: str = "about:blank"
    violated: tuple[str, ...] = ()


def refusal(
    request: HttpRequest, error: LimitExceeded | StoreUnavailable, *, refunds: bool = False
) -> HttpResponseBase:
    """Translate an error: 429 for a limit, 422 for what can never be admitted, 503 when the store is down.

    What LIMITS["REFUSAL_HANDLER"] gives, else a page from the template `limits_app/429.html` for those who ask for
    HTML, and problem details (RFC 9457) for others. No cache keeps it.
    Where one that gives back answers the request, what that was charged is given back.
    """
    said = _unavailable(error) if isinstance(error, StoreUnavailable) else _exceeded(error.outcome)
    response = _own(request, error) or _page(request, said) or _problem(said)
    response["Cache-Control"] = "no-store"
    if said.retry_after is not None:
        response["Retry-After"] = str(said.retry_after)
    set_headers(response, limits_of(request).refused_with(response, error, refunds=refunds))
    return response


def _exceeded(outcome: Outcome) -> _Refusal:
    names = violated(outcome)
    listed = ", ".join(names)
    if outcome.never:
        detail = gettext("The request asks for more of %(limits)s than can ever be admitted.") % {"limits": listed}
        return _Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, gettext("Too much at once"), detail, None, violated=names)
    seconds = _seconds(outcome)
    if seconds is None:
        detail = gettext("You may not use this.")
    else:
        when = ngettext("Try again in %(seconds)d second.", "Try again in %(seconds)d seconds.", seconds)
        used_up = gettext("There is not enough left of %(limits)s.") % {"limits": listed}
        detail = f"{used_up} {when % {'seconds': seconds}}"
    return _Refusal(HTTPStatus.TOO_MANY_REQUESTS, gettext("Too many requests"), detail, seconds, QUOTA_EXCEEDED, names)


def violated(outcome: Outcome) -> tuple[str, ...]:
    """The limits that refuse, by the names that headers have for them: of several resources, with that."""
    many = len({status.resource for status in (*outcome.violations, *outcome.passed)}) > 1
    named = (f"{status.resource}:{status.key}" if many else status.key for status in outcome.violations)
    return tuple(dict.fromkeys(named))


def _unavailable(error: StoreUnavailable) -> _Refusal:
    detail = gettext("Limits cannot be checked at the moment. Try again in a few seconds.")
    return _Refusal(HTTPStatus.SERVICE_UNAVAILABLE, gettext("Service unavailable"), detail, seconds_of(error))


def seconds_of(error: StoreUnavailable) -> int:
    """Whole seconds after which clients may ask again, at least 1."""
    return _STORE_SECONDS if error.retry_after is None else max(ceil(error.retry_after), 1)


def _seconds(outcome: Outcome) -> int | None:
    """Whole seconds until it is worth trying again, at least 1; None when everything is blocked."""
    if any(_is_blocked(status) for status in outcome.violations):
        return None
    return max(_PERMIT_SECONDS, ceil(outcome.retry_after or 0))


def _is_blocked(status: LimitStatus) -> bool:
    return status.capacity == 0


def _own(request: HttpRequest, error: Exception) -> HttpResponseBase | None:
    """What the site makes of it; None where it leaves that to us, or fails."""
    handler = conf.function_of(conf.REFUSAL_HANDLER)
    if handler is None:
        return None
    try:
        response = handler(request, error)
        if isawaitable(response):
            response = async_to_sync(_awaited)(response)
        if isinstance(response, SimpleTemplateResponse):  # here, where a template that fails is no error
            response = response.render()
    except Exception:  # a refusal must not turn into an error, whatever a site does
        logger.exception("a refusal could not be shown as LIMITS['REFUSAL_HANDLER'] would")
        return None
    if response is None or isinstance(response, HttpResponseBase):
        return response
    _report_once(type(response).__name__)
    return None


async def _awaited(response: Awaitable[Any]) -> Any:
    return await response


@cache
def _report_once(kind: str) -> None:
    logger.error("LIMITS['REFUSAL_HANDLER'] must give a response or None, not %s: refusals have their usual form", kind)


def _page(request: HttpRequest, said: _Refusal) -> HttpResponse | None:
    """The page; None for those who do not ask for one, or when the site's own template is broken."""
    if not _wants_page(request):
        return None
    try:
        return HttpResponse(render_to_string(TEMPLATE, _context(said), request), status=said.status)
    except Exception:  # a refusal must not turn into an error, whatever a template does
        logger.exception("a refusal could not be shown as a page")
        return None


def _wants_page(request: HttpRequest) -> bool:
    """Whether HTML is asked for, rather than just accepted as anything would be."""
    try:
        return request.get_preferred_type([PROBLEM, "application/json", "text/html"]) == "text/html"
    except ValueError:  # a header that cannot be read
        return False


def _problem(said: _Refusal) -> HttpResponse:
    members: dict[str, object] = {
        "type": said.problem_type,
        "title": said.title,
        "status": said.status.value,
        "detail": said.detail,
    }
    if said.violated:
        members["violated-policies"] = said.violated
    return JsonResponse(members, status=said.status, content_type=PROBLEM)


def _context(said: _Refusal) -> Mapping[str, object]:
    return {
        "status": said.status.value,
        "title": said.title,
        "detail": said.detail,
        "retry_after": said.retry_after,
        "violated_policies": said.violated,
    }
