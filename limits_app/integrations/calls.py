"""Calls of decorated functions: what they request, from whom, and how they run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, unwrap
from typing import Any, TypedDict, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views import View

from limits_app import services
from limits_app.integrations.charges import Charge
from limits_app.integrations.holding import CallBlock, ViewCall
from limits_app.integrations.identity import normalize_entity
from limits_app.integrations.refusals import REFUSALS, call_sync, refusal
from limits_app.integrations.releasing import REFUNDS, finish, release_with_task
from limits_app.integrations.request import RequestLimits, limits_of
from limits_app.services.amounts import AcquireOptions, one_of_each
from limits_app.services.integration import Acquisition, DefaultLimits, EntityName, GivenAmount, entity_name

AmountsByKey = Mapping[str, GivenAmount]


@dataclass(frozen=True, slots=True)
class Report:
    """Functions of a result: `counts` returns whether it is charged, `usage` how much of each limit was used."""

    usage: Callable[[Any], AmountsByKey] | None = None
    counts: Callable[[Any], bool] | None = None

    def __bool__(self) -> bool:
        return self.usage is not None or self.counts is not None

    def update(self, result: object, charges: Sequence[Charge]) -> None:
        """Report the usage of a result, so that the rest is refunded at release where the algorithm can.

        Of several charges of a resource, each amount is reported to the last one that has its limit.
        """
        charged = [charge for charge in charges if not charge.is_released]
        if not charged:
            return
        if self.counts is not None and not self.counts(result):
            for charge in charged:
                charge.update(dict.fromkeys(charge.uses(), 0))
        elif self.usage is not None:
            used = dict(self.usage(result))
            while len(charged) > 1:
                charge = charged.pop()
                charge.update({key: used.pop(key) for key in [*used] if key in charge.uses()})
            charged[0].update(used)

    def update_acquired(self, result: object, acquisition: Acquisition) -> None:
        """`update` for what a function or a generator holds by itself."""
        self.update(result, [Charge("", None, acquisition=acquisition)])


@dataclass(frozen=True, slots=True)
class CallRule:
    """What `@limited` says: what a call requests, which entity is charged, how long it waits, how usage is reported."""

    resource: str
    requested: AmountsByKey | Callable[..., AmountsByKey | None] | None
    entity: str | Callable[..., EntityName] | None
    timeout: float | None
    report: Report
    default_limits: DefaultLimits = ()
    priority: str | None = None


class _ChargeOptions(TypedDict):
    timeout: float | None
    default_limits: DefaultLimits
    priority: str | None


@dataclass(frozen=True, slots=True)
class LimitedCall:
    """A call of a function that a rule limits."""

    rule: CallRule
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def request(self) -> HttpRequest | None:
        """The request of a view: its first argument, the second one of a method, or `request` by name.

        It is of Django or of the REST framework.
        """
        framework = sys.modules.get("rest_framework.request")  # before it is imported, no argument is a request of it
        kinds = (HttpRequest,) if framework is None else (HttpRequest, framework.Request)
        for argument in (*self.args[:2], self.kwargs.get("request")):
            if isinstance(argument, kinds):
                return cast(HttpRequest, argument)
        return None

    def call(self) -> Any:
        """Call the function."""
        return self.function(*self.args, **self.kwargs)

    def acquire(self) -> Acquisition:
        """Acquire what a function or a block holds while it runs; raises what `limits.acquire` raises."""
        return services.acquire(self.rule.resource, **self._acquire_options(*self._charged()))

    async def aacquire(self) -> Acquisition:
        """`acquire` for asyncio."""
        return await services.aacquire(self.rule.resource, **self._acquire_options(*await self._acharged()))

    def run(self) -> Any:
        """Acquire and call a function; where it returns an awaitable, hold until that was awaited."""
        with ExitStack() as stack:
            acquisition = stack.enter_context(self.acquire())
            result = self.call()
            if isawaitable(result):
                acquisition.leave_block()  # the block goes on where it is awaited
                stack.pop_all()
                return self._awaited(acquisition, result)
            self.rule.report.update_acquired(result, acquisition)
            return result

    async def arun(self) -> Any:
        """`run` for asyncio."""
        return await self._awaited(await self.aacquire(), self.call())

    async def _awaited(self, acquisition: Acquisition, result: Awaitable[Any]) -> Any:
        async with acquisition:
            value = await result
            self.rule.report.update_acquired(value, acquisition)
            return value

    def hold(self) -> AbstractContextManager[Acquisition]:
        """Hold while a generator runs; with a request, until its response was sent."""
        request = self.request
        if request is None:
            return iterating(self.acquire())
        limits = limits_of(request)
        entity, named = self._charged(limits)
        is_released = self._is_released(limits, entity)
        acquisition = limits.charge(self.rule.resource, entity, named, **self._options())
        return nullcontext(acquisition) if is_released else iterating(acquisition)

    async def ahold(self) -> AbstractAsyncContextManager[Acquisition]:
        """`hold` for asyncio."""
        request = self.request
        if request is None:
            return aiterating(await self.aacquire())
        limits = limits_of(request)
        entity, named = await self._acharged(limits)
        is_released = self._is_released(limits, entity)
        acquisition = await limits.acharge(self.rule.resource, entity, named, **self._options())
        return nullcontext(acquisition) if is_released else aiterating(acquisition)

    def run_view(self, request: HttpRequest) -> Any:
        """Call a view, whose request holds what it takes until the response was sent; or return a refusal."""
        limits = limits_of(request)
        entity, named = self._charged(limits)
        limits.has_decorator = True
        with CallBlock(limits) as call:
            try:
                limits.charge(self.rule.resource, entity, named, **self._options())
            except REFUSALS as error:
                return report_response(limits, refusal(request, error, refunds=True), call)
            return self._finish(limits, entity, self.call(), call)

    async def arun_view(self, request: HttpRequest) -> Any:
        """`run_view` for asyncio."""
        limits = limits_of(request)
        entity, named = await self._acharged(limits)
        limits.has_decorator = True
        async with CallBlock(limits) as call:
            try:
                await limits.acharge(self.rule.resource, entity, named, **self._options())
            except REFUSALS as error:
                refused = await sync_to_async(refusal)(request, error, refunds=True)
                return await sync_to_async(report_response)(limits, refused, call)
            result = self.call()
            response = await result if isawaitable(result) else result
            if call is not None and call.outer is None and isinstance(response, HttpResponseBase):
                release_with_task(response, call)
            if limits.refused is None:
                return self._finish(limits, entity, response, call)
            return await sync_to_async(self._finish)(limits, entity, response, call)  # it may refund

    def _finish(self, limits: RequestLimits, entity: str | None, response: Any, call: ViewCall | None) -> Any:
        """Report the usage of a response, and set its headers where there is no middleware."""
        if not getattr(response, REFUNDS, False):
            charges = limits.held(self.rule.resource, entity)
            when_rendered = getattr(response, "add_post_render_callback", None)
            if when_rendered is not None and self.rule.report:  # templates are rendered after the view
                when_rendered(lambda rendered: self.rule.report.update(rendered, charges))
            else:
                self.rule.report.update(response, charges)
        return report_response(limits, response, call)

    def _acquire_options(self, entity: str | None, named: AmountsByKey) -> AcquireOptions:
        return {
            "entity": entity,
            "requested": partial(one_of_each, named),
            "timeout": self.rule.timeout,
            "default_limits": self.rule.default_limits,
            "require_usage": False,
            "priority": self.rule.priority,
        }

    def _options(self) -> _ChargeOptions:
        rule = self.rule
        return {"timeout": rule.timeout, "default_limits": rule.default_limits, "priority": rule.priority}

    def _charged(self, limits: RequestLimits | None = None) -> tuple[str | None, AmountsByKey]:
        """The entity that is charged, and the amounts that the rule names.

        The entity is that of a request where the rule has none, or an empty one that clients would share.
        """
        entity = _identifier(self._evaluated(self.rule.entity))
        if limits is not None and (self.rule.entity is None or entity == ""):
            entity = limits.entity
        return entity, self._evaluated(self.rule.requested) or {}

    async def _acharged(self, limits: RequestLimits | None = None) -> tuple[str | None, AmountsByKey]:
        """`_charged` for asyncio."""
        entity = _identifier(await self._aevaluated(self.rule.entity))
        if limits is not None and (self.rule.entity is None or entity == ""):
            entity = await limits.aentity()
        return entity, await self._aevaluated(self.rule.requested) or {}

    def _is_released(self, limits: RequestLimits, entity: str | None) -> bool:
        """Whether a middleware, or a decorator around this one, releases what the request holds."""
        return limits.has_middleware or (limits.has_decorator and limits.was_charged(self.rule.resource, entity))

    def _evaluated(self, value: Any) -> Any:
        """Return a value, or what a callable returns for the arguments."""
        return call_sync(value, *self.args, **self.kwargs) if callable(value) else value

    async def _aevaluated(self, value: Any) -> Any:
        """`_evaluated` for asyncio; for a view in a thread, where callables may query the database."""
        if not callable(value):
            return value
        evaluate = partial(value, *self.args, **self.kwargs)
        in_place = self.request is None or iscoroutinefunction(value)
        answer = evaluate() if in_place else await sync_to_async(evaluate)()
        return await answer if isawaitable(answer) else answer


def _identifier(entity: EntityName) -> str | None:
    name = entity_name(entity)
    return normalize_entity(name) if name else name


def report_response(limits: RequestLimits, response: Any, call: ViewCall | None) -> Any:
    """Set the headers of a response where there is no middleware, and release with it what an outermost call holds.

    Without a call of a decorated view, that is what the request holds.
    """
    if limits.has_middleware:
        return response
    holder = limits if call is None else call if call.outer is None else None
    if isinstance(response, HttpResponseBase):
        finish(response, limits, holder)
    elif holder is not None:
        holder.end()
    return response


def is_awaited(function: Callable[..., Any], first: object = None) -> bool:
    """Whether a view that is not a coroutine function returns one, as `dispatch` of asynchronous class views does.

    `first` is the first argument of a call, which is the view where the function is a method.
    """
    inner: Any = unwrap(function, stop=lambda wrapper: isinstance(wrapper, partial))
    bound = getattr(getattr(inner, "func", inner), "__self__", None)
    view = first if isinstance(first, View) else bound
    return isinstance(view, View) and view.view_is_async


@contextmanager
def iterating(acquisition: Acquisition) -> Iterator[Acquisition]:
    """Hold while a generator runs; one that is closed before its end has not failed, so nothing is refunded."""
    with acquisition:
        try:
            yield acquisition
        except GeneratorExit:
            acquisition.release()
            raise


@asynccontextmanager
async def aiterating(acquisition: Acquisition) -> AsyncIterator[Acquisition]:
    """`iterating` for asyncio."""
    async with acquisition:
        try:
            yield acquisition
        except GeneratorExit:
            await acquisition.arelease()
            raise
