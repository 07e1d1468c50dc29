"""What a view makes of a decision: it is told in the headers of the response, and a refusal may be overruled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from django.http.response import HttpResponseBase
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from limits_app.integrations.drf.errors import TooMuchAtOnce, Unavailable
from limits_app.integrations.headers import tell
from limits_app.integrations.request_limits import RequestLimits

if TYPE_CHECKING:
    from rest_framework.views import APIView

__all__ = ["await_refusal", "await_response"]

_Note = Callable[[HttpResponseBase], HttpResponseBase]

_THROTTLED: Final = status.HTTP_429_TOO_MANY_REQUESTS


def await_response(limits: RequestLimits, view: APIView) -> None:
    """Hear of the response, as the view finishes it.

    What it has as `headers` Django would look at for longer than all this takes.
    """
    finish = getattr(view, "finalize_response", None)
    if finish is not None:
        if finish.__class__ is partial:  # or to ask is a call more
            finish = _before(finish, _finalize_response)
        view.finalize_response = partial(_finalize_response, finish, limits)  # type: ignore[method-assign]


def await_refusal(limits: RequestLimits, view: APIView) -> None:
    """Hear what the view makes of a refusal, which its class, that of a throttle or a hook may overrule."""
    await_response(limits, view)
    handle = getattr(view, "handle_exception", None)
    if handle is not None:
        handle = _before(handle, _handle_exception)
        view.handle_exception = partial(_handle_exception, handle, limits, view)  # type: ignore[method-assign]


def _before(method: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a view as it was before another throttle, or another request, put ours in its place."""
    before: Callable[..., Any] = method.args[0] if isinstance(method, partial) and method.func is ours else method
    return before


def _finalize_response(
    finish: Callable[..., Any],
    limits: RequestLimits,
    request: Request,
    response: Response,
    *args: object,
    **kwargs: object,
) -> Any:
    """Finish a response as the view does, and say in its headers what is left."""
    finished = finish(request, response, *args, **kwargs) if args or kwargs else finish(request, response)
    if finished is not response or finished.__class__ is not Response or limits.guarded:  # most are, and none streams
        return _then(finished, partial(_finished, limits, response))
    # As `_finished` and `told` do, which is three calls more.
    tell(finished, limits.acquired if limits.refused is None else limits.told(finished))
    return finished


def _finished(limits: RequestLimits, response: Response, finished: HttpResponseBase) -> HttpResponseBase:
    if finished is not response and limits.is_refusal(response):
        tell(finished, limits.refused_with(finished, gives_back=True))
    elif not limits.guarded:
        if finished.streaming:
            limits.listen()
        tell(finished, limits.told(finished))
    return finished


def _handle_exception(
    handle: Callable[[Exception], Any], limits: RequestLimits, view: APIView, error: Exception
) -> Any:
    """Handle an error as the view does; what it makes of a refusal is one, whatever its status."""
    response = handle(error)
    if isinstance(error, TooMuchAtOnce | Unavailable) or getattr(error, "status_code", 0) == _THROTTLED:
        return _then(response, partial(_made_of_refusal, limits, view, error.__cause__))
    return response


def _made_of_refusal(
    limits: RequestLimits, view: APIView, refusal: BaseException | None, response: HttpResponseBase
) -> HttpResponseBase:
    tell(response, limits.refused_with(response, refusal, gives_back=True))
    view.headers["Cache-Control"] = "no-store"
    return response


def _then(response: Any, note: _Note) -> Any:
    """A response that was noted; of an asynchronous view it is still to come."""
    if isinstance(response, HttpResponseBase):
        return note(response)
    return _later(response, note) if isawaitable(response) else response


async def _later(response: Awaitable[Any], note: _Note) -> HttpResponseBase:
    return note(await response)
