"""Access: whether a request is blocked, exempt or limited, for the middleware, decorators, throttles and explanations.

`limits.acquire` knows no request: it is decided by the policies of its entity alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from django.db import router, transaction

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import Unresolved
from limits_app.engine.keys import scope_of, shared_total_scope, total_scope
from limits_app.engine.limits import Blocked
from limits_app.engine.plan import ScopedLimits
from limits_app.engine.record import schema_of
from limits_app.models import ENFORCED, Emergency, Entity, PlanGroup, Policy, PolicyEffect, changes, write_alias
from limits_app.models.changes import identifier_digest
from limits_app.models.own_queries import read
from limits_app.models.plan import memberships
from limits_app.models.users import identifiers_of_client, is_logged_in, is_user_of_site
from limits_app.policies import (
    LIMITED,
    NO_ACCESS_INDEX,
    Access,
    AccessIndex,
    AccessReason,
    AccessVerdict,
    EntityPolicies,
    ResolutionKey,
    ResolvedSet,
    Subject,
    access_of,
    configuration,
    policy_source,
    resolve,
    resolver,
)
from limits_app.services import notify
from limits_app.services.amounts import RequestedAmounts, amounts_for
from limits_app.services.shadow import block_in_shadow, note_shadowed
from limits_app.services.unavailable import UNLIMITED, without_limits
from limits_app.stores.memory import MemoryStore

IdentityAndPlan = tuple[str, str | None]
"""The identifier of an identity of a request, and the name of the plan of the request where that applies to it."""

_MOST_KEPT: Final = 4096
_NOTHING_KEPT: Final = MemoryStore()
_ANY_KIND: Final = frozenset({"key", "user", "*"})


class AccessTable:
    """Who is blocked or exempt: an index for all, and the configuration of single clients that was read since.

    The index is that of a generation of the configuration. The configuration of single clients is dropped when any
    change was applied, and clients that have changed in this generation are read whatever the index says.
    """

    def __init__(self, index: AccessIndex = NO_ACCESS_INDEX) -> None:
        self.index = index
        self.has_entries = bool(index)
        """Whether anyone at all is blocked or exempt."""
        self._forget(configuration.sync.seen)

    def _forget(self, seen: object) -> None:
        self._chains: dict[Subject, Sequence[EntityPolicies]] = {}
        self._groups: dict[Any, dict[str, str]] = {}
        self._limited: set[tuple[str, ...]] = set()
        """The identities of requests that no policy blocks or exempts, at any time, until something changes."""
        self.seen = seen
        """The changes that the process knew when the first verdict was read."""

    @property
    def is_used(self) -> bool:
        """Whether verdicts depend on this table."""
        return self.has_entries or bool(self._groups)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of identities that may be blocked or exempt."""
        return self.index.kinds | _ANY_KIND if configuration.touched else self.index.kinds

    def _follow(self) -> object:
        """Forget rows that were read before a change; returns the known changes."""
        seen = configuration.sync.seen
        if self.seen is not seen:
            self._forget(seen)
        return seen

    def verdict(self, identities: Iterable[IdentityAndPlan], resource: str | None = None) -> AccessVerdict:
        """Judge a request by its identities; with a resource, only by the blocks of that. May query the database.

        While the policies of an identity cannot be read, the patterns that match it may block it but not exempt it.
        Where nothing that is known blocks the request, ON_UNRESOLVED decides; to block raises Unresolved.
        """
        if not self.has_entries:
            return LIMITED
        self._follow()
        limited, names = self._limited, []  # another set after a change
        now = datetime.fromtimestamp(resolver.clock(), UTC)
        judged = partial(access_of, switch=self.index.switch, now=now, on_resource=resource is not None)
        policies: list[Sequence[EntityPolicies]] = []
        unread: list[Sequence[EntityPolicies]] = []
        error: Unresolved | None = None
        for name, plan in identities:
            names.append(name)
            try:
                policies += filter(None, [self._chain(name, plan, resource, now)])
            except Unresolved as failed:
                error = failed
                indexed = self.index.policies_of(name, resource)
                unread += [] if indexed is None else [[indexed]]
        if not (policies or unread or error or self.index.plans):
            if len(limited) >= _MOST_KEPT:
                limited.clear()
            limited.add(tuple(names))
        verdict = judged([*policies, *unread])
        if error is None or verdict.access is Access.BLOCKED:
            return verdict
        without_limits(error)
        return judged(policies)

    def is_limited(self, names: Sequence[str]) -> bool:
        """Whether a request with some identities is known to be limited, other than by a policy of one resource."""
        self._follow()
        return tuple(names) in self._limited

    def is_blocked_for_some(self, resource: str) -> bool:
        """Whether a resource is blocked for some clients only."""
        return resource in self.index.resources

    def groups_of(self, user: Any) -> dict[str, str]:
        """The names of the groups of a user, by primary key as text; one query per user until a membership changes."""
        is_saved = is_user_of_site(user) and is_logged_in(user) and user.pk is not None
        if not is_saved or memberships() is None:
            return {}
        seen, names = self._follow(), self._groups.get(user.pk)
        if names is None:
            groups = getattr(user, memberships().name)
            rows: list[tuple[Any, str]] = read(groups.db, lambda: [*groups.values_list("pk", "name")], [])
            names = {str(key): name for key, name in rows}
            using = router.db_for_write(PlanGroup)
            if groups.db == using:  # others announce no change
                self._keep(self._groups, user.pk, names, using=using, seen=seen)
        return names

    def plan_of_groups(self, user: Any) -> str | None:
        """The plan of the groups of a user: of several the one with the highest priority, then the first by name."""
        if not self.index.groups:
            return None
        plans = [self.index.groups[key] for key in self.groups_of(user) if key in self.index.groups]
        return min(plans, key=lambda plan: (-plan[0], plan[1]))[1] if plans else None

    def _chain(
        self, name: str, plan: str | None, resource: str | None, now: datetime
    ) -> Sequence[EntityPolicies] | None:
        """The policies of an identity and of those above it; None where nothing blocks or exempts it."""
        seen = self._follow()
        touched = configuration.touched
        is_touched = touched and any(
            identifier_digest(identifier) in touched for identifier in identifiers_of_client(name)
        )
        if not (is_touched or self.index.must_read(name, plan)):
            policies = self.index.policies_of(name, resource)
            return None if policies is None else [policies]
        subject, using = Subject(resource, name, plan), write_alias()
        links = self._chains.get(subject)
        if links is None:
            links = policy_source.read(subject, using, now).links
            self._keep(self._chains, subject, links, using=using, seen=seen)
        return links

    def _keep(self, kept: dict[Any, Any], key: Any, value: Any, *, using: str, seen: object) -> None:
        """Keep rows that were read, unless they may be outdated or rolled back; of too many, the oldest are dropped."""
        if seen is not configuration.sync.seen or not changes.may_be_kept(using):
            return
        if len(kept) >= _MOST_KEPT:
            kept.pop(next(iter(kept)), None)
        kept[key] = value


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


def verdict_on(entity: str | None, plan: str | None = None, switch: Emergency = ENFORCED) -> AccessVerdict:
    """Whether an entity is blocked, exempt or limited on all URLs now, from the database.

    `switch` is the emergency switch. The other identities of a request are not considered.
    """
    now = datetime.fromtimestamp(resolver.clock(), UTC)
    chain = policy_source.read(Subject(None, entity, plan), write_alias(), now)
    return access_of([chain.links], switch, now)


def lift_blocks(entity: str) -> None:
    """Unset the flag of an entity or a pattern, and delete its blocked policies, on all resources and on each."""
    using = write_alias()
    with transaction.atomic(using=using):
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
