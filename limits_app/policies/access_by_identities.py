"""The verdict on a request: whether one of its identities is blocked, or all that it counts for are exempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from django.db import router

from limits_app.engine.errors import Unresolved
from limits_app.models import ENFORCED, Emergency, PlanGroup, changes, write_alias
from limits_app.models.changes import identifier_digest
from limits_app.models.own_queries import check_unresolved, read
from limits_app.models.plan import memberships, plan_order
from limits_app.models.prefixes import API_KEY, USER, kind_of
from limits_app.models.users import identifiers_of_client, is_logged_in, is_user_of_site
from limits_app.policies.access_by_policies import LIMITED, Access, AccessVerdict, access_of
from limits_app.policies.chain import PolicyChain, Subject
from limits_app.policies.client_resolver import resolver
from limits_app.policies.kept_configuration import configuration
from limits_app.policies.maybe_blocked import NO_ACCESS_INDEX, AccessIndex, has_no_access_in_test, read_access_index
from limits_app.policies.policy_values import EntityPolicies
from limits_app.policies.resolution import policy_source

IdentityAndPlan = tuple[str, str | None]
"""The identifier of an identity of a request, and the name of the plan of the request where that applies to it."""

_MOST_KEPT: Final = 4096
_ANY_KIND: Final = frozenset({kind_of(API_KEY), kind_of(USER), "*"})


class AccessTable:
    """Who is blocked or exempt: an index for all, and the configuration of single clients that was read since.

    The index is that of a generation of the configuration. The configuration of single clients is dropped when any
    change was applied, and clients that have changed in this generation are read whatever the index says.
    """

    @classmethod
    def read(cls, using: str) -> AccessTable:
        """Read who is blocked or exempt from a database; Unresolved while it cannot be read."""
        if has_no_access_in_test(using):
            return cls()
        now = datetime.fromtimestamp(resolver.clock(), UTC)
        return cls(read(using, lambda: read_access_index(using, now), NO_ACCESS_INDEX))

    def __init__(self, index: AccessIndex = NO_ACCESS_INDEX) -> None:
        self.index = index
        self.has_entries = bool(index)
        """Whether anyone at all is blocked or exempt."""
        self._forget(configuration.sync.seen if self.has_entries else None)

    def _forget(self, seen: object) -> None:
        self._chains: dict[Subject, Sequence[EntityPolicies]] = {}
        self._groups: dict[Any, dict[str, str]] = {}
        self._limited: set[tuple[str, ...]] = set()
        """The identities of requests that no policy blocks or exempts, at any time, until something changes."""
        self.seen = seen
        """The changes that the process knew when the first verdict was read; None before that, for an empty index."""

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
        check_unresolved(error)
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
        plans = [self.index.groups[key] for key in self.groups_of(user) if key in self.index.groups]
        return min(plans, key=lambda plan: plan_order(*plan))[1] if plans else None

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


def verdict_on(entity: str | None, plan: str | None = None, switch: Emergency = ENFORCED) -> AccessVerdict:
    """Whether an entity is blocked, exempt or limited on all URLs now, from the database.

    `switch` is the emergency switch. The other identities of a request are not considered.
    """
    now = datetime.fromtimestamp(resolver.clock(), UTC)
    return verdict_of(policy_source.read(Subject(None, entity, plan), write_alias(), now), switch)


def verdict_of(over_all: PolicyChain, switch: Emergency) -> AccessVerdict:
    """`verdict_on` an entity whose policies over all resources were just read."""
    return access_of([over_all.links], switch, datetime.fromtimestamp(resolver.clock(), UTC))
