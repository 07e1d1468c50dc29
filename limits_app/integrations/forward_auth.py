"""Forward-auth: proxies ask here whether a request to another program is admitted, which the URL rules decide.

`forward_auth` is for nginx (`auth_request`), Caddy and Traefik (`forward_auth`), and `ext_authz` for Envoy. Only rules
with a path apply: the views of other programs have no names here. Nothing tells when a response was sent, so no permits
are taken.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache, cached_property
from http import HTTPStatus
from typing import Final

from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from limits_app.engine.errors import LimitExceeded
from limits_app.integrations.decorators import exempt
from limits_app.integrations.identity import is_from_trusted_proxy
from limits_app.integrations.middleware import enforce
from limits_app.integrations.path_spellings import spellings_of, spellings_of_text
from limits_app.integrations.refusals import content_of
from limits_app.integrations.releasing import finish
from limits_app.integrations.request import LimitedRequest, RequestLimits
from limits_app.services.site_urls import FORWARD_AUTH

logger = logging.getLogger("limits_app")

STATUS_HEADER: Final = "X-Limits-Status"
"""The header with the status of a refusal that is sent as 403."""

_METHOD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Z-]{1,40}")
_PASSED_ON: Final = frozenset({HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
"""The statuses that nginx passes on; it sends 500 in place of others."""
_UNTRUSTED: Final = "The request does not come from a proxy: add its address to LIMITS['TRUSTED_PROXIES']."
_INCOMPLETE: Final = "The proxy must send the headers X-Forwarded-Method, X-Forwarded-Uri and X-Forwarded-For."
_WITHOUT_ADDRESS: Final = "The proxy must send the header X-Forwarded-For."
_AS_FORBIDDEN: Final = "as=403"


class _DescribedRequest(LimitedRequest):
    """The request that a proxy asks about; its query is read when it is needed."""

    @cached_property
    def GET(self) -> QueryDict:  # type: ignore[override]  # noqa: N802 - Django's name, and its stub an immutable one
        return QueryDict(self.META["QUERY_STRING"], encoding=self.encoding)


@csrf_exempt
@never_cache
@exempt
def forward_auth(request: HttpRequest) -> HttpResponseBase:
    """Answer 200 where the limits admit the request that a proxy describes, else a refusal, such as 403 or 429.

    The proxy sends its method, its path with the query, and the address of the client as X-Forwarded-Method,
    X-Forwarded-Uri and X-Forwarded-For, in place of headers with these names that the client sends.
    With `?as=403` each refusal has the status 403, and its own in `X-Limits-Status`, since nginx passes on no other.
    Other connections than those of trusted proxies are answered with 403, incomplete requests with 400.
    """
    method = request.headers.get("X-Forwarded-Method", "").upper()
    target = request.headers.get("X-Forwarded-Uri", "")
    if not (_METHOD.fullmatch(method) and target):
        return _misconfigured(HTTPStatus.BAD_REQUEST, _INCOMPLETE)
    path, _, query = target.encode("latin-1", "replace").partition(b"?")
    if not path.startswith(b"/") and b"://" in path:  # a whole address
        path = path.partition(b"://")[2].partition(b"/")[2]
    response = _decide(request, method, spellings_of(path), query.partition(b"#")[0].decode("latin-1"))
    if request.META.get("QUERY_STRING") == _AS_FORBIDDEN and response.status_code not in _PASSED_ON:
        response.headers[STATUS_HEADER] = str(response.status_code)
        response.status_code = HTTPStatus.FORBIDDEN
    return response


@csrf_exempt
@never_cache
@exempt
def ext_authz(request: HttpRequest, path: str = "") -> HttpResponseBase:
    """`forward_auth` for Envoy, which asks with the method of the request, and with its path behind that of this view.

    The proxy sends the address of the client as X-Forwarded-For. No other header describes the request.
    """
    return _decide(request, request.method or "", spellings_of_text(path), request.META.get("QUERY_STRING", ""))


for _view in (forward_auth, ext_authz):
    setattr(_view, FORWARD_AUTH, True)


def _decide(request: HttpRequest, method: str, spellings: Sequence[str], query: str) -> HttpResponseBase:
    """Charge a request to another program by the rules for its path, and answer whether it is admitted.

    The rules for each of its spellings apply; otherwise `/free/../api` would not be limited as `/api` where the program
    resolves dots, or the other way round where it does not.
    """
    if not is_from_trusted_proxy(request):
        return _misconfigured(HTTPStatus.FORBIDDEN, _UNTRUSTED)
    if not request.headers.get("X-Forwarded-For", "").strip():  # else all clients were the proxy
        return _misconfigured(HTTPStatus.BAD_REQUEST, _WITHOUT_ADDRESS)
    described = _described(request, method, query)
    refused: HttpResponseBase | None = None
    for described.path_info in spellings:
        described.path, described.limits.enforced = described.path_info, False
        refused = refused or enforce(described)
    if refused is not None and refused.status_code < HTTPStatus.MULTIPLE_CHOICES:  # from the handler of the site
        refused.status_code = _status_of(described.limits)
    response = refused or HttpResponse()
    finish(response, described.limits, described.limits)
    return response


def _status_of(limits: RequestLimits) -> int:
    """The status of a refusal whose own one would tell a proxy that the request is admitted."""
    if not limits.refused:
        return HTTPStatus.SERVICE_UNAVAILABLE
    return content_of(LimitExceeded(limits.refused[0])).status


def _described(request: HttpRequest, method: str, query: str) -> _DescribedRequest:
    """Return the request that a proxy asks about, with the user and the session of the one by which it asks."""
    described = _DescribedRequest()
    vars(described).update(vars(request))
    for derived in ("GET", "headers", "limits"):
        vars(described).pop(derived, None)
    described.method, described.resolver_match, described.COOKIES = method, None, request.COOKIES
    described.META = {**request.META, "REQUEST_METHOD": method, "QUERY_STRING": query}
    limits = described.limits = RequestLimits(described)
    limits.has_middleware, limits.takes_permits = True, False
    limits.user_without_session = getattr(getattr(request, "limits", None), "user_without_session", None)
    return described


def _misconfigured(status: HTTPStatus, advice: str) -> HttpResponse:
    _report_once(advice)
    return HttpResponse(advice, status=status, content_type="text/plain")


@cache
def _report_once(advice: str) -> None:
    logger.error("forward-auth rejects requests: %s", advice)
