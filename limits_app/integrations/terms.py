"""The terms on which decorated calls run: what they take, from whom, and what comes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.integrations.amounts import Report, one_of_each
from limits_app.integrations.blocks import aheld, aiterated, iterated
from limits_app.integrations.calls import Call
from limits_app.integrations.headers import tell
from limits_app.integrations.identity import sound
from limits_app.integrations.refusals import REFUSALS, refusal
from limits_app.integrations.request_limits import RequestLimits, limits_of

__all__ = ["Amounts", "Terms"]

Amounts = Mapping[str, Amount]

_NOTHING_TO_SAY: Final = Report()


@dataclass(frozen=True, slots=True)
class Terms:
    """What a call takes of a resource, who is charged, how long it may wait, and how its result reports usage."""

    resource: str
    requested: Amounts | Callable[..., Amounts | None] | None
    entity: str | Callable[..., str | None] | None
    timeout: float | None
    report: Report

    def acquire(self, call: Call) -> Acquisition:
        """What a function or a block holds while it runs; raises what `limits.acquire` raises."""
        asked = partial(one_of_each, self._amounts(call))
        return services.acquire(self.resource, entity=self._payer(call), requested=asked, timeout=self.timeout)

    async def aacquire(self, call: Call) -> Acquisition:
        """`acquire` for asyncio."""
        asked = partial(one_of_each, await self._aamounts(call))
        entity = await self._apayer(call)
        return await services.aacquire(self.resource, entity=entity, requested=asked, timeout=self.timeout)

    def hold(self, call: Call) -> AbstractContextManager[Acquisition]:
        """Hold while a generator runs, or until the response to the request that it takes was sent."""
        request = call.request
        if request is None:
            return iterated(self.acquire(call))
        limits, entity = limits_of(request), self._payer(call)
        entity = limits.entity if self._is_requester(entity) else entity
        is_heard = self._is_heard(limits, entity)
        acquisition = limits.charge(self.resource, entity, self._amounts(call), self.timeout)
        return nullcontext(acquisition) if is_heard else iterated(acquisition)

    async def ahold(self, call: Call) -> AbstractAsyncContextManager[Acquisition]:
        """`hold` for asyncio."""
        request = call.request
        if request is None:
            return aiterated(await self.aacquire(call))
        limits, entity = limits_of(request), await self._apayer(call)
        entity = await limits.aentity() if self._is_requester(entity) else entity
        is_heard = self._is_heard(limits, entity)
        acquisition = await limits.acharge(self.resource, entity, await self._aamounts(call), self.timeout)
        return nullcontext(acquisition) if is_heard else aiterated(acquisition)

    def _is_heard(self, limits: RequestLimits, entity: str | None) -> bool:
        """Whether what a generator takes is given back with the end of the request: a stream may have begun.

        Without a middleware nobody hears of an end that was not asked for before; then it is held while it runs.
        """
        return limits.guarded or (limits.hears and limits.was_charged(self.resource, entity))

    def run(self, call: Call) -> Any:
        """Acquire and run a function; where it gives something to wait for, hold until that was waited for."""
        acquisition = self.acquire(call)
        try:
            result = call.run()
            if isawaitable(result):
                return self._awaited(acquisition, result)
            self.report.update(result, acquisition)
        except BaseException as error:
            acquisition.__exit__(type(error), error, error.__traceback__)
            raise
        acquisition.release()
        return result

    async def _awaited(self, acquisition: Acquisition, result: Awaitable[Any]) -> Any:
        async with aheld(acquisition):
            found = await result
            self.report.update(found, acquisition)
            return found

    def run_view(self, call: Call, request: HttpRequest) -> Any:
        """Run a view, whose request holds what it takes until the response was sent; or give a refusal."""
        limits, entity = limits_of(request), self._payer(call)
        is_first, before = not limits.charges, limits.held
        try:
            entity = limits.entity if self._is_requester(entity) else entity
            limits.charge(self.resource, entity, self._amounts(call), self.timeout)
        except REFUSALS as error:
            return refusal(request, error, gives_back=True)
        try:
            return self._answered(limits, entity, call.run(), is_first)
        except BaseException as error:
            _fail(limits, error, before)
            raise

    async def arun_view(self, call: Call, request: HttpRequest) -> Any:
        """`run_view` for asyncio."""
        limits, entity = limits_of(request), await self._apayer(call)
        is_first, before = not limits.charges, limits.held
        try:
            entity = await limits.aentity() if self._is_requester(entity) else entity
            await limits.acharge(self.resource, entity, await self._aamounts(call), self.timeout)
        except REFUSALS as error:
            return await sync_to_async(refusal)(request, error, gives_back=True)
        try:
            result = call.run()
            response = await result if isawaitable(result) else result
            if limits.refusals:  # a thread gives back
                return await sync_to_async(self._answered)(limits, entity, response, is_first)
            return self._answered(limits, entity, response, is_first)
        except Exception as error:
            if not limits.guarded:
                await sync_to_async(_fail)(limits, error, before)
            raise
        except BaseException as error:  # who is cancelled waits for nobody
            _fail(limits, error, before)
            raise

    def _answered(self, limits: RequestLimits, entity: str | None, response: Any, is_first: bool) -> Any:
        """Report what a response says of its cost, and tell of limits where no middleware does so.

        What was charged first hears of the response last.
        """
        if not (limits.refusals and limits.is_refusal(response)):  # as asking that alone, which is a call more
            self._report(limits, entity, response)
        if not limits.guarded and isinstance(response, HttpResponseBase):
            tell(response, limits.answered(response) if is_first else limits.told(response))
        return response

    def _report(self, limits: RequestLimits, entity: str | None, response: Any) -> None:
        """Report what a response cost, once it has a content: those of templates are rendered after the view."""
        acquisitions = limits.charged(self.resource, entity)
        when_rendered = getattr(response, "add_post_render_callback", None)
        if when_rendered is None or self.report == _NOTHING_TO_SAY:
            self.report.update(response, *acquisitions)
        else:
            when_rendered(lambda rendered: self.report.update(rendered, *acquisitions))

    def _amounts(self, call: Call) -> Amounts:
        return call.ask(self.requested) or {}

    async def _aamounts(self, call: Call) -> Amounts:
        return await call.aask(self.requested) or {}

    def _payer(self, call: Call) -> str | None:
        """Who was named; empty text when somebody should have been."""
        entity: str | None = call.ask(self.entity)
        return sound(entity) if entity else entity

    async def _apayer(self, call: Call) -> str | None:
        """`_payer` for asyncio."""
        entity: str | None = await call.aask(self.entity)
        return sound(entity) if entity else entity

    def _is_requester(self, entity: str | None) -> bool:
        """Whether the requester is charged: because nobody is named, or the name is empty and would be everybody's."""
        return self.entity is None or entity == ""


def _fail(limits: RequestLimits, error: BaseException, before: Sequence[Acquisition]) -> None:
    """Give back what a failed view did not use of what was acquired since it began, where no middleware does so."""
    if not limits.guarded:
        limits.fail(error, but=before)
