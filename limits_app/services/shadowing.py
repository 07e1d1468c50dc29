"""Shadows: policies that are tried on real requests, decide in buckets of their own, and refuse nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from limits_app import signals
from limits_app.core.acquisition import Acquisition, LimitUse
from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidRequest, LimitExceeded, LimitsError, StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.outcome import LimitStatus, Outcome
from limits_app.services.asking import Asked, amounts_for
from limits_app.stores.guards import guard_of

__all__ = [
    "ShadowedAcquisition",
    "afollow",
    "beside",
    "follow",
    "forget_shadow_refusals",
    "peek",
    "shadow_refusals",
]

logger = logging.getLogger("limits_app")

_REFUSALS: Final[Counter[tuple[str, str]]] = Counter()


def shadow_refusals() -> dict[str, dict[str, int]]:
    """How many requests policies in the shadow would have refused, by resource and limit key, in this process."""
    counted: dict[str, dict[str, int]] = {}
    for (resource, key), number in sorted(_REFUSALS.items()):
        counted.setdefault(resource, {})[key] = number
    return counted


def forget_shadow_refusals() -> None:
    """Count from nothing again."""
    _REFUSALS.clear()


def follow(acquisition: Acquisition, requested: Asked) -> Acquisition:
    """Let the policies that are tried decide too, once the others have admitted; where there are none, nothing."""
    shadow = getattr(acquisition.limit_set, "shadow", None)
    if shadow is None or not acquisition.successful:
        return acquisition
    followed = ShadowedAcquisition(acquisition)
    with followed.trying():
        followed.tried = shadow.try_acquire(_asked_of(shadow, requested))
    return followed


async def afollow(acquisition: Acquisition, requested: Asked) -> Acquisition:
    """`follow` for asyncio."""
    shadow = getattr(acquisition.limit_set, "shadow", None)
    if shadow is None or not acquisition.successful:
        return acquisition
    followed = ShadowedAcquisition(acquisition)
    try:
        with followed.trying():
            followed.tried = await shadow.atry_acquire(_asked_of(shadow, requested))
    except BaseException:  # cancelled, so nobody else would give back what was admitted
        await acquisition.acancel()
        raise
    return followed


def peek(found: LimitSet, requested: Asked) -> Outcome:
    """What a request would be told now, and what the policies that are tried would say to it; charges nothing."""
    return beside(found.peek(amounts_for(found, requested)), found, requested)


def beside(outcome: Outcome, found: LimitSet, requested: Asked) -> Outcome:
    """What a request would be told, with what the policies that are tried would say to it."""
    shadow = getattr(found, "shadow", None)
    if shadow is None or not outcome.allowed:
        return outcome
    try:
        tried = shadow.peek(_asked_of(shadow, requested))
    except LimitExceeded as error:
        tried = error.outcome
    except InvalidRequest:  # nothing that they limit, or an amount that they cannot have
        return outcome
    return replace(outcome, shadowed=tried.violations)


class ShadowedAcquisition(Acquisition):
    """An acquisition with what was tried beside it: whatever happens to the one happens to the other.

    What is tried never raises, and nothing of it is seen but `outcome.shadowed`.
    """

    __slots__ = ("_enforced", "_would_refuse", "tried")

    tried: Acquisition | None

    def __init__(self, enforced: Acquisition) -> None:
        # The claim is that of the acquisition which is enforced.
        super().__init__(enforced.limit_set, enforced.claim)
        self._enforced = enforced
        self._would_refuse: tuple[LimitStatus, ...] = ()
        self.tried = None

    @property
    def acquisitions(self) -> dict[str, LimitUse]:
        """See `Acquisition.acquisitions`."""
        return self._enforced.acquisitions

    def track(self) -> None:
        """See `Acquisition.track`."""
        self._enforced.track()

    def __enter__(self) -> Self:
        self._enforced.__enter__()
        return self

    async def __aenter__(self) -> Self:
        await self._enforced.__aenter__()
        return self

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Note what comes of an attempt in the block."""
        try:
            yield
            refused = None if self.tried is None or self.tried.successful else self.tried.outcome
        except LimitExceeded as error:
            refused = error.outcome
        except StoreUnavailable as error:
            guard_of(getattr(self._enforced.limit_set, "alias", None)).failed(error)
            return
        except LimitsError:  # such as limits that were changed just now, or an amount that they cannot have
            logger.debug("a policy in the shadow could not be tried", exc_info=True)
            return
        if refused is not None:
            self._would_refuse = refused.violations
            _note(refused)

    @property
    def outcome(self) -> Outcome:
        """What was decided, and in `shadowed` what would have refused."""
        return replace(self._enforced.outcome, shadowed=self._would_refuse)

    def update(self, usage: Mapping[str, Amount]) -> None:
        """See `Acquisition.update`."""
        self._enforced.update(usage)
        if self.tried is not None:
            with suppress(LimitsError):
                self.tried.update({key: usage[key] for key in self.tried.claim.plan.by_key if key in usage})

    def release(self) -> None:
        """See `Acquisition.release`."""
        try:
            self._enforced.release()
        finally:
            self._end("release")

    def cancel(self) -> None:
        """See `Acquisition.cancel`."""
        try:
            self._enforced.cancel()
        finally:
            self._end("cancel")

    async def arelease(self) -> None:
        """See `Acquisition.arelease`."""
        try:
            await self._enforced.arelease()
        finally:
            await self._aend("arelease")

    async def acancel(self) -> None:
        """See `Acquisition.acancel`."""
        try:
            await self._enforced.acancel()
        finally:
            await self._aend("acancel")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._enforced.__exit__(kind, error, trace)
        finally:
            self._end("release" if kind is None else "cancel")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._enforced.__aexit__(kind, error, trace)
        finally:
            await self._aend("arelease" if kind is None else "acancel")

    def _end(self, verb: str) -> None:
        if self.tried is not None:
            with suppress(LimitsError):
                getattr(self.tried, verb)()

    async def _aend(self, verb: str) -> None:
        if self.tried is not None:
            with suppress(LimitsError):
                await getattr(self.tried, verb)()


def _asked_of(shadow: LimitSet, requested: Asked) -> Mapping[str, Amount]:
    """The amounts of a request, as far as the limits that are tried have them."""
    keys = {limit.key for limit in shadow}
    return {key: amount for key, amount in (amounts_for(shadow, requested) or {}).items() if key in keys}


def _note(outcome: Outcome) -> None:
    _REFUSALS.update((status.resource or "", status.key) for status in outcome.violations)
    signals.limit_shadowed.send_robust(sender=None, outcome=outcome)
