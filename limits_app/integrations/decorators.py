"""`@limited` and `@exempt`, for views and for everything else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial, wraps
from inspect import isasyncgenfunction, isawaitable, isgeneratorfunction
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.keys import check_entity, check_resource
from limits_app.core.turns import seconds_of
from limits_app.integrations.amounts import Report, one_of_each
from limits_app.integrations.blocks import enter, held, iterated, leave
from limits_app.integrations.calls import BLOCK, Call
from limits_app.integrations.headers import tell
from limits_app.integrations.identity import sound
from limits_app.integrations.middleware import EXEMPT
from limits_app.integrations.refusals import REFUSALS, refusal
from limits_app.integrations.request_limits import RequestLimits, limits_of

__all__ = ["exempt", "limited"]

F = TypeVar("F", bound=Callable[..., Any])
Amounts = Mapping[str, Amount]

_CLASS: Final = (
    "{shown} is for functions: decorate a method of the class, as with @method_decorator({shown}, name='dispatch')"
)


def exempt(view: F) -> F:
    """Have the middleware leave a view alone, whatever endpoints say; `@limited` on it still counts."""
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
    Both may be callables that take the arguments of the function. `timeout` is how many seconds to wait at most.
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
        seconds_of(timeout)
        self._report = Report(usage, counts)
        self._resource = check_resource(resource)
        self._requested = requested
        self._entity = entity if entity is None or callable(entity) else check_entity(entity)
        self._timeout = timeout

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
                run = self._arun_view if call.is_awaited else self._run_view
                return run(call, request)
            return self._run(call, self._acquire(call))

        return when_admitted

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def when_admitted(*args: Any, **kwargs: Any) -> Any:
            call = Call(function, args, kwargs)
            request = call.request
            if request is not None:
                return await self._arun_view(call, request)
            with held(await self._aacquire(call)) as acquisition:
                result = await call.run()
                self._report.update(acquisition, result)
                return result

        return when_admitted

    def _around_generator(self, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
        """It is asked for with the first item, and held until the last; the result is what the generator returns."""

        @wraps(function)
        def when_admitted(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            call = Call(function, args, kwargs)
            with self._hold(call) as acquisition:
                result = yield from call.run()
                self._report.update(acquisition, result)
                return result

        return when_admitted

    def _around_async_generator(self, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
        """`_around_generator` for asyncio; what is sent and thrown arrives inside, as with `yield from`."""
        if self._report != Report():
            raise TypeError("an asynchronous generator has no result that `usage` or `counts` could take")

        @wraps(function)
        async def when_admitted(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            call = Call(function, args, kwargs)
            with await self._ahold(call):
                async with aclosing(call.run()) as items:
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
        return enter(self, self._acquire(BLOCK))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self).__exit__(kind, error, trace)

    async def __aenter__(self) -> Acquisition:
        self._check_block()
        return enter(self, await self._aacquire(BLOCK))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self).__exit__(kind, error, trace)

    def _acquire(self, call: Call) -> Acquisition:
        asked = partial(one_of_each, self._amounts(call))
        return services.acquire(self._resource, entity=self._payer(call), requested=asked, timeout=self._timeout)

    async def _aacquire(self, call: Call) -> Acquisition:
        asked = partial(one_of_each, self._amounts(call))
        return await services.aacquire(self._resource, entity=self._payer(call), requested=asked, timeout=self._timeout)

    def _check_block(self) -> None:
        if self._report != Report():
            raise TypeError(
                "a block has no result that `usage` or `counts` could take: "
                "write `with limited(...) as acquisition:`, and inside it `acquisition.update({...})`"
            )

    def _hold(self, call: Call) -> AbstractContextManager[Acquisition]:
        """Hold while a generator runs, or until the response to the request that it takes was sent."""
        request = call.request
        if request is None:
            return iterated(self._acquire(call))
        limits, entity = limits_of(request), self._payer(call)
        entity = limits.entity if self._is_requester(entity) else entity
        return nullcontext(limits.charge(self._resource, entity, self._amounts(call), self._timeout))

    async def _ahold(self, call: Call) -> AbstractContextManager[Acquisition]:
        """`_hold` for asyncio."""
        request = call.request
        if request is None:
            return iterated(await self._aacquire(call))
        limits, entity = limits_of(request), self._payer(call)
        entity = await limits.aentity() if self._is_requester(entity) else entity
        return nullcontext(await limits.acharge(self._resource, entity, self._amounts(call), self._timeout))

    def _run(self, call: Call, acquisition: Acquisition) -> Any:
        """Run a function; where it gives something to wait for, hold until that was waited for."""
        try:
            result = call.run()
            if isawaitable(result):
                return self._awaited(acquisition, result)
            self._report.update(acquisition, result)
        except BaseException as error:
            acquisition.__exit__(type(error), error, error.__traceback__)
            raise
        acquisition.release()
        return result

    async def _awaited(self, acquisition: Acquisition, result: Awaitable[Any]) -> Any:
        with held(acquisition):
            found = await result
            self._report.update(acquisition, found)
            return found

    def _run_view(self, call: Call, request: HttpRequest) -> Any:
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

    async def _arun_view(self, call: Call, request: HttpRequest) -> Any:
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

    def _amounts(self, call: Call) -> Amounts:
        return call.ask(self._requested) or {}

    def _payer(self, call: Call) -> str | None:
        """Who was named; empty text when somebody should have been."""
        entity: str | None = call.ask(self._entity)
        return sound(entity) if entity else entity

    def _is_requester(self, entity: str | None) -> bool:
        """Whether the requester is charged: because nobody is named, or the name is empty and would be everybody's."""
        return self._entity is None or entity == ""


def _fail(limits: RequestLimits, error: BaseException) -> None:
    """Give back what a failed view did not use, where no middleware does so."""
    if not limits.guarded:
        limits.fail(error)
