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

_OPEN: Final[dict[ref[HttpResponseBase], tuple[RequestLimits, HttpRequest]]] = {}
"""Responses that are being sent, with the limits to release, and the request, which lives until then."""

_UNSEEN: Final[ContextVar[tuple[RequestLimits, ...]]] = ContextVar("limits_app_unseen", default=())
"""The limits of the present request whose response no integration sees."""


def release_when_finished(limits: RequestLimits) -> None:
    """Release what a request holds when Django has finished it, where no integration sees the response."""
    _UNSEEN.set((*_UNSEEN.get(), limits))


def release_when_sent(response: HttpResponseBase, limits: RequestLimits) -> None:
    """Release what a request holds when its response was sent, or was dropped."""
    if response.streaming and not isinstance(response, FileResponse):
        streamed = cast(Any, response)
        streamed.streaming_content = _HeldStream(streamed.streaming_content, limits)
    elif response.streaming or limits.acquired:
        _OPEN[ref(response, _end_of)] = limits, limits.request


def release_with_task(response: HttpResponseBase, limits: RequestLimits) -> None:
    """Release what a request holds when this task ends, unless its response is still to be sent.

    An asynchronous handler that is cancelled, or cannot send, drops the response without closing it.
    """
    if response.streaming or limits.acquired:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        task.add_done_callback(partial(_end_of_task, ref(response), limits))


def _end_of_task(reference: ref[HttpResponseBase], limits: RequestLimits, task: asyncio.Task[Any]) -> None:
    response = reference()
    if response is None or response.closed or task.cancelled() or task.exception() is not None:
        limits.end()


class _HeldStream:
    """The content of a streamed response, whose end is that of the request."""

    def __init__(self, content: Any, limits: RequestLimits) -> None:
        self._content = content
        self._request = limits.request  # a stream may need nothing else of the request than its limits
        self._limits = limits

    def __iter__(self) -> Iterator[Any]:
        return iter(self._content)

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._content)

    def close(self) -> None:
        """Release what is held; Django calls this when it closes the response."""
        self._limits.end()


def _end_of(reference: ref[HttpResponseBase]) -> None:
    """Release what a response held that was closed, or dropped without having been sent."""
    limits, _request = _OPEN.pop(reference, (None, None))
    if limits is not None:
        limits.end()


def _end_closed(**_: object) -> None:
    """Release what closed responses held, and what the present request holds."""
    for limits in _UNSEEN.get():
        limits.end()
    _UNSEEN.set(())
    for reference in list(_OPEN):
        response = reference()
        if response is not None and response.closed:
            _end_of(reference)


request_finished.connect(_end_closed, dispatch_uid="limits_app.request_finished")
