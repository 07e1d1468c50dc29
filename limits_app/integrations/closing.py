"""The end of a request: when its response has been sent, to the last byte, or when another one is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from weakref import ref

from django.http import HttpRequest
from django.http.response import HttpResponseBase

__all__ = ["drop", "when_closed"]


def when_closed(request: HttpRequest, end: Callable[[], None]) -> None:
    """Call `end` when a request is closed, which servers do, through the response, when that was sent.

    Not with a closer of the response: that one may be cached, or replaced on its way out.
    And no signal tells whose end it is.
    """
    before = request.__dict__.get("close")  # of somebody who had replaced it, too
    # The request refers to this: a cycle would leave all of it to the garbage collector, request by request.
    request.close = partial(_close, ref(request), before, end)  # type: ignore[method-assign]  # see above


def _close(reference: ref[HttpRequest], before: Callable[[], None] | None, end: Callable[[], None]) -> None:
    request = reference()
    try:
        if before is not None:
            before()
        elif request is not None:
            type(request).close(request)
    finally:
        end()


def drop(response: HttpResponseBase) -> None:
    """Close what a response has open that is not sent.

    Not by its `close`, which tells everybody that the request is over.
    """
    closers = response._resource_closers  # type: ignore[attr-defined]  # which is all but its `close` has
    for close in closers:
        with suppress(Exception):  # as Django has it
            close()
    closers.clear()
