"""Extensions: more amounts that are charged for an acquisition while it is held, and settled with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar, cast
from weakref import ref

from limits_app.acquiring.bound_limits import BoundLimits
from limits_app.acquiring.held_part import HeldPart
from limits_app.acquiring.held_parts import HeldParts
from limits_app.acquiring.store import is_remote
from limits_app.engine import GivenAmount, class_named, extension_holder, is_token_holder, of_its_class
from limits_app.engine.errors import AlreadyReleased, InvalidRequest, LimitExceeded, StaleConfiguration

P = TypeVar("P", bound=HeldPart)
P_contra = TypeVar("P_contra", bound=HeldPart, contravariant=True)


class LimitsSource(Protocol[P_contra]):
    """Where the limits of an acquisition come from, when they are resolved from a configuration."""

    def is_over(self, limits: BoundLimits) -> bool:
        """Whether the time of limits is over, since a date, or another price, has come."""

    def latest(self, stale: BoundLimits) -> BoundLimits:
        """Return the limits that replace those of an acquisition, since the configuration has changed."""

    async def alatest(self, stale: BoundLimits) -> BoundLimits:
        """`latest` for asyncio."""

    def report(self, extension: P_contra, *, in_task: bool) -> None:
        """Count and report the decision on an extension."""


class Extending(Generic[P]):
    """The charge of an extension, by the limits of its acquisition or by those that have replaced them."""

    def __init__(
        self,
        parts: HeldParts[P],
        source: LimitsSource[P] | None,
        requested: Mapping[str, GivenAmount],
        priority: str | None,
    ) -> None:
        self._extended, self._parts, self._source = parts.all()[0], parts, source
        priority = class_named(self._extended.requested) if priority is None else priority
        self.requested = of_its_class(requested, priority)
        """The amounts with their class, where the extension or the acquisition names one."""

    def charge(self) -> P:
        """Charge the extension by the latest limits; it is a part of the acquisition where it was admitted."""
        limits = self._extended.limit_set
        if self._is_replaced(limits):
            limits = self._latest(limits)
        while (extension := self._charged(limits)) is None:
            limits = self._latest(limits)
        if self._extended.is_released:  # by another thread, which may not have seen the extension
            extension.give_up()
        self._report(extension, in_task=False)
        return extension

    async def acharge(self) -> P:
        """`charge` for asyncio."""
        limits = self._extended.limit_set
        if self._is_replaced(limits):
            limits = await self._alatest(limits)
        while (extension := await self._acharged(limits)) is None:
            limits = await self._alatest(limits)
        if self._extended.is_released:  # by another task, which may not have seen the extension
            await extension.asettle_all()
        self._report(extension, in_task=True)
        return extension

    def _charged(self, limits: BoundLimits) -> P | None:
        """Charge the extension; None where a source has other limits by now."""
        try:
            extension = self._extension(limits)
        except InvalidRequest:
            if self._source is None or not limits.is_outdated():
                raise
            return None
        try:
            extension.check_fits()
            if limits.store.acquire(extension):
                self._parts.take_in(extension)
        except StaleConfiguration:
            if self._source is None:
                raise
            return None
        except BaseException:
            self._drop(extension)
            raise
        return extension

    async def _acharged(self, limits: BoundLimits) -> P | None:
        """`_charged` for asyncio."""
        store = limits.store
        try:
            extension = self._extension(limits)
        except InvalidRequest:
            if self._source is None or not await _is_outdated_in_task(limits):
                raise
            return None
        try:
            await extension.acheck_fits()
            if await store.aacquire(extension) if is_remote(store) else store.acquire(extension):
                self._parts.take_in(extension)
        except StaleConfiguration:
            if self._source is None:
                raise
            return None
        except BaseException:
            if not store.remote:  # a remote store refunds by itself what a cancelled task was charged
                self._drop(extension)
            raise
        return extension

    def _is_replaced(self, limits: BoundLimits) -> bool:
        """Whether a source has other limits by its clock."""
        return limits.changes_at is not None and self._source is not None and self._source.is_over(limits)

    def _latest(self, limits: BoundLimits) -> BoundLimits:
        return cast("LimitsSource[P]", self._source).latest(limits)

    async def _alatest(self, limits: BoundLimits) -> BoundLimits:
        return await cast("LimitsSource[P]", self._source).alatest(limits)

    def _extension(self, limits: BoundLimits) -> P:
        """Return the request for the extension, undecided."""
        self._check_held()
        extended, requested = self._extended, self.requested
        plan = limits.extension_plan(requested, class_named(requested))
        amounts, fits = plan.shape.amounts(requested)
        extension = type(extended)(limits, plan, amounts, requested)
        extension.fits = fits
        if is_token_holder(extended.holder):
            extension.holder = extension_holder(extended.holder)
        if extension.shape.permits:
            extension.extends = ref(extended)
        return extension

    def _check_held(self) -> None:
        """Raise LimitExceeded where the acquisition was rejected, and AlreadyReleased where it was released."""
        if not self._extended.successful:
            raise LimitExceeded.of(self._extended)
        if self._extended.is_released:
            raise AlreadyReleased("the acquisition was released: extend it before that")

    def _drop(self, extension: P) -> None:
        """Refund an extension that was interrupted."""
        extension.give_up()
        self._parts.remove(extension)

    def _report(self, extension: P, *, in_task: bool) -> None:
        """Report the decision on an extension; raise where it was rejected, or came too late."""
        if self._source is not None:
            self._source.report(extension, in_task=in_task)
        if not extension.successful:
            raise LimitExceeded.of(extension)
        self._check_held()


async def _is_outdated_in_task(limits: BoundLimits) -> bool:
    """`BoundLimits.is_outdated` for asyncio: a thread asks a store on another machine."""
    if not is_remote(limits.store):
        return limits.is_outdated()
    import asyncio  # only programs that use it pay for its import

    return await asyncio.to_thread(limits.is_outdated)
