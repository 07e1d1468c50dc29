"""`@limited` and `@exempt`, for views and for everything else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from functools import wraps
from inspect import isasyncgenfunction, isgeneratorfunction
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from asgiref.sync import iscoroutinefunction

from limits_app.core.acquisition import Acquisition
from limits_app.core.blocking import checked_timeout
from limits_app.core.errors import InvalidLimit
from limits_app.core.keys import check_entity, check_resource
from limits_app.integrations.amounts import Report
from limits_app.integrations.blocks import aenter, aheld, aleave, enter, leave
from limits_app.integrations.calls import BLOCK, Call
from limits_app.integrations.middleware import EXEMPT
from limits_app.integrations.terms import Amounts, Terms

__all__ = ["exempt", "limited"]

F = TypeVar("F", bound=Callable[..., Any])

_CLASS: Final = "{shown} is for functions: write @method_decorator({shown}, name='dispatch') above the class"


def exempt(view: F) -> F:
    """Have the middleware leave a view alone, whatever endpoints say; `@limited` on it still counts.

    Of a class it is the whole view, by its `dispatch`: a method for one verb is nothing that a middleware sees.
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
    """Let a view, a function, a method or a block run only as limits admit; asynchronous ones as well.

    `requested` are amounts by limit key; of every limit that is not named it takes 1. `entity` is who is charged:
    by default, for a view, whoever makes the request, and otherwise the site itself.
    Both may be callables that take the arguments of the function, also `async def`; those of an asynchronous view are
    called in a thread, where they may ask the database. `timeout` is how many seconds to wait at most.
    `usage` takes the result (of a view, the response) and says what was really used, by limit key;
    `counts` takes it and says whether it counts: if not, all is given back. Both need algorithms that give back.

    A view that is refused gives the response of a refusal; a request is charged once for each limit,
    and what it holds is held until its response was sent. Functions and blocks raise LimitExceeded,
    and hold until they are left; generators from their first item to their last. Usage that nobody reports counts as
    requested. Raises InvalidLimit for a resource or an entity that cannot be.
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
        checked_timeout(timeout)
        who = entity if entity is None or callable(entity) else _literal(entity)
        self._terms = Terms(check_resource(resource), requested, who, timeout, Report(usage, counts))

    def __call__(self, function: F) -> F:
        """Decorate a function; raises TypeError for a class, and for usage that nothing would tell."""
        if isinstance(function, type):
            raise TypeError(_CLASS.format(shown="limited(...)"))
        if isasyncgenfunction(function):
            return cast(F, self._around_async_generator(function))
        if isgeneratorfunction(function):
            return cast(F, self._around_generator(function))
        return cast(F, (self._around_coroutine if iscoroutinefunction(function) else self._around)(function))

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def when_admitted(*args: Any, **kwargs: Any) -> Any:
            call = Call(function, args, kwargs)
            request = call.request
            if request is not None:
                run = self._terms.arun_view if call.is_awaited else self._terms.run_view
                return run(call, request)
            return self._terms.run(call)

        return when_admitted

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def when_admitted(*args: Any, **kwargs: Any) -> Any:
            call = Call(function, args, kwargs)
            request = call.request
            if request is not None:
                return await self._terms.arun_view(call, request)
            async with aheld(await self._terms.aacquire(call)) as acquisition:
                result = await call.run()
                self._terms.report.update(result, acquisition)
                return result

        return when_admitted

    def _around_generator(self, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
        """It is asked for with the first item, and held until the last; the result is what the generator returns."""

        @wraps(function)
        def when_admitted(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            call = Call(function, args, kwargs)
            with self._terms.hold(call) as acquisition:
                result = yield from call.run()
                self._terms.report.update(result, acquisition)
                return result

        return when_admitted

    def _around_async_generator(self, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
        """`_around_generator` for asyncio; what is sent and thrown arrives inside, as with `yield from`."""
        if self._terms.report != Report():
            raise TypeError("an asynchronous generator has no result that `usage` or `counts` could take")

        @wraps(function)
        async def when_admitted(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            call = Call(function, args, kwargs)
            async with await self._terms.ahold(call), aclosing(call.run()) as items:
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

        return when_admitted

    def __enter__(self) -> Acquisition:
        self._check_block()
        return enter(self, self._terms.acquire(BLOCK))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self).__exit__(kind, error, trace)

    async def __aenter__(self) -> Acquisition:
        self._check_block()
        return await aenter(self, await self._terms.aacquire(BLOCK))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await aleave(self).__aexit__(kind, error, trace)

    def _check_block(self) -> None:
        if self._terms.report != Report():
            raise TypeError(
                "a block has no result that `usage` or `counts` could take: "
                "write `with limited(...) as acquisition:`, and inside it `acquisition.update({...})`"
            )


def _literal(entity: object) -> str:
    """An identifier that says itself who is charged; as a pattern it would be one bucket for all who fill it in."""
    named = check_entity(entity)
    if "{" in named:
        raise InvalidLimit(
            f"entity {named!r} is taken as it is: give a function of the arguments, as in "
            "entity=lambda request, pk: f'order:{pk}'"
        )
    return named
