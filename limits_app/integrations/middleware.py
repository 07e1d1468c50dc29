"""The middleware: `request.limits` for every request, and the endpoints that administrators set."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from traceback import walk_stack
from typing import Any, Final, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from limits_app.core.errors import InvalidRequest, LimitExceeded, StoreUnavailable
from limits_app.integrations.closing import drop
from limits_app.integrations.endpoints import OutdatedEndpoints, Rule, endpoints
from limits_app.integrations.headers import tell, untell
from limits_app.integrations.refusals import REFUSALS, refusal
from limits_app.integrations.request_limits import RequestLimits, limits_of

__all__ = ["EXEMPT", "LimitsMiddleware"]

EXEMPT: Final = "limits_exempt"
"""The attribute of views that the middleware leaves alone."""

_NOT_CHARGED: Final = (OutdatedEndpoints, InvalidRequest)
"""What a rule raises that was read before and is not the latest, or has amounts that cannot be.

Both are told where it is charged again: whether it was the latest the store says meanwhile."""

_UPDATE_CACHE: Final = "_cache_update_cache"
"""False on requests whose response Django's FetchFromCacheMiddleware has found, as it was told to somebody else."""

Sync = Callable[[HttpRequest], HttpResponseBase]
Async = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


class LimitsMiddleware:
    """Adds `request.limits`, and charges each request what the first endpoint that fits it says.

    It belongs behind the authentication middleware. The charge comes right before the view, when that is known;
    a request that never reaches one, because there is none or something else answers, is charged all the same.
    What is held is held until the response was sent.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Sync | Async) -> None:
        self._get_response: Any = get_response
        self._is_async = iscoroutinefunction(get_response)
        self.process_view: Callable[..., object] = _aenforce if self._is_async else _enforce
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer a request."""
        limits = getattr(request, "limits", None)  # as `limits_of` asks, which is a call more
        if limits is None:
            limits = request.limits = RequestLimits(request)  # type: ignore[attr-defined]  # it is there from now on
        limits.guarded = True
        if self._is_async:
            return self._arespond(request, limits)
        try:
            response: HttpResponseBase = self._get_response(request)
            if not limits.enforced:
                refused = _enforce(request)
                if refused is not None:
                    drop(response)
                response = refused or _own(request, response)
        except BaseException as error:
            limits.fail(error)
            raise
        if response.streaming:
            limits.listen()
        # As `answered` says, which is a call more.
        tell(response, limits.acquired if limits.refused is None else limits.answered(response))
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Give back what a failed view did not use, and refuse where it was refused something."""
        limits_of(request).fail(error)
        return refusal(request, error) if isinstance(error, REFUSALS) else None

    async def _arespond(self, request: HttpRequest, limits: RequestLimits) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self._get_response(request)
            if not limits.enforced:
                refused = await _aenforce(request)
                if refused is not None:
                    await sync_to_async(drop)(response)
                response = refused or _own(request, response)
        except BaseException as error:
            limits.fail(error)
            raise
        streams = response.streaming
        if streams:
            limits.listen()
        if streams or limits.holds:
            # An asynchronous handler that is cancelled, or cannot send, drops the response without closing it.
            task = cast("asyncio.Task[Any]", asyncio.current_task())
            task.add_done_callback(partial(_dropped, limits, sends=_is_sent_here()))
        if limits.refusals:  # a thread gives back
            tell(response, await sync_to_async(limits.answered)(response))
        else:
            tell(response, limits.answered(response))
        return response


def _own(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """A response that no view made, without what it tells of others where it comes from a cache."""
    if vars(request).get(_UPDATE_CACHE) is False:
        untell(response)
    return response


def _enforce(
    request: HttpRequest, _view: object = None, _args: object = None, _kwargs: object = None
) -> HttpResponseBase | None:
    """Charge what the first endpoint that fits says; a refusal is a response."""
    limits, match = getattr(request, "limits", None) or limits_of(request), request.resolver_match
    limits.enforced = True
    view_name = None
    if match is not None:
        if getattr(match.func, EXEMPT, False):
            return None
        view_name = match.view_name
    path, method = request.path_info, request.method or ""
    try:
        first = None if limits.charges else endpoints.find_kept(path, view_name, method)
        if first is not None:
            try:
                limits.take_new((first.resource, limits.entity_of(request), first.first, ()), first.amounts)
            except _NOT_CHARGED:
                first = None
        if first is None:
            rule = endpoints.current().find(path, view_name, method)
            if rule is not None:
                _charge(limits, rule, limits.entity)
    except REFUSALS as error:
        return _refused(request, error)
    return None


async def _aenforce(request: HttpRequest, *_view: object) -> HttpResponseBase | None:
    """`_enforce` for asyncio; a thread asks the store and the database, for endpoints and for a page."""
    limits, match = limits_of(request), request.resolver_match
    limits.enforced = True
    view_name = None
    if match is not None:
        if getattr(match.func, EXEMPT, False):
            return None
        view_name = match.view_name
    path, method = request.path_info, request.method or ""
    try:
        first = None if limits.charges else endpoints.find_kept(path, view_name, method)
        if first is not None:
            try:
                await limits.atake_new((first.resource, await limits.aentity(), first.first, ()), first.amounts)
            except _NOT_CHARGED:
                first = None
        if first is None:
            rule = (await endpoints.acurrent()).find(path, view_name, method)
            if rule is not None:
                await _acharge(limits, rule, await limits.aentity())
    except REFUSALS as error:
        return await sync_to_async(_refused)(request, error)
    return None


def _refused(request: HttpRequest, error: LimitExceeded | StoreUnavailable) -> HttpResponseBase:
    """What a request gets that no view sees, which is given back what it was charged before."""
    limits_of(request).undo()
    return refusal(request, error)


def _charge(limits: RequestLimits, rule: Rule, entity: str | None) -> None:
    """Charge what a rule says; 1 of each limit where that cannot be requested, rather than an error or nothing."""
    try:
        limits.take(rule.resource, entity, rule.amounts)
    except InvalidRequest as error:
        rule.report(error)
        limits.take(rule.resource, entity)


async def _acharge(limits: RequestLimits, rule: Rule, entity: str | None) -> None:
    try:
        await limits.atake(rule.resource, entity, rule.amounts)
    except InvalidRequest as error:
        rule.report(error)
        await limits.atake(rule.resource, entity)


def _dropped(limits: RequestLimits, task: asyncio.Task[Any], *, sends: bool) -> None:
    if sends or task.cancelled() or task.exception() is not None:
        limits.end()


def _is_sent_here() -> bool:
    """Whether the response is sent before the task ends which made it: since Django 6 it is that of the server.

    Servers handle what a handler raises, so how such a task ends does not tell.
    Elsewhere a task may end long before its response is sent, as where synchronous middleware stands in front.
    """
    handle = ASGIHandler.handle.__code__
    return any(frame.f_code is handle for frame, _ in walk_stack(None))
