"""Errors as problem details (RFC 9457), with one entry for each invalid field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from math import ceil
from typing import Any, Final

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import IntegrityError, InterfaceError, OperationalError
from django.db.models import ProtectedError
from django.http import Http404
from django.utils.translation import gettext as _
from rest_framework import exceptions
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import as_serializer_error
from rest_framework.settings import api_settings
from rest_framework.views import set_rollback

from limits_app.engine.errors import CannotRevert, LeaseEnded, LimitExceeded, LimitsError, StoreUnavailable, Unresolved
from limits_app.integrations.drf.throttle import ThrottleRejection, throttled_outcome
from limits_app.integrations.refusals import PROBLEM, QUOTA_EXCEEDED, content_of, seconds_of, violated
from limits_app.services.definitions import InvalidDefinition

LEASE_ENDED: Final = "urn:problem-type:limits-app:lease-ended"
_RETRY_SECONDS: Final = 1
_MOST_REFERRING: Final = 10
"""The maximum number of referring objects that a conflict on deletion lists."""


class WrongQuery(exceptions.ValidationError):
    """400: invalid query parameters."""


class Problem(exceptions.APIException):
    """An error with its own status; `wait` is after how many seconds the client may try again."""

    def __init__(
        self, status: HTTPStatus, detail: str, wait: int | None = None, *, problem_type: str = "about:blank"
    ) -> None:
        super().__init__(detail)
        self.status_code = status
        self.wait = wait
        self.problem_type = problem_type


def answer(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Translate an error into a response; returns None for an unexpected one, which the site handles."""
    recognized = _known(error)
    if recognized is None:
        return None
    request = context.get("request")
    has_only_a_query = request is not None and request.method in SAFE_METHODS
    if isinstance(error, LimitsError) and isinstance(recognized, exceptions.ValidationError) and has_only_a_query:
        recognized = WrongQuery(recognized.detail)
    set_rollback()
    title = HTTPStatus(recognized.status_code).phrase
    problem: dict[str, Any] = {"type": "about:blank", "title": title, "status": recognized.status_code}
    if isinstance(recognized, exceptions.ValidationError):
        problem["detail"] = _("The request is invalid; see the errors.")
        in_query = isinstance(recognized, WrongQuery)
        problem["errors"] = [_named(where, what, in_query) for where, what in _errors(error, recognized)]
    else:
        problem["detail"] = str(recognized.detail)
    if isinstance(recognized, exceptions.Throttled):
        problem["type"] = QUOTA_EXCEEDED
    elif isinstance(recognized, ThrottleRejection):
        problem["type"] = content_of(recognized.error).problem_type
    elif isinstance(recognized, Problem):
        problem["type"] = recognized.problem_type
    if names := _violated(recognized, request):
        problem["violated-policies"] = list(names)
    return Response(problem, status=recognized.status_code, headers=_headers(recognized), content_type=PROBLEM)


def _violated(error: exceptions.APIException, request: Request | None) -> tuple[str, ...]:
    """The limits that rejected a request; empty for other errors."""
    if isinstance(error, ThrottleRejection) and isinstance(error.error, LimitExceeded):
        return violated(error.error.outcome)
    outcome = throttled_outcome(request) if isinstance(error, exceptions.Throttled) and request is not None else None
    return () if outcome is None else violated(outcome)


def _known(error: Exception) -> exceptions.APIException | None:
    match error:
        case exceptions.APIException():
            return error
        case Http404():
            return exceptions.NotFound()
        case PermissionDenied():
            return exceptions.PermissionDenied()
        case RequestDataTooBig():
            return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
        case ProtectedError(protected_objects=users):
            names = ", ".join(sorted(str(user) for user in users)[:_MOST_REFERRING])
            return Problem(HTTPStatus.CONFLICT, _("The object is still in use by: %(names)s.") % {"names": names})
        case IntegrityError():
            message = _("A concurrent change conflicts with this one. Read the object and try again.")
            return Problem(HTTPStatus.CONFLICT, message)
        case _:
            return _of_limits(error)


def _of_limits(error: Exception) -> exceptions.APIException | None:
    match error:
        case OperationalError() | InterfaceError() | Unresolved():
            message = _("The database is temporarily unavailable.")
            return Problem(HTTPStatus.SERVICE_UNAVAILABLE, message, _RETRY_SECONDS)
        case StoreUnavailable():
            message = _("The limits store is temporarily unavailable.")
            return Problem(HTTPStatus.SERVICE_UNAVAILABLE, message, seconds_of(error))
        case LeaseEnded():
            message = _("The lease of the token has ended, or the token was settled before. Nothing was changed.")
            return Problem(HTTPStatus.CONFLICT, message, problem_type=LEASE_ENDED)
        case CannotRevert():
            return Problem(HTTPStatus.CONFLICT, str(error))
        case LimitsError():
            return exceptions.ValidationError(str(error))
        case _:
            return None


def _headers(error: exceptions.APIException) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if (challenge := getattr(error, "auth_header", None)) is not None:
        headers["WWW-Authenticate"] = challenge
    if (seconds := getattr(error, "wait", None)) is not None:
        headers["Retry-After"] = str(max(ceil(seconds), 1))
    return headers


def _errors(error: Exception, recognized: exceptions.ValidationError) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every message with the path of its field."""
    if not isinstance(error, InvalidDefinition):
        yield from _listed(as_serializer_error(recognized))
        return
    for path, messages in error.errors.items():
        yield from ((tuple(map(str, path)), message) for message in messages)


def _listed(detail: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every message with the path of its field."""
    match detail:
        case dict():
            for name, inside in detail.items():
                own = () if name == api_settings.NON_FIELD_ERRORS_KEY else (str(name),)
                yield from _listed(inside, (*where, *own))
        case list():
            for number, inside in enumerate(detail):
                yield from _listed(inside, where if isinstance(inside, str) else (*where, str(number)))
        case _:
            yield where, str(detail)


def _named(where: tuple[str, ...], what: str, in_query: bool) -> dict[str, str]:
    if in_query:
        return {"parameter": where[0] if where else "", "detail": what}
    return {
        "pointer": "#" + "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in where),
        "detail": what,
    }
