"""Blocked requests: how they are rejected, counted in shadow mode, and let through again; and how exempt ones pass.

`limits.acquire` knows no request: it is decided by the policies of its entity alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db import transaction

from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import ScopedLimits, schema_of, scope_of, shared_total_scope, total_scope
from limits_app.engine.limits import Blocked
from limits_app.models import Entity, Policy, PolicyEffect, write_alias
from limits_app.policies import AccessReason, ResolutionKey, ResolvedSet, resolve, resolver
from limits_app.services import notify
from limits_app.services.amounts import RequestedAmounts, amounts_for
from limits_app.services.shadow import block_in_shadow, note_shadowed
from limits_app.services.timed_blocks import end_timed_blocks
from limits_app.services.unavailable import UNLIMITED
from limits_app.stores.memory import MemoryStore

_NOTHING_KEPT: Final = MemoryStore()


class WithoutBlocks:
    """A `Source` for a request that is let through though it is blocked: the limits without blocks of clients."""

    def cached(self, key: ResolutionKey) -> ResolvedSet | None:  # noqa: ARG002 - nothing is kept
        """See `Source.cached`."""
        return None

    def read(self, key: ResolutionKey) -> ResolvedSet:
        """See `Source.read`."""
        return resolve(*key, lifts_blocks=True).resolved

    def catch_up(self, key: ResolutionKey, stale: ResolvedSet | None) -> None:
        """See `Source.catch_up`."""
        resolver.catch_up(key, stale)

    def follow(self, key: ResolutionKey, rejecting: ResolvedSet | None) -> bool:
        """See `Source.follow`."""
        return resolver.follow(key, rejecting)


without_blocks: Final = WithoutBlocks()


def blocked(reason: AccessReason, resource: str | None = None) -> Acquisition:
    """Count a rejection for the identifier or pattern that is blocked, and return the acquisition that it rejects."""
    acquisition = _rejected(reason, resource)
    notify.rejected(acquisition.outcome)
    return acquisition


def shadowed(reasons: Iterable[AccessReason], resource: str | None, counted: set[object]) -> None:
    """Count rejections by blocks in shadow mode, which reject nothing; each once for a request.

    `counted` has the blocks that were counted for the request, and the limits that they are in its acquisitions.
    """
    for reason in reasons:
        limit = block_in_shadow(reason.entity, reason.policy.level, resource)
        block = reason.policy.policy_id or limit
        if block not in counted:
            note_shadowed(_rejected(reason, resource).outcome)
        counted |= {block, limit}


def lift_blocks(entity: str) -> None:
    """Unset the flag of an entity or a pattern, and delete its blocked policies, on all resources and on each.

    Blocks for a time that URL rules have begun end too.
    """
    using = write_alias()
    with transaction.atomic(using=using):
        end_timed_blocks(entity)
        row = Entity.objects.using(using).filter(identifier=entity).first()
        if row is None:
            return
        if row.blocked:
            row.blocked = False
            row.save(using=using)
        for policy in Policy.objects.using(using).filter(entity=row, effect=PolicyEffect.BLOCKED):
            policy.delete(using=using)


def acquire_nothing(requested: RequestedAmounts) -> Acquisition:
    """Return the acquisition of an exempt request, which is charged nothing."""
    acquisition = UNLIMITED.try_acquire(amounts_for(UNLIMITED, requested))
    acquisition.requires_usage = False
    return acquisition


def _rejected(reason: AccessReason, resource: str | None) -> Acquisition:
    """Return an acquisition that the block has rejected: on a resource, or over all of them."""
    subject = reason.subject
    if resource is not None:
        scope = scope_of(resource, subject)
    else:
        scope = shared_total_scope(Blocked.key) if subject is None else total_scope(subject, of_system=False)
    scoped = ScopedLimits(scope, schema_of((Blocked(),)), reason.policy.level)
    return LimitSet.composed([scoped], _NOTHING_KEPT).try_acquire()
