"""Shadow mode: policies that are evaluated with separate counters and reject nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, cast
from weakref import ref

from limits_app import signals
from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.special_acquisitions import TrackedAcquisition
from limits_app.engine.amounts import Amount, PermitsOnly
from limits_app.engine.errors import InvalidRequest, LimitExceeded, LimitsError
from limits_app.engine.limits import Blocked
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.models import PolicyScope
from limits_app.policies import ResolvedSet
from limits_app.services.amounts import RequestedAmounts, amounts_for
from limits_app.usage.denial_counter import WEB_REQUEST
from limits_app.usage.evaluation_counter import evaluations

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


def count(resolved: ResolvedSet, acquisition: Acquisition, entity: str | None = None) -> None:
    """Count a decision on a request of an entity, for the policies whose decisions are counted."""
    claim = acquisition.claim
    rejecting = () if claim.admitted else {*claim.refusal()[0]}
    found = [(bucket, resolved.evaluated[bucket]) for bucket in claim.plan.buckets if bucket in resolved.evaluated]
    if found:
        evaluations.note(((policy, bucket[1], bucket in rejecting) for bucket, policy in found), entity)


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
    followed.end_trial(refunds_unreported=False)
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
    await followed.aend_trial(refunds_unreported=False)
    return acquisition


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

    It takes the place of the `enforced` acquisition. The one in shadow mode never raises an error, and is visible in
    `outcome.shadowed` only.
    """

    tried: Acquisition | None = None

    def __init__(self, enforced: Acquisition) -> None:
        super().__init__(enforced.limit_set, enforced.claim)
        self.requested, self.source, self.requires_usage = enforced.requested, enforced.source, enforced.requires_usage
        self.is_repeated = enforced.is_repeated
        if enforced.claim.owner is not None:
            enforced.claim.owner = ref(self)
        self._would_refuse: tuple[LimitStatus, ...] = ()

    @property
    def must_settle(self) -> bool:
        """See `Acquisition.must_settle`."""
        return super().must_settle or (self.tried is not None and self.tried.must_settle)

    @contextmanager
    def trying(self, resolved: ResolvedSet | None = None) -> Iterator[None]:
        """Record the result of the attempt in the block, and count it for the policies of a resolved set."""
        try:
            yield
            decided = self.tried
        except LimitsError as error:
            decided = error.refused if isinstance(error, LimitExceeded) else None
            if decided is None:  # such as limits that have just changed, or an invalid amount
                logger.debug("a policy in shadow mode could not be tried", exc_info=True)
        if decided is None:
            return
        if resolved is not None:
            count(resolved, decided)
        if self.successful and not decided.successful:
            self._would_refuse = decided.outcome.violations
            note_shadowed(_without_counted(decided.outcome))

    @property
    def outcome(self) -> Outcome:
        """The decision, with the limits in shadow mode that would have rejected the request in `shadowed`."""
        return replace(super().outcome, shadowed=self._would_refuse)

    def update(self, usage: Mapping[str, Amount]) -> None:
        """See `Acquisition.update`."""
        super().update(usage)
        if self.tried is not None:
            with suppress(LimitsError):
                keys = {key for part in self.tried.parts() for key in part.claim.shape.by_key}
                self.tried.update({key: usage[key] for key in keys if key in usage})

    def extend(self, requested: Mapping[str, Amount]) -> None:
        """See `Acquisition.extend`."""
        super().extend(requested)
        if self.tried and (known := _known(self.tried.limit_set, requested)):
            with self.trying():
                self.tried.extend(known)

    async def aextend(self, requested: Mapping[str, Amount]) -> None:
        """See `Acquisition.aextend`."""
        await super().aextend(requested)
        if self.tried and (known := _known(self.tried.limit_set, requested)):
            with self.trying():
                await self.tried.aextend(known)

    def end_trial(self, *, refunds_unreported: bool) -> None:
        """Release the acquisition in shadow mode."""
        if self.tried is not None:
            with suppress(LimitsError):
                (self.tried.cancel if refunds_unreported else self.tried.release)()

    async def aend_trial(self, *, refunds_unreported: bool) -> None:
        """`end_trial` for asyncio."""
        if self.tried is not None:
            with suppress(LimitsError):
                await (self.tried.acancel if refunds_unreported else self.tried.arelease)()

    def _release(self, *, refunds_unreported: bool) -> None:
        try:
            super()._release(refunds_unreported=refunds_unreported)
        finally:
            self.end_trial(refunds_unreported=refunds_unreported)

    async def _arelease(self, *, refunds_unreported: bool) -> None:
        try:
            await super()._arelease(refunds_unreported=refunds_unreported)
        finally:
            await self.aend_trial(refunds_unreported=refunds_unreported)


def _requested_of(shadow: LimitSet, requested: RequestedAmounts) -> Mapping[str, Amount]:
    """The amounts of a request that the limits in shadow mode have keys for."""
    return _known(shadow, amounts_for(shadow, requested) or {})


def _known(shadow: LimitSet, amounts: Mapping[str, Amount]) -> Mapping[str, Amount]:
    known = {key: amount for key, amount in amounts.items() if key in shadow}
    return PermitsOnly(known) if isinstance(amounts, PermitsOnly) else known


def block_in_shadow(entity: str | None, level: str, resource: str | None) -> object:
    """What tells a block of an entity at a level from others; `resource` is None where it is over all resources."""
    return None if level == PolicyScope.SYSTEM_TOTAL else entity, str(level), resource  # that is one for all entities


def _without_counted(outcome: Outcome) -> Outcome:
    """The outcome without the blocks that were counted when the web request was judged."""
    request = WEB_REQUEST.get()()
    counted = None if request is None else request.blocks_in_shadow
    if not counted:
        return outcome
    new = [status for status in outcome.violations if not (status.key == Blocked.key and _is_counted(status, counted))]
    return replace(outcome, violations=tuple(new))


def _is_counted(status: LimitStatus, counted: Set[object]) -> bool:
    blocks = [block_in_shadow(status.entity, status.level, resource) for resource in (None, status.resource)]
    return not counted.isdisjoint(blocks)


def note_shadowed(outcome: Outcome) -> None:
    """Count what policies in shadow mode would have rejected, and notify receivers."""
    if not outcome.violations:
        return
    _REFUSALS.update((status.resource or "", status.key) for status in outcome.violations)
    signals.limit_shadowed.send_robust(sender=None, outcome=outcome)
