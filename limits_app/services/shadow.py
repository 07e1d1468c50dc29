"""Shadow mode: policies that are evaluated with separate counters and reject nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, cast

from limits_app import signals
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidRequest, LimitExceeded, LimitsError
from limits_app.core.limit_set import LimitSet
from limits_app.core.outcome import LimitStatus, LimitUse, Outcome
from limits_app.core.tracked import TrackedAcquisition
from limits_app.resolver import ResolvedSet
from limits_app.services.amounts import RequestedAmounts, amounts_for
from limits_app.usage import evaluations

logger = logging.getLogger("limits_app")

_REFUSALS: Final[Counter[tuple[str, str]]] = Counter()


def shadow_refusals() -> dict[str, dict[str, int]]:
    """How many requests policies in shadow mode would have rejected, by resource and limit key, in this process."""
    counted: dict[str, dict[str, int]] = {}
    for (resource, key), number in sorted(_REFUSALS.items()):
        counted.setdefault(resource, {})[key] = number
    return counted


def forget_shadow_refusals() -> None:
    """Reset the counts to 0."""
    _REFUSALS.clear()


def count(resolved: ResolvedSet, acquisition: Acquisition) -> None:
    """Count a decision for the policies whose decisions are counted."""
    claim = acquisition.claim
    rejecting = () if claim.admitted else {*claim.refusal()[0]}
    found = [(bucket, resolved.evaluated[bucket]) for bucket in claim.plan.buckets if bucket in resolved.evaluated]
    if found:
        evaluations.note((policy, bucket[1], bucket in rejecting) for bucket, policy in found)


def follow(acquisition: Acquisition, resolved: ResolvedSet, requested: RequestedAmounts) -> Acquisition:
    """Try the limits in shadow mode too, and count their decision; returns the acquisition for the caller.

    Their permits are released immediately if the request was rejected.
    """
    shadow = cast("LimitSet", resolved.shadow)
    followed = ShadowedAcquisition(acquisition)
    with followed.trying(resolved):
        followed.tried = shadow.try_acquire(_requested_of(shadow, requested))
    if acquisition.successful:
        return followed
    followed._end("release")
    return acquisition


async def afollow(acquisition: Acquisition, resolved: ResolvedSet, requested: RequestedAmounts) -> Acquisition:
    """`follow` for asyncio."""
    shadow = cast("LimitSet", resolved.shadow)
    followed = ShadowedAcquisition(acquisition)
    try:
        with followed.trying(resolved):
            followed.tried = await shadow.atry_acquire(_requested_of(shadow, requested))
    except BaseException:  # cancelled: the caller never receives the acquisition, so it is refunded here
        await acquisition.acancel()
        raise
    if acquisition.successful:
        return followed
    await followed._aend("arelease")
    return acquisition


def peek(limits: LimitSet, shadow: LimitSet | None, requested: RequestedAmounts) -> Outcome:
    """The outcome of a request now, also under the limits in shadow mode; charges nothing."""
    return with_shadow(limits.peek(amounts_for(limits, requested)), shadow, requested)


def with_shadow(outcome: Outcome, shadow: LimitSet | None, requested: RequestedAmounts) -> Outcome:
    """An outcome with the limits in shadow mode that would reject the request."""
    if shadow is None or not outcome.allowed:
        return outcome
    try:
        tried = shadow.peek(_requested_of(shadow, requested))
    except LimitExceeded as error:
        tried = error.outcome
    except InvalidRequest:  # no amount of their keys, or an invalid one
        return outcome
    return replace(outcome, shadowed=tried.violations)


class ShadowedAcquisition(TrackedAcquisition):
    """An acquisition, and the one in shadow mode that is updated and released with it.

    The one in shadow mode never raises an error, and is visible in `outcome.shadowed` only.
    """

    tried: Acquisition | None

    def __init__(self, enforced: Acquisition) -> None:
        # The claim is that of the acquisition which is enforced.
        super().__init__(enforced.limit_set, enforced.claim)
        self.extensions = enforced.extensions
        self._enforced = enforced
        self._would_refuse: tuple[LimitStatus, ...] = ()
        self.tried = None

    @property
    def must_settle(self) -> bool:
        """See `Acquisition.must_settle`."""
        return self._enforced.must_settle or (self.tried is not None and self.tried.must_settle)

    @property
    def acquisitions(self) -> dict[str, LimitUse]:
        """See `Acquisition.acquisitions`."""
        return self._enforced.acquisitions

    def __enter__(self) -> Self:
        self._enforced.__enter__()
        return self

    async def __aenter__(self) -> Self:
        await self._enforced.__aenter__()
        return self

    @contextmanager
    def trying(self, resolved: ResolvedSet | None = None) -> Iterator[None]:
        """Record the result of the attempt in the block, and count it for the policies of a resolved set."""
        try:
            yield
            decided, outcome = self.tried, None
        except LimitExceeded as error:
            decided, outcome = error.refused, error.outcome
        except LimitsError:  # such as limits that have just changed, or an invalid amount
            logger.debug("a policy in shadow mode could not be tried", exc_info=True)
            return
        if decided is not None:
            if resolved is not None:
                count(resolved, decided)
            outcome = None if decided.successful else decided.outcome
        if outcome is not None and self._enforced.successful:
            self._would_refuse = outcome.violations
            _note(outcome)

    @property
    def outcome(self) -> Outcome:
        """The decision, with the limits in shadow mode that would have rejected the request in `shadowed`."""
        return replace(self._enforced.outcome, shadowed=self._would_refuse)

    def update(self, usage: Mapping[str, Amount]) -> None:
        """See `Acquisition.update`."""
        self._enforced.update(usage)
        if self.tried is not None:
            with suppress(LimitsError):
                keys = {key for part in self.tried.parts() for key in part.claim.plan.by_key}
                self.tried.update({key: usage[key] for key in keys if key in usage})

    def extend(self, requested: Mapping[str, Amount]) -> None:
        """See `Acquisition.extend`."""
        self._enforced.extend(requested)
        if self.tried and (known := _known(self.tried.limit_set, requested)):
            with self.trying():
                self.tried.extend(known)

    async def aextend(self, requested: Mapping[str, Amount]) -> None:
        """See `Acquisition.aextend`."""
        await self._enforced.aextend(requested)
        if self.tried and (known := _known(self.tried.limit_set, requested)):
            with self.trying():
                await self.tried.aextend(known)

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


def _requested_of(shadow: LimitSet, requested: RequestedAmounts) -> Mapping[str, Amount]:
    """The amounts of a request that the limits in shadow mode have keys for."""
    return _known(shadow, amounts_for(shadow, requested) or {})


def _known(shadow: LimitSet, amounts: Mapping[str, Amount]) -> Mapping[str, Amount]:
    return {key: amount for key, amount in amounts.items() if key in shadow}


def _note(outcome: Outcome) -> None:
    _REFUSALS.update((status.resource or "", status.key) for status in outcome.violations)
    signals.limit_shadowed.send_robust(sender=None, outcome=outcome)
