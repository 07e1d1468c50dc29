"""Calls of decorated functions: which of them are views, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import unwrap
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.views import View

__all__ = ["BLOCK", "Call"]


_NOTHING: Final[Mapping[str, Any]] = {}


class Call(NamedTuple):
    """A call of a decorated function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def request(self) -> HttpRequest | None:
        """The request that a view gets: its first argument, the second one of a method, or `request` by name.

        The REST framework wraps it.
        """
        arguments = (*self.args[:2], self.kwargs.get("request"))
        for argument in arguments:
            if isinstance(argument, HttpRequest):
                return argument
        for argument in arguments:
            wrapped = getattr(argument, "__dict__", _NOTHING).get("_request")
            if isinstance(wrapped, HttpRequest):
                return wrapped
        return None

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
        return value(*self.args, **self.kwargs) if callable(value) else value


BLOCK: Final = Call(lambda: None, (), {})


def _bound_to(function: Callable[..., Any]) -> object:
    """What a method is bound to, below other decorators and what `method_decorator` makes of it."""
    found: Any = unwrap(function, stop=lambda one: isinstance(one, partial))
    return getattr(getattr(found, "func", found), "__self__", None)
