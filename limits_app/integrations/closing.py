"""The end of a request: when its response has been sent, to the last byte."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

from django.http import HttpRequest

__all__ = ["when_closed"]


def when_closed(request: HttpRequest, end: Callable[[], None]) -> None:
    """Call `end` when a request is closed, which servers do, through the response, when that was sent.

    Not with a closer of the response: that one may be cached, or replaced on its way out.
    And no signal tells whose end it is.
    """
    # The request refers to this: a cycle would leave all of it to the garbage collector, request by request.
    reference = ref(request)
    before = request.__dict__.get("close")  # of somebody who had replaced it, too

    def close_and_end() -> None:
        closed = reference()
        try:
            if before is not None:
                before()
            elif closed is not None:
                type(closed).close(closed)
        finally:
            end()

    request.close = close_and_end  # type: ignore[method-assign]  # see above
