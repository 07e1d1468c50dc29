"""`@limited` and `@exempt`, for views and for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import isawaitable, unwrap
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views import View

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.keys import check_entity, check_resource
from limits_app.core.turns import seconds_of
from limits_app.integrations.amounts import Report, one_of_each
from limits_app.integrations.blocks import enter, held, leave
from limits_app.integrations.headers import tell
from limits_app.integrations.identity import sound
from limits_app.integrations.middleware import EXEMPT
from limits_app.integrations.refusals import REFUSALS, refusal
from limits_app.integrations.request_limits import RequestLimits, limits_of

__all__ = ["exempt", "limited"]

F = TypeVar("F", bound=Callable[..., Any])
Amounts = Mapping[str, Amount]


def exempt(view: F) -> F:
    """Have the middleware leave a view alone, whatever endpoints say; `@limited` on it still counts."""
    if iscoroutinefunction(view):

        @wraps(view)
        async def exempted(*args: Any, **kwargs: Any) -> Any:
            return await view(*args, **kwargs)

    else:

        @wraps(view)
        def exempted(*args: Any, **kwargs: Any) -> Any:
            return view(*args, **kwargs)

    setattr(exempted, EXEMPT, True)
    return cast(F, exempted)


class limited:  # noqa: N801 - used like a function
    """Let a view, a function, a method or a block run only as limits admit; asynchronous ones as well.

    `requested` are amounts by limit key; of every limit that is not named it takes 1. `entity` is who is charged:
    by default, for a view, whoever makes the request, and otherwise the site itself.
    Both may be callables that take the arguments of the function. `timeout` is how many seconds to wait at most.
    `usage` takes the result (of a view, the response) and says what was really used, by limit key;
    `counts` takes it and says whether it counts: if not, all is given back. Both need algorithms that give back.

    A view that is refused gives the response of a refusal; a request is charged once for each limit,
    and what it holds is held until its response was sent. Functions and blocks raise LimitExceeded,
    and hold until they are left. Usage that nobody reports counts as requested.
    Raises InvalidLimit for a resource or an entity that cannot be.
    """

    def __init__(
        self,
        resource: str,
        *,
        requested: Amounts | Callable[..., Amounts | None] | None = None,
        entity: str | Callable[..., str | None] | None = None,
        timeout: float | None = 0,
        usage: Callable[[Any], Amounts] | None = None,
        counts: Callable[[Any], bool] | None = None,
    ) -> None:
        seconds_of(timeout)
        self._report = Report(usage, counts)
        self._resource = check_resource(resource)
        self._requested = requested
        self._entity = entity if entity is None or callable(entity) else check_entity(entity)
        self._timeout = timeout

    def __call__(self, function: F) -> F:
        """Decorate a function."""
        if iscoroutinefunction(function):

            @wraps(function)
            async def when_admitted(*args: Any, **kwargs: Any) -> Any:
                call = _Call(function, args, kwargs)
                if call.request is not None:
                    return await self._arun_view(call, call.request)
                with held(await self._aacquire(call)) as acquisition:
                    result = await call.run()
                    self._report.update(acquisition, result)
                    return result

        else:

            @wraps(function)
            def when_admitted(*args: Any, **kwargs: Any) -> Any:
                call = _Call(function, args, kwargs)
                if call.request is not None:
                    run = self._arun_view if call.is_awaited else self._run_view
                    return run(call, call.request)
                with held(self._acquire(call)) as acquisition:
                    result = call.run()
                    self._report.update(acquisition, result)
                    return result

        return cast(F, when_admitted)

    def __enter__(self) -> Acquisition:
        return enter(self, self._acquire(_BLOCK))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self).__exit__(kind, error, trace)

    async def __aenter__(self) -> Acquisition:
        return enter(self, await self._aacquire(_BLOCK))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self).__exit__(kind, error, trace)

    def _acquire(self, call: _Call) -> Acquisition:
        asked = partial(one_of_each, self._amounts(call))
        return services.acquire(self._resource, entity=self._payer(call), requested=asked, timeout=self._timeout)

    async def _aacquire(self, call: _Call) -> Acquisition:
        asked = partial(one_of_each, self._amounts(call))
        return await services.aacquire(self._resource, entity=self._payer(call), requested=asked, timeout=self._timeout)

    def _run_view(self, call: _Call, request: HttpRequest) -> Any:
        limits, entity = limits_of(request), self._payer(call)
        try:
            entity = limits.entity if self._is_requester(entity) else entity
            acquisition = limits.charge(self._resource, entity, self._amounts(call), self._timeout)
        except REFUSALS as error:
            limits.undo()
            return refusal(request, error)
        try:
            return self._answered(limits, acquisition, call.run())
        except BaseException as error:
            _fail(limits, error)
            raise

    async def _arun_view(self, call: _Call, request: HttpRequest) -> Any:
        limits, entity = limits_of(request), self._payer(call)
        try:
            entity = await limits.aentity() if self._is_requester(entity) else entity
            acquisition = await limits.acharge(self._resource, entity, self._amounts(call), self._timeout)
        except REFUSALS as error:
            limits.undo()
            return await sync_to_async(refusal)(request, error)
        try:
            result = call.run()
            return self._answered(limits, acquisition, await result if isawaitable(result) else result)
        except BaseException as error:
            _fail(limits, error)
            raise

    def _answered(self, limits: RequestLimits, acquisition: Acquisition, response: Any) -> Any:
        """Report what a response says of its cost, and tell of limits where no middleware does so."""
        self._report.update(acquisition, response)
        if not limits.guarded and isinstance(response, HttpResponseBase):
            tell(response, limits.decided)
        return response

    def _amounts(self, call: _Call) -> Amounts:
        return call.ask(self._requested) or {}

    def _payer(self, call: _Call) -> str | None:
        """Who was named; empty text when somebody should have been."""
        entity: str | None = call.ask(self._entity)
        return sound(entity) if entity else entity

    def _is_requester(self, entity: str | None) -> bool:
        """Whether the requester is charged: because nobody is named, or the name is empty and would be everybody's."""
        return self._entity is None or entity == ""


class _Call(NamedTuple):
    """A call of a decorated function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def request(self) -> HttpRequest | None:
        """The request that a view gets: its first argument, the second one of a method, or `request` by name."""
        for argument in (*self.args[:2], self.kwargs.get("request")):
            if isinstance(argument, HttpRequest):
                return argument
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


_BLOCK = _Call(lambda: None, (), {})


def _bound_to(function: Callable[..., Any]) -> object:
    """What a method is bound to, below other decorators and what `method_decorator` makes of it."""
    found: Any = unwrap(function, stop=lambda one: isinstance(one, partial))
    return getattr(getattr(found, "func", found), "__self__", None)


def _fail(limits: RequestLimits, error: BaseException) -> None:
    """Give back what a failed view did not use, where no middleware does so."""
    if not limits.guarded:
        limits.fail(error)
