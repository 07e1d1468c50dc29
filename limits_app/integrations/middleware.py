"""The middleware: `request.limits` for every request, and the rules for URLs that administrators set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from limits_app import conf
from limits_app.engine.errors import InvalidRequest, LimitExceeded, StoreUnavailable
from limits_app.integrations.charges import Charge, charge_all
from limits_app.integrations.headers import remove_headers
from limits_app.integrations.identity import identify, reads_users_of_sessions
from limits_app.integrations.refusals import REFUSALS, refusal
from limits_app.integrations.releasing import finish, release_with_task
from limits_app.integrations.request import EXEMPT, LimitedRequest, RequestLimits, limits_of
from limits_app.integrations.request_access import is_exempt, is_known_as_limited, is_limited
from limits_app.integrations.url_rule_charges import charges_for
from limits_app.services.integration import is_of_thread
from limits_app.services.site_views import answers_options, renders_json
from limits_app.services.url_matching import EndpointTable, OutdatedEndpoints, endpoints
from limits_app.services.url_rules import UrlRule

_CREDENTIALS: Final = ("HTTP_AUTHORIZATION", "HTTP_COOKIE", "REMOTE_USER")
"""Headers by which the site recognizes a client; browsers send none of them with a preflight."""

SyncHandler = Callable[[HttpRequest], HttpResponseBase]
AsyncHandler = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


class LimitsMiddleware:
    """Adds `request.limits`, and charges each request by all rules for URLs that match it.

    Place it after the authentication middleware. A request is charged right before its view runs; one that reaches
    no view, because no URL matches or another middleware answers, is charged when that response is returned.
    The permits that a request holds are released when its response was sent.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: SyncHandler | AsyncHandler) -> None:
        self._get_response: Any = get_response
        self._is_async = iscoroutinefunction(get_response)
        self._reads_users_of_sessions = reads_users_of_sessions(type(self))
        # Django awaits a coroutine function under ASGI, and would run any other in a thread for each request.
        self.process_view: Callable[..., object] = _aenforce if self._is_async else enforce
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: LimitedRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer a request."""
        if not hasattr(request, "limits"):
            request.limits = RequestLimits(request)
        limits = request.limits
        limits.has_middleware = True
        if self._reads_users_of_sessions and hasattr(request, "session") and request.session.is_empty():
            limits.user_without_session = request.user
        if self._is_async:
            return self._arespond(request, limits)
        try:
            response: HttpResponseBase = self._get_response(request)
            if limits.rejected_log_in is not None:
                response = _replaced(response, refusal(request, limits.rejected_log_in))
            if not limits.enforced:
                response = _replaced(response, enforce(request))
        except BaseException as error:
            limits.fail(error)
            limits.end()  # no response shows whether a rule counts it: what it was charged stays
            raise
        finish(response, limits, limits)
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Refund what a failed view did not use; answer with a refusal where a limit rejected it."""
        limits_of(request).fail(error)
        return refusal(request, error) if isinstance(error, REFUSALS) else None

    async def _arespond(self, request: LimitedRequest, limits: RequestLimits) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self._get_response(request)
            if limits.rejected_log_in is not None:
                refused = await sync_to_async(refusal)(request, limits.rejected_log_in)
                response = await sync_to_async(_replaced)(response, refused)
            if not limits.enforced:
                response = await sync_to_async(_replaced)(response, await _aenforce(request))
        except BaseException as error:
            limits.fail(error)
            limits.end()
            raise
        release_with_task(response, limits)
        if limits.refused is None and not (limits.log_ins or limits.by_rules):
            finish(response, limits, limits)
        else:
            await sync_to_async(finish)(response, limits, limits)  # it may refund, or count a response
        return response


def _replaced(response: HttpResponseBase, refused: HttpResponseBase | None) -> HttpResponseBase:
    """Return the refusal of a request in place of the response that was made for it, or that one without a refusal."""
    if refused is not None:
        response.close()
        return refused
    remove_headers(response)
    return response


def enforce(request: LimitedRequest, *_view: object) -> HttpResponseBase | None:
    """Charge a request by the rules that match it; return a refusal where it is blocked, or a limit rejects it."""
    limits, match = request.limits, request.resolver_match
    limits.enforced = True
    if match is not None and getattr(match.func, EXEMPT, False):
        return None
    # Cached rules may be outdated. The first charge of a request finds that out, but later ones do not.
    table = None if limits.is_charged else endpoints.cached(limits.settings)
    if table is None:
        return _enforce_current(request)
    limits.table = table
    if limits.verdicts or limits.judged_names:
        limits.forget_verdicts()  # they may be of another table
    rules = _rules_for(request, table) if request.method == "OPTIONS" else table.find(request)
    try:
        if len(rules) == 1 and rules[0].is_plain and not table.needs_verdict:
            limits.take(Charge(rules[0].resource, identify(limits).entity, rules[0].amounts, rules[0].if_current))
            return None
        if _has_applied(limits, rules):
            return None
    except (OutdatedEndpoints, InvalidRequest):
        pass  # nothing was charged: continue with the current endpoints
    except REFUSALS as error:
        return _refused(request, limits, error)
    return _enforce_current(request)


