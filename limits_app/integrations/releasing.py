"""Releasing with a response: what a request holds is settled and returned when its response was sent, or was dropped.

`finish` is called for each response; it also sets the headers of `headers.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from typing import Any, Final, cast
from weakref import ref

from django.core.handlers.asgi import ASGIRequest
from django.core.signals import request_finished
from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase

from limits_app.engine.outcome import Outcome
from limits_app.integrations.headers import set_headers
from limits_app.integrations.holding import ACQUISITION, ViewCall
from limits_app.integrations.request import RequestLimits
from limits_app.integrations.responses import settle_responses
from limits_app.services.integration import Acquisition

ChargeHolder = RequestLimits | ViewCall
"""What releases acquisitions with a response: a request, or without the middleware an outermost decorated view."""

REFUNDS: Final = "limits_refunds"
"""The attribute of a refusal: whether the request is refunded what it was charged when this is its response."""
_MUST_SETTLE: Final = attrgetter("must_settle")
_OUTCOME: Final = attrgetter("outcome")
_PENDING: Final[dict[ref[HttpResponseBase], tuple[ChargeHolder, HttpRequest]]] = {}
"""Responses that are being sent, with what holds the acquisitions to release; the request is kept alive until then."""

_RELEASED_AT_END: Final[ContextVar[tuple[RequestLimits, ...]]] = ContextVar("limits_app_unseen", default=())
"""The limits of the present request whose response no integration sees."""


def finish(response: HttpResponseBase, limits: RequestLimits, holder: ChargeHolder | None) -> None:
    """Set the headers of a response, and release with it what its holder holds; None for a response that is not final.

    That is released when the response was sent, or was dropped.
    """
    is_rejected = limits.refused is not None
    if holder is limits and not (is_rejected or limits.charges or limits.log_ins or response.streaming):
        return
    acquired = dict.fromkeys(map(ACQUISITION, limits.charges))
    outcomes = _after_rejection(response, limits, holder) if is_rejected else tuple(map(_OUTCOME, acquired))
    if outcomes:
        set_headers(response, limits, outcomes)
    if holder is None:
        return
    if limits.by_rules and holder is limits:
        settle_responses(limits, response)
    if limits.log_ins:
        limits.settle_log_ins(response.status_code, getattr(limits.request, "user", None))
    acquisitions = acquired if holder is limits else holder.acquired
    if response.streaming or any([*map(Acquisition.release_unless_held, acquisitions)]):
        _release_when_sent(response, limits, holder)
    elif holder is not limits:
        holder.end()


def _release_when_sent(response: HttpResponseBase, limits: RequestLimits, holder: ChargeHolder) -> None:
    if response.streaming and not isinstance(response, FileResponse):
        streamed = cast(Any, response)
        streamed.streaming_content = _ReleasingStream(streamed.streaming_content, holder)
    _PENDING[ref(response, _release_response)] = holder, limits.request
    _release_with_body(limits)


def _after_rejection(
    response: HttpResponseBase, limits: RequestLimits, holder: ChargeHolder | None
) -> Sequence[Outcome]:
    """Return what the headers of a response report after a rejection; a final one refunds what its holder holds."""
    refunds = getattr(response, REFUNDS, None)
    refused = limits.refused or ()
    outcomes: Sequence[Outcome] = ()
    if refunds is None and response.status_code == limits.throttled_status:
        response.headers["Cache-Control"] = "no-store"
        outcomes, refunds = refused, True
        setattr(response, REFUNDS, refunds)
    elif refunds is None:
        outcomes = refused if limits.is_refunded else (*limits.outcomes, *refused)
    if refunds and holder is not None:
        holder.undo()
    return outcomes


def release_when_finished(limits: RequestLimits) -> None:
    """Release what a request holds when Django has finished it, where no integration sees the response."""
    _RELEASED_AT_END.set((*_RELEASED_AT_END.get(), limits))
    _release_with_body(limits)


def release_with_task(response: HttpResponseBase, holder: ChargeHolder) -> None:
    """Release the acquisitions of a response when this task ends, unless that is still to be sent.

    An asynchronous handler that is cancelled, or cannot send, drops the response without closing it, and the error may
    keep it until garbage is collected. Up to Django 6.0 that ends the task. From 6.1 on this is the task of the server,
    which goes on: see `_release_with_body`.
    """
    if response.streaming or any(map(_MUST_SETTLE, holder.acquired)):
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        task.add_done_callback(partial(_release_after_task, ref(response), holder))


def _release_after_task(reference: ref[HttpResponseBase], holder: ChargeHolder, task: asyncio.Task[Any]) -> None:
    response = reference()
    if response is None or response.closed or task.cancelled() or task.exception() is not None:
        holder.end()


def _release_with_body(limits: RequestLimits) -> None:
    """Release what an asynchronous request holds when its body is closed, at the latest.

    The handler of Django 6.1 closes the body also where it cannot send the response, which it drops then.
    """
    request = limits.request
    request = getattr(request, "_request", request)  # that of Django, of one of the REST framework
    if not isinstance(request, ASGIRequest):
        return
    body: Any = request._stream
    body_reference, limits_reference = ref(body), ref(limits)  # no cycles: they would wait for the garbage collector

    def close() -> None:
        if (open_limits := limits_reference()) is not None:
            open_limits.end()
        if (closed := body_reference()) is not None:
            del closed.close
            closed.close()

    body.close = close


class _ReleasingStream:
    """The content of a streamed response; it releases what is held for it when it is closed."""

    def __init__(self, content: Any, holder: ChargeHolder) -> None:
        self._content = content
        self._request = holder.request  # keeps the request alive, which its limits only refer to
        self._holder = holder

    def __iter__(self) -> Iterator[Any]:
        return iter(self._content)

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._content)

    def close(self) -> None:
        """Release the acquisitions; Django calls this when it closes the response."""
        self._holder.end()


def _release_response(reference: ref[HttpResponseBase]) -> None:
    """Release the acquisitions of a response that was closed, or dropped without having been sent."""
    holder, _request = _PENDING.pop(reference, (None, None))
    if holder is not None:
        holder.end()


def _release_finished(**_: object) -> None:
    """Release what closed responses held, and what the present request holds."""
    ended = _RELEASED_AT_END.get()
    if ended:
        for limits in ended:
            limits.end()
        _RELEASED_AT_END.set(())
    for reference in list(_PENDING):
        response = reference()
        if response is not None and response.closed:
            _release_response(reference)


request_finished.connect(_release_finished, dispatch_uid="limits_app.request_finished")
