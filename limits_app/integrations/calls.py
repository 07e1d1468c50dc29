"""Calls of decorated functions: which of them are views, and how they are run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable, unwrap
from typing import Any, Final, NamedTuple

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.views import View

__all__ = ["BLOCK", "Call", "answer_of", "request_among"]


_NOTHING: Final[Mapping[str, Any]] = {}


class Call(NamedTuple):
    """A call of a decorated function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def request(self) -> HttpRequest | None:
        """The request that a view gets: its first argument, the second one of a method, or `request` by name."""
        return request_among((*self.args[:2], self.kwargs.get("request")))

    @property
    def is_awaited(self) -> bool:
        """Whether a method that is no coroutine gives one, as `dispatch` does for asynchronous class views."""
        first = self.args[0] if self.args else None
        view = first if isinstance(first, View) else _bound_to(self.function)
        return isinstance(view, View) and view.view_is_async

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def ask(self, value: Any) -> Any:
        """A value, or what a callable makes of the arguments."""
        return answer_of(value, *self.args, **self.kwargs) if callable(value) else value

    async def aask(self, value: Any) -> Any:
        """`ask` for asyncio; of a view in a thread, where it may ask the database."""
        if not callable(value):
            return value
        ask = partial(value, *self.args, **self.kwargs)
        in_place = self.request is None or iscoroutinefunction(value)
        answer = ask() if in_place else await sync_to_async(ask)()
        if isawaitable(answer):
            answer = await answer
        return answer


BLOCK: Final = Call(lambda: None, (), {})


def answer_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function answers; a coroutine is waited for."""
    answer = function(*args, **kwargs)
    return async_to_sync(_awaited)(answer) if isawaitable(answer) else answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def request_among(arguments: Sequence[Any]) -> HttpRequest | None:
    """The first of some arguments that is a request, or that the REST framework has wrapped around one."""
    for argument in arguments:
        if isinstance(argument, HttpRequest):
            return argument
    for argument in arguments:
        wrapped = getattr(argument, "__dict__", _NOTHING).get("_request")
        if isinstance(wrapped, HttpRequest):
            return wrapped
    return None


def _bound_to(function: Callable[..., Any]) -> object:
    """What a method is bound to, below other decorators and what `method_decorator` makes of it."""
    found: Any = unwrap(function, stop=lambda one: isinstance(one, partial))
    return getattr(getattr(found, "func", found), "__self__", None)
