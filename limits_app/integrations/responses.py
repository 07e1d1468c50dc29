"""The end of a response, which is when a request releases what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, cast
from weakref import ref

from django.core.signals import request_finished
from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase

from limits_app.integrations.request import RequestLimits

__all__ = ["release_when_finished", "release_when_sent", "release_with_task"]

_PENDING: Final[dict[ref[HttpResponseBase], tuple[RequestLimits, HttpRequest]]] = {}
"""Responses that are being sent, with the limits to release; the request is kept alive until then."""

_RELEASED_AT_END: Final[ContextVar[tuple[RequestLimits, ...]]] = ContextVar("limits_app_unseen", default=())
"""The limits of the present request whose response no integration sees."""


def release_when_finished(limits: RequestLimits) -> None:
    """Release what a request holds when Django has finished it, where no integration sees the response."""
    _RELEASED_AT_END.set((*_RELEASED_AT_END.get(), limits))


def release_when_sent(response: HttpResponseBase, limits: RequestLimits) -> None:
    """Release what a request holds when its response was sent, or was dropped."""
    if response.streaming and not isinstance(response, FileResponse):
        streamed = cast(Any, response)
        streamed.streaming_content = _ReleasingStream(streamed.streaming_content, limits)
    elif response.streaming or limits.acquired:
        _PENDING[ref(response, _release_response)] = limits, limits.request


def release_with_task(response: HttpResponseBase, limits: RequestLimits) -> None:
    """Release what a request holds when this task ends, unless its response is still to be sent.

    An asynchronous handler that is cancelled, or cannot send, drops the response without closing it.
    """
    if response.streaming or limits.acquired:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        task.add_done_callback(partial(_release_after_task, ref(response), limits))


def _release_after_task(reference: ref[HttpResponseBase], limits: RequestLimits, task: asyncio.Task[Any]) -> None:
    response = reference()
    if response is None or response.closed or task.cancelled() or task.exception() is not None:
        limits.end()


class _ReleasingStream:
    """The content of a streamed response; it releases what the request holds when it is closed."""

    def __init__(self, content: Any, limits: RequestLimits) -> None:
        self._content = content
        self._request = limits.request  # keeps the request alive, which its limits only refer to
        self._limits = limits

    def __iter__(self) -> Iterator[Any]:
        return iter(self._content)

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._content)

    def close(self) -> None:
        """Release what is held; Django calls this when it closes the response."""
        self._limits.end()


def _release_response(reference: ref[HttpResponseBase]) -> None:
    """Release what a request holds whose response was closed, or dropped without having been sent."""
    limits, _request = _PENDING.pop(reference, (None, None))
    if limits is not None:
        limits.end()


def _release_finished(**_: object) -> None:
    """Release what closed responses held, and what the present request holds."""
    for limits in _RELEASED_AT_END.get():
        limits.end()
    _RELEASED_AT_END.set(())
    for reference in list(_PENDING):
        response = reference()
        if response is not None and response.closed:
            _release_response(reference)


request_finished.connect(_release_finished, dispatch_uid="limits_app.request_finished")