def _has_applied(limits: RequestLimits, rules: Sequence[UrlRule]) -> bool:
    """Charge a request by rules that may be outdated, if that decides; it does not where nothing is charged.

    What it is charged shows whether they are current, so a block or an exemption of a charge does not decide.
    """
    has_verdict = not is_limited(limits)
    if not rules or has_verdict:
        return endpoints.are_current(limits.table) and (not has_verdict or _is_exempt(limits, rules) or not rules)
    charges = charges_for(limits, rules)
    if not all(is_limited(limits, charge.key) for charge in charges):
        return False
    charge_all(limits, charges)
    return bool(charges)


async def _aenforce(request: LimitedRequest, *_view: object) -> HttpResponseBase | None:
    """`enforce` for asyncio; a thread applies several rules, and those that may query the database."""
    limits = request.limits
    limits.enforced = True
    if limits.has_exempt_view:
        return None
    table = None if is_of_thread() else endpoints.cached(limits.settings)
    if table is None or limits.is_charged:
        return await sync_to_async(enforce)(request)
    limits.table = table
    if limits.verdicts or limits.judged_names:
        limits.forget_verdicts()  # they may be of another table
    rules = _rules_for(request, table)
    if not is_known_as_limited(limits) or (rules and (len(rules) > 1 or not rules[0].is_plain)):
        return await sync_to_async(enforce)(request)
    try:
        if await _ahas_applied(limits, rules):
            return None
    except (OutdatedEndpoints, InvalidRequest):
        pass  # nothing was charged: continue with the current endpoints
    except REFUSALS as error:
        return await sync_to_async(_refused)(request, limits, error)
    return await sync_to_async(_enforce_current)(request)


async def _ahas_applied(limits: RequestLimits, rules: Sequence[UrlRule]) -> bool:
    """`_has_applied` for asyncio, for no rule or a plain one, and a request that is known as limited."""
    if not rules:
        return endpoints.are_current(limits.table)
    charge = Charge(rules[0].resource, await limits.aentity(), rules[0].amounts, rules[0].if_current)
    if not is_known_as_limited(limits, charge.key):
        return False
    await limits.atake(charge)
    return True


def _rules_for(request: HttpRequest, table: EndpointTable) -> Sequence[UrlRule]:
    """Return the rules that match a request; none for a preflight, which is charged nothing."""
    rules = table.find(request)
    return () if rules and request.method == "OPTIONS" and _is_preflight(request) else rules


def _is_exempt(limits: RequestLimits, rules: Sequence[UrlRule]) -> bool:
    """Whether a request is exempt from the rules that match it; LimitExceeded where their resource is blocked."""
    if not is_exempt(limits):
        return False
    if any(limits.table.access.is_blocked_for_some(rule.resource) for rule in rules):
        for charge in charges_for(limits, rules):
            is_exempt(limits, charge.key)
    return True


def _is_preflight(request: HttpRequest) -> bool:
    """Whether a request with OPTIONS asks for permission (CORS), without credentials, and no code of the site answers.

    Where the site has API keys, a preflight may carry one: to look for it is to check a guess, which must count.
    """
    match = request.resolver_match
    view = None if match is None else match.func
    has_credentials = any(map(request.META.get, _CREDENTIALS)) or conf.get(conf.API_KEY_OF_REQUEST) is not None
    asks = "Origin" in request.headers and "Access-Control-Request-Method" in request.headers
    return asks and not has_credentials and answers_options(view) and renders_json(request, view)


def _enforce_current(request: LimitedRequest) -> HttpResponseBase | None:
    """Charge a request by the current rules that match it; 1 of each limit where the amounts of a rule are invalid."""
    limits = request.limits
    if not limits.settings[conf.ENABLED.name]:
        return None
    try:
        limits.table = endpoints.current()
        limits.forget_verdicts()  # they may have been made before a change
        rules = _rules_for(request, limits.table)
        if _is_exempt(limits, rules) or not rules:
            return None
        charges = charges_for(limits, rules, confirmed=True)
        try:
            charge_all(limits, charges)
        except InvalidRequest:
            for charge in charges:
                _charge_valid(limits, charge)
    except REFUSALS as error:
        return _refused(request, limits, error)
    return None


def _charge_valid(limits: RequestLimits, charge: Charge) -> None:
    """Charge the amounts of a rule, or 1 of each limit where they are invalid."""
    charge.requested, charge.acquisition, charge.prefix = None, None, ""  # an earlier attempt was refunded
    try:
        limits.take(charge)
    except InvalidRequest as error:
        for rule in charge.rules:
            rule.report(error)
        charge.named = {}
        limits.take(charge)


def _refused(request: HttpRequest, limits: RequestLimits, error: LimitExceeded | StoreUnavailable) -> HttpResponseBase:
    """Refund what a request was charged before, since no view handles it, and return its refusal."""
    limits.undo()
    return refusal(request, error)
