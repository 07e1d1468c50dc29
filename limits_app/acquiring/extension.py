"""Extensions: amounts that an acquisition takes later, and settles together with its first ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import ref

from limits_app.acquiring.leases import enter_block
from limits_app.acquiring.reported import adopt_usage
from limits_app.acquiring.store import RemoteStore, is_remote
from limits_app.engine.amounts import Amount
from limits_app.engine.errors import AlreadyReleased, LimitExceeded, StaleConfiguration

if TYPE_CHECKING:
    from limits_app.acquiring.acquisition import Acquisition
    from limits_app.acquiring.limit_set import LimitSet

logger = logging.getLogger("limits_app")


class LimitsSource(Protocol):
    """Where the limits of an acquisition come from, when they are resolved from a configuration."""

    def latest(self, stale: LimitSet) -> LimitSet:
        """Return the limits that replace those of an acquisition, since the configuration has changed."""

    async def alatest(self, stale: LimitSet) -> LimitSet:
        """`latest` for asyncio."""

    def report(self, extension: Acquisition, *, in_task: bool) -> None:
        """Count and report the decision on an extension."""


def extend(acquisition: Acquisition, requested: Mapping[str, Amount]) -> None:
    """See `Acquisition.extend`."""
    limits, extension = acquisition.limit_set, None
    while extension is None:
        try:
            extension = _charge(acquisition, limits, requested)
        except StaleConfiguration:
            if acquisition.source is None:
                raise
            limits = acquisition.source.latest(limits)
    if acquisition.is_released:  # by another thread, which may not have seen the extension
        cancel_all([extension])
    _finish(acquisition, extension, in_task=False)


async def aextend(acquisition: Acquisition, requested: Mapping[str, Amount]) -> None:
    """See `Acquisition.aextend`."""
    limits, extension = acquisition.limit_set, None
    while extension is None:
        try:
            if is_remote(limits.store):
                extension = await _acharge(acquisition, limits, limits.store, requested)
            else:
                extension = _charge(acquisition, limits, requested)
        except StaleConfiguration:
            if acquisition.source is None:
                raise
            limits = await acquisition.source.alatest(limits)
    store = limits.store
    if acquisition.is_released and extension.successful:  # by another task, which may not have seen the extension
        store.renewer.discard(extension.claim)
        unused = [-amount for amount in extension.claim.amounts]
        await store.asettle(extension.claim, unused) if is_remote(store) else store.settle(extension.claim, unused)
    _finish(acquisition, extension, in_task=True)


def _charge(acquisition: Acquisition, limits: LimitSet, requested: Mapping[str, Amount]) -> Acquisition:
    """Try to charge an extension; return it with the decision."""
    check_held(acquisition)
    extension = limits.prepare(requested, is_extension=True)
    with _added(acquisition, extension):
        if limits.store.acquire(extension.claim):
            _begin(acquisition, extension)
    return extension


async def _acharge(
    acquisition: Acquisition, limits: LimitSet, store: RemoteStore, requested: Mapping[str, Amount]
) -> Acquisition:
    """`_charge` for asyncio and a remote store."""
    check_held(acquisition)
    extension = await limits.aprepare(requested, store, is_extension=True)
    with _added(acquisition, extension):
        if await store.aacquire(extension.claim):
            _begin(acquisition, extension)
    return extension


@contextmanager
def _added(acquisition: Acquisition, extension: Acquisition) -> Iterator[None]:
    """Add an extension to an acquisition while the block charges it; where the block raises, it is refunded.

    It is added first, so that whatever is charged is released with the acquisition, also after an interruption.
    """
    acquisition.extensions.append(extension)
    try:
        yield
    except BaseException:
        try:
            cancel_all([extension])
        finally:
            acquisition.extensions.remove(extension)
        raise


def check_held(acquisition: Acquisition) -> None:
    """Raise LimitExceeded for an acquisition that was rejected, and AlreadyReleased for one that was released."""
    if not acquisition.successful:
        raise LimitExceeded.of(acquisition)
    if acquisition.is_released:
        raise AlreadyReleased("the acquisition was released: extend it before that")


def cancel_all(acquisitions: Iterable[Acquisition]) -> None:
    """Refund all amounts of admitted acquisitions, which nothing will use.

    An error of the store does not hide the exception that ended the request.
    """
    for one in acquisitions:
        claim = one.claim
        try:
            if claim.admitted:
                one.limit_set.store.renewer.discard(claim)
                one.limit_set.store.settle(claim, [-amount for amount in claim.amounts])
        except Exception:
            logger.warning("an acquisition could not be refunded after it was interrupted", exc_info=True)


def _begin(acquisition: Acquisition, extension: Acquisition) -> None:
    """Renew the permits of an extension that was admitted; last, it becomes a part with the usage reported before."""
    if extension.claim.shape.permits:
        extension.claim.owner = ref(acquisition)
        extension.track()
        if acquisition.entered or acquisition.claim.block_owner is not None:
            enter_block(extension.claim)
    adopt_usage(acquisition, extension)


def _finish(acquisition: Acquisition, extension: Acquisition, *, in_task: bool) -> None:
    """Report the decision on an extension; raise where it was rejected, or came too late."""
    if not extension.successful:
        acquisition.extensions.remove(extension)
    if acquisition.source is not None:
        acquisition.source.report(extension, in_task=in_task)
    if not extension.successful:
        raise LimitExceeded.of(extension)
    check_held(acquisition)
