"""Refusals: the responses to requests that limits reject."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from inspect import isawaitable
from json import loads
from math import ceil
from operator import attrgetter
from typing import Any, Final, NamedTuple

from asgiref.sync import async_to_sync
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.template.response import SimpleTemplateResponse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext, ngettext, ngettext_lazy

from limits_app import conf
from limits_app.conf import RefusalHandler
from limits_app.engine.errors import LimitExceeded, StoreUnavailable
from limits_app.engine.outcome import Outcome
from limits_app.integrations.headers import name_of, retry_after_seconds, set_headers
from limits_app.integrations.releasing import REFUNDS
from limits_app.integrations.request import RequestLimits, limits_of
from limits_app.services.display import in_largest_unit
from limits_app.services.integration import BLOCK_LEVEL
from limits_app.services.limit_words import limit_name
from limits_app.services.url_rules import UrlRule

logger = logging.getLogger("limits_app")

REFUSALS: Final = (LimitExceeded, StoreUnavailable)
"""The errors that are answered with a refusal."""

_HANDLER: Final = conf.REFUSAL_HANDLER.name
TEMPLATE: Final = "limits_app/429.html"
PROBLEM: Final = "application/problem+json"
QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
BLOCKED: Final = "urn:problem-type:limits-app:blocked"
TOO_MUCH: Final = "urn:problem-type:limits-app:too-much-at-once"
_STORE_SECONDS: Final = 5
"""`Retry-After` for a store that is unavailable, where its error has none."""
_IN_SECONDS = ngettext_lazy("Try again in %(seconds)d second.", "Try again in %(seconds)d seconds.", "seconds")
_RESOURCE, _KEY = attrgetter("resource"), attrgetter("key")


class Refusal(NamedTuple):
    """The content of a refusal in any form; `retry_after` is in whole seconds, or None where waiting does not help."""

    status: HTTPStatus
    title: str
    detail: str
    retry_after: int | None
    problem_type: str = "about:blank"
    violated: tuple[str, ...] = ()
    request_id: str = ""


def refusal(
    request: HttpRequest, error: LimitExceeded | StoreUnavailable, *, refunds: bool = False
) -> HttpResponseBase:
    """Return the response to an error: 429 for a limit, 403 for a block, 422 for too much, 503 without the store.

    It is the answer of the URL rule whose limit rejects, where that has one. Otherwise it is what
    LIMITS["REFUSAL_HANDLER"] returns, else a page from the template `limits_app/429.html` for clients that
    prefer HTML, and problem details (RFC 9457) for others. Caches do not keep it.
    With `refunds`, the request is refunded what it was charged when this is its response.
    """
    limits: RequestLimits = getattr(request, "limits", None) or limits_of(request)
    content = content_of(error)
    response: HttpResponseBase | None = None
    if isinstance(error, LimitExceeded):
        content = content._replace(request_id=limits.request_id)
        may_have_answer = limits.by_rules and content.problem_type == QUOTA_EXCEEDED
        rule = _rule_with_answer(limits, error.outcome) if may_have_answer else None
        if rule is not None:
            content = content._replace(status=HTTPStatus(rule.refusal_status or content.status))
            response = _answer_of(rule, content) if rule.refusal_body else None
    has_handler = response is None and limits.settings[_HANDLER] is not None
    handler = conf.function_of(conf.REFUSAL_HANDLER, limits.settings) if has_handler else None
    response = response if handler is None else _own(handler, request, error)
    if response is None and _wants_page(request):
        response = _page(request, content)
    response = response or _problem(content)
    response.headers["Cache-Control"] = "no-store"
    if content.retry_after is not None:
        response.headers["Retry-After"] = str(content.retry_after)
    setattr(response, REFUNDS, refunds)
    set_headers(response, limits, limits.refuse(error))
    return response


def _rule_with_answer(limits: RequestLimits, outcome: Outcome) -> UrlRule | None:
    """Return the first URL rule with another status or body of which a limit rejects a request."""
    rejecting = {(status.resource, None if status.shared else status.entity) for status in outcome.violations}
    for charge in limits.by_rules:
        if charge.key in rejecting or (charge.resource, None) in rejecting:
            return next((rule for rule in charge.rules if rule.has_answer), None)
    return None


def _answer_of(rule: UrlRule, content: Refusal) -> HttpResponse:
    """Return the body of a rule: a JSON object, or text that browsers do not read as HTML."""
    try:
        is_json = isinstance(loads(rule.refusal_body), dict)
    except (ValueError, RecursionError):
        is_json = False
    content_type = "application/json" if is_json else "text/plain; charset=utf-8"
    response = HttpResponse(rule.refusal_body, status=content.status, content_type=content_type)
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def content_of(error: LimitExceeded | StoreUnavailable) -> Refusal:
    """Return what the refusal of an error says, in whatever form."""
    if isinstance(error, StoreUnavailable):
        detail = gettext("Limits cannot be checked at the moment. Try again in a few seconds.")
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, gettext("Service Unavailable"), detail, seconds_of(error))
    outcome = error.outcome
    names = violated(outcome)
    listed = ", ".join(dict.fromkeys(map(limit_name, map(_KEY, outcome.violations))))
    rejecting = outcome.binding
    if rejecting is not None and rejecting.never:
        detail = gettext("The request asks for more of %(limits)s than is ever allowed.") % {"limits": listed}
        title = gettext("Too much at once")
        return Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, title, detail, None, TOO_MUCH, names)
    if outcome.blocked:
        detail = gettext("Access to this resource has been blocked.")
        return Refusal(HTTPStatus.FORBIDDEN, gettext("Access blocked"), detail, None, BLOCKED, names)
    seconds = retry_after_seconds(None if rejecting is None else rejecting.retry_after)
    used_up = gettext("The limit of %(limits)s has been reached.") % {"limits": listed}
    if rejecting is not None and rejecting.level == BLOCK_LEVEL:
        used_up = gettext("Too many requests have been made: further requests are rejected for a while.")
    if rejecting is not None and rejecting.capacity == 0:  # a cool-down
        used_up = gettext("The service behind this resource is busy.")
    return Refusal(
        HTTPStatus.TOO_MANY_REQUESTS,
        gettext("Too many requests"),
        f"{used_up} {_about(seconds)}",
        seconds,
        QUOTA_EXCEEDED,
        names,
    )


def violated(outcome: Outcome) -> tuple[str, ...]:
    """Return the limits that reject, by their names in headers: with the resource where there are several."""
    several = len(set(map(_RESOURCE, outcome.violations + outcome.passed))) > 1
    names = {}
    for status in outcome.violations:
        names[name_of(status.resource, status.key) if several else status.key] = True
    return tuple(names)


def seconds_of(error: StoreUnavailable) -> int:
    """Return the `Retry-After` of a store that is unavailable."""
    return retry_after_seconds(error.retry_after, if_unknown=_STORE_SECONDS)


def _about(seconds: int) -> str:
    """Say when to try again, in the largest unit of which there are at least two, rounded up."""
    number, unit = in_largest_unit(seconds)
    days = hours = minutes = ceil(number)
    if unit == "d":
        return ngettext("Try again in about %(days)d day.", "Try again in about %(days)d days.", days) % {"days": days}
    if unit == "h":
        text = ngettext("Try again in about %(hours)d hour.", "Try again in about %(hours)d hours.", hours)
        return text % {"hours": hours}
    if unit == "min":
        text = ngettext("Try again in about %(minutes)d minute.", "Try again in about %(minutes)d minutes.", minutes)
        return text % {"minutes": minutes}
    return _IN_SECONDS % {"seconds": seconds}


def _own(handler: RefusalHandler, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
    """Return the response of the site's handler; None where it returns none, or fails."""
    try:
        response = call_sync(handler, request, error)
        if isinstance(response, SimpleTemplateResponse):  # a template that fails must not fail the refusal
            response = response.render()
    except Exception:
        logger.exception("LIMITS['REFUSAL_HANDLER'] failed: the refusal has its usual form")
        return None
    if response is None or isinstance(response, HttpResponseBase):
        return response
    _report_once(type(response).__name__)
    return None


