"""`@limited` and `@exempt`, for views, functions, methods, generators and blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing
from contextvars import ContextVar
from functools import wraps
from inspect import isasyncgenfunction, isgeneratorfunction
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from asgiref.sync import iscoroutinefunction

from limits_app.engine.errors import InvalidLimit
from limits_app.integrations.calls import AmountsByKey, CallRule, LimitedCall, Report, is_awaited
from limits_app.integrations.request import EXEMPT
from limits_app.services.amounts import one_client
from limits_app.services.code_names import name_in_code
from limits_app.services.integration import (
    Acquisition,
    EntityName,
    LimitDefinition,
    check_entity,
    check_resource,
    checked_limits,
    checked_priority,
    checked_timeout,
)

F = TypeVar("F", bound=Callable[..., Any])

_CLASS: Final = "{shown} is for functions: write @method_decorator({shown}, name='dispatch') above the class"
_ENTERED: Final[ContextVar[tuple[tuple[object, Acquisition], ...]]] = ContextVar("limits_app_entered", default=())
"""The blocks that this thread or task has entered: a `limited` may be shared, and entered again inside itself."""


def exempt(view: F) -> F:
    """Exclude a view from endpoints, so that the middleware does not charge it; `@limited` on it still counts.

    For a class view, decorate its `dispatch`: the middleware sees the whole view and not the method for one verb.
    Raises TypeError for a class.
    """
    if isinstance(view, type):
        raise TypeError(_CLASS.format(shown="exempt"))
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
    """Run a view, a function, a method, a generator or a block when its limits admit it; also asynchronous ones.

    `requested` are amounts by limit key; of every limit that is not named it takes 1. `entity` is the entity that is
    charged: by default, for a view, that of the request, otherwise the site itself.
    Both may be callables that take the arguments of the function, also `async def`; those of an asynchronous view are
    called in a thread, where they may query the database. An entity may be a user, such as `request.user`.
    `default_limits` apply where no policy does, as limits or as text such as `"100/min tokens=1M/day"`.
    `timeout` is the longest wait in seconds. `priority` is one of `LIMITS["PRIORITIES"]`, by default that of the plan
    or the resource.
    `usage` takes the result (of a view, the response) and returns the amounts that were used, by limit key;
    `counts` takes it and returns whether it counts: if not, everything is refunded. Both need algorithms that refund.

    A view that is rejected returns a refusal; a request is charged once for each resource, and holds what it takes
    until its response was sent. Functions and blocks raise LimitExceeded, and hold until they end; generators from
    their first item to their last. Usage that is not reported counts as requested.
    Raises InvalidLimit for an invalid resource or entity.
    """

    def __init__(
        self,
        resource: str,
        *,
        requested: AmountsByKey | Callable[..., AmountsByKey | None] | None = None,
        entity: EntityName | Callable[..., EntityName] = None,
        timeout: float | None = 0,
        usage: Callable[[Any], AmountsByKey] | None = None,
        counts: Callable[[Any], bool] | None = None,
        default_limits: Iterable[LimitDefinition | str] | str = (),
        priority: str | None = None,
    ) -> None:
        if callable(resource):
            raise TypeError("@limited needs the name of a resource: write @limited('reports')")
        checked_timeout(timeout)
        if priority is not None:
            checked_priority(priority)
        named = entity if entity is None or callable(entity) else _literal(entity)
        defaults = checked_limits(default_limits, "default_limits=[limit]") if default_limits else ()
        report = Report(usage, counts)
        self._rule = CallRule(check_resource(resource), requested, named, timeout, report, defaults, priority)
        name_in_code(resource)

    def __call__(self, function: F) -> F:
        """Decorate a function; raises TypeError for a class, and for usage that no result could report."""
        if isinstance(function, type):
            raise TypeError(_CLASS.format(shown="limited(...)"))
        if isasyncgenfunction(function):
            return cast(F, self._around_async_generator(function))
        if isgeneratorfunction(function):
            return cast(F, self._around_generator(function))
        return cast(F, (self._around_coroutine if iscoroutinefunction(function) else self._around)(function))

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def limited_function(*args: Any, **kwargs: Any) -> Any:
            call = LimitedCall(self._rule, function, args, kwargs)
            request = call.request
            if request is None:
                return call.run()
            is_async = is_awaited(function, args[0] if args else None)
            return call.arun_view(request) if is_async else call.run_view(request)

        return limited_function

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def limited_function(*args: Any, **kwargs: Any) -> Any:
            call = LimitedCall(self._rule, function, args, kwargs)
            request = call.request
            return await (call.arun() if request is None else call.arun_view(request))

        return limited_function

    def _around_generator(self, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
        """Acquire before the first item, and hold until the last; the result is what the generator returns."""

        @wraps(function)
        def limited_function(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            call = LimitedCall(self._rule, function, args, kwargs)
            with call.hold() as acquisition:
                result = yield from call.call()
                self._rule.report.update_acquired(result, acquisition)
                return result

        return limited_function

    def _around_async_generator(self, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
        """`_around_generator` for asyncio; what is sent and thrown arrives inside, as with `yield from`."""
        if self._rule.report:
            raise TypeError("an asynchronous generator has no result that `usage` or `counts` could take")

        @wraps(function)
        async def limited_function(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            call = LimitedCall(self._rule, function, args, kwargs)
            async with await call.ahold(), aclosing(call.call()) as items:
                step = items.asend(None)
                try:
                    while True:
                        item = await step
                        try:
                            step = items.asend((yield item))
                        except GeneratorExit:
                            raise
                        except BaseException as error:  # noqa: BLE001 - it is handed on
                            step = items.athrow(error)
                except StopAsyncIteration:
                    return

        return limited_function

    def __enter__(self) -> Acquisition:
        return self._push_entered(self._block_call().acquire()).__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pop_entered().__exit__(kind, error, trace)

    async def __aenter__(self) -> Acquisition:
        return await self._push_entered(await self._block_call().aacquire()).__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pop_entered().__aexit__(kind, error, trace)

    def _block_call(self) -> LimitedCall:
        if self._rule.report:
            raise TypeError(
                "a block has no result that `usage` or `counts` could take: "
                "write `with limited(...) as acquisition:`, and inside it `acquisition.update({...})`"
            )
        return LimitedCall(self._rule, lambda: None, (), {})

    def _push_entered(self, acquisition: Acquisition) -> Acquisition:
        _ENTERED.set((*_ENTERED.get(), (self, acquisition)))
        return acquisition

    def _pop_entered(self) -> Acquisition:
        """Return the acquisition of the block that this thread or task entered last with this manager."""
        entered = _ENTERED.get()
        for index in reversed(range(len(entered))):
            owner, acquisition = entered[index]
            if owner is self:
                _ENTERED.set(entered[:index] + entered[index + 1 :])
                return acquisition
        raise RuntimeError("the block was entered by another task: enter and leave it in the same one")


def _literal(entity: EntityName) -> str:
    """Return an identifier; InvalidLimit for a pattern, which would be one bucket for all values of its fields."""
    named = check_entity(one_client(entity))
    if named in {"ip", "user", "user_or_ip"}:  # keys of @ratelimit
        raise InvalidLimit(
            f"entity {named!r} is one counter for all clients: leave it out to count each user or address, or give a "
            "function of the request, such as client_of of limits_app.integrations.identity"
        )
    if "{" in named:
        raise InvalidLimit(
            f"entity {named!r} is taken as it is: give a function of the arguments, as in "
            "entity=lambda request, pk: f'order:{pk}'"
        )
    return named
