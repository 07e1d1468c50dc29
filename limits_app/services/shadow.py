"""Shadow mode: policies that are evaluated with separate counters and reject nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, cast

from limits_app import signals
from limits_app.acquiring import Acquisition, BoundLimits, LimitSet, rejected_acquisition
from limits_app.engine import NOTHING, GivenAmount, PermitsOnly, class_named, of_its_class
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
    buckets = [(scope.key, limit.rule.key) for limit, scope, _ in acquisition.limits()]
    rejecting = acquisition.rejecting()
    evaluated = [(bucket, resolved.evaluated[bucket]) for bucket in buckets if bucket in resolved.evaluated]
    if evaluated:
        evaluations.note(((policy, bucket[1], bucket in rejecting) for bucket, policy in evaluated), entity)


def follow(acquisition: Acquisition, resolved: ResolvedSet, requested: RequestedAmounts) -> Acquisition:
    """Try the limits in shadow mode too, and count their decision; returns the acquisition, which they accompany.

    Their permits are released immediately if the request was rejected.
    """
    shadow = cast("LimitSet", resolved.shadow)
    trial = Trial(is_admitted=acquisition.successful)
    with trial.trying(resolved):
        trial.tried = shadow.try_acquire(_requested_of(shadow, requested))
    if acquisition.successful:
        acquisition.accompany(trial)
    else:
        trial.end(refunds_unreported=False)
    return acquisition


async def afollow(acquisition: Acquisition, resolved: ResolvedSet, requested: RequestedAmounts) -> Acquisition:
    """`follow` for asyncio."""
    shadow = cast("LimitSet", resolved.shadow)
    trial = Trial(is_admitted=acquisition.successful)
    try:
        with trial.trying(resolved):
            trial.tried = await shadow.atry_acquire(_requested_of(shadow, requested))
    except BaseException:  # cancelled: the caller never receives the acquisition, so it is refunded here
        await acquisition.acancel()
        raise
    if acquisition.successful:
        acquisition.accompany(trial)
    else:
        await trial.aend(refunds_unreported=False)
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


class Trial:
    """The acquisition in shadow mode that accompanies an enforced one: it is updated and released with it.

    It never raises an error of the package, and is visible in `outcome.shadowed` only.
    """

    tried: Acquisition | None = None

    def __init__(self, *, is_admitted: bool) -> None:
        self._is_admitted = is_admitted
        self._would_refuse: tuple[LimitStatus, ...] = ()

    @property
    def must_settle(self) -> bool:
        """See `Companion.must_settle`."""
        return self.tried is not None and self.tried.must_settle

    @contextmanager
    def trying(self, resolved: ResolvedSet | None = None) -> Iterator[None]:
        """Record the result of the attempt in the block, and count it for the policies of a resolved set."""
        try:
            yield
            decided = self.tried
        except LimitsError as error:
            decided = rejected_acquisition(error)
            if decided is None:  # such as limits that have just changed, or an invalid amount
                logger.debug("a policy in shadow mode could not be evaluated", exc_info=True)
        if decided is None:
            return
        if resolved is not None:
            count(resolved, decided)
        if self._is_admitted and not decided.successful:
            self._would_refuse = decided.outcome.violations
            note_shadowed(_without_counted(decided.outcome))

    def shown_in(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the limits in shadow mode that would have rejected the request in `shadowed`."""
        return replace(outcome, shadowed=self._would_refuse)

    def update(self, usage: Mapping[str, GivenAmount]) -> None:
        """See `Acquisition.update`."""
        if self.tried is not None:
            with suppress(LimitsError):
                self.tried.update({key: usage[key] for key in self.tried.acquisitions if key in usage})

    def extend(self, requested: Mapping[str, GivenAmount]) -> None:
        """See `Acquisition.extend`."""
        if self.tried and (of_shadow := _known(self.tried.limit_set, requested)):
            with self.trying():
                self.tried.extend(of_shadow)

    async def aextend(self, requested: Mapping[str, GivenAmount]) -> None:
        """See `Acquisition.aextend`."""
        if self.tried and (of_shadow := _known(self.tried.limit_set, requested)):
            with self.trying():
                await self.tried.aextend(of_shadow)

    def end(self, *, refunds_unreported: bool) -> None:
        """Release the acquisition in shadow mode."""
        if self.tried is not None:
            with suppress(LimitsError):
                (self.tried.cancel if refunds_unreported else self.tried.release)()

    def undo(self, *, has_run: bool) -> None:
        """See `Acquisition.undo`."""
        if self.tried is not None:
            with suppress(LimitsError):
                self.tried.undo(has_run=has_run)

    async def aend(self, *, refunds_unreported: bool) -> None:
        """`end` for asyncio."""
        if self.tried is not None:
            with suppress(LimitsError):
                await (self.tried.acancel if refunds_unreported else self.tried.arelease)()


def is_limited(acquisition: Acquisition) -> bool:
    """Whether an acquisition is of any limits, also of those in shadow mode."""
    return acquisition.has_limits or acquisition.companion is not None


def _requested_of(shadow: LimitSet, requested: RequestedAmounts) -> Mapping[str, GivenAmount]:
    """The amounts of a request that the limits in shadow mode have keys for."""
    amounts = amounts_for(shadow, requested)
    return _known(shadow, {} if amounts is None else amounts)


def _known(shadow: BoundLimits, amounts: Mapping[str, GivenAmount]) -> Mapping[str, GivenAmount]:
    of_shadow = {key: amount for key, amount in amounts.items() if key in shadow}
    its_amounts = PermitsOnly(of_shadow) if isinstance(amounts, PermitsOnly) else of_shadow or NOTHING
    return of_its_class(its_amounts, class_named(amounts))


def block_in_shadow(entity: str | None, level: str, resource: str | None) -> object:
    """The identity of a block of an entity at a level; `resource` is None for a block of all resources."""
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