def call_sync(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and return its result; a coroutine is awaited in a synchronous caller."""
    result = function(*args, **kwargs)
    return async_to_sync(_awaited)(result) if isawaitable(result) else result


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


@cache
def _report_once(kind: str) -> None:
    logger.error("LIMITS['REFUSAL_HANDLER'] must return a response or None, not %s", kind)


def _page(request: HttpRequest, content: Refusal) -> HttpResponse | None:
    """Return the page; None when the site's own template fails."""
    context = {
        "status": content.status.value,
        "title": content.title,
        # People do not know the keys of limits.
        "detail": _about(content.retry_after or 0) if content.problem_type == QUOTA_EXCEEDED else content.detail,
        "retry_after": content.retry_after,
        "violated_policies": content.violated,
        "request_id": content.request_id,
        "back": _back(request),
    }
    own = conf.get(conf.BASE_TEMPLATE)
    for base in dict.fromkeys((own, conf.BASE_TEMPLATE.default)):
        try:
            page = render_to_string(TEMPLATE, {**context, "base_template": base}, request)
        except Exception as error:
            if not (isinstance(error, TemplateDoesNotExist) and str(error) == TEMPLATE):  # which a check reports
                logger.exception("the template of a refusal failed: it has the default layout, or is problem details")
        else:
            return HttpResponse(page, status=content.status)
    return None


def _back(request: HttpRequest) -> str:
    """The page of this site that the client comes from, else the first page; empty where that is rejected itself."""
    back: str = request.META.get("HTTP_REFERER", "")
    with suppress(DisallowedHost):  # which a client may send, and no middleware of the site may have looked at
        is_own = url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure())
        here = {request.get_full_path(), request.build_absolute_uri()}
        if is_own and back not in here:
            return back
    return "" if request.path == "/" else "/"


def _wants_page(request: HttpRequest) -> bool:
    """Whether HTML is preferred, and not only accepted as anything would be."""
    if "text/" not in request.META.get("HTTP_ACCEPT", "").lower():
        return False
    try:
        return request.get_preferred_type([PROBLEM, "application/json", "text/html"]) == "text/html"
    except ValueError:  # an invalid header
        return False


def _problem(content: Refusal) -> HttpResponse:
    members: dict[str, object] = {
        "type": content.problem_type,
        "title": content.title,
        "status": content.status.value,
        "detail": content.detail,
    }
    if content.violated:
        members["violated-policies"] = content.violated
    if content.request_id:
        members["request-id"] = content.request_id
    return JsonResponse(members, status=content.status, content_type=PROBLEM)
