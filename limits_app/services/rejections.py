"""Rejections with their reason: the limit that rejected, and its policy as it was then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Final

from django.utils.translation import gettext

from limits_app.engine import EntityName
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.models import BucketKind, CodeLimits, Denial, Entity
from limits_app.services.clients import user_names, with_name
from limits_app.services.limit_words import limit_in_words, limit_name
from limits_app.services.policy_history import PolicyVersion, policy_history, subjects_of
from limits_app.services.rule_labels import resource_labels
from limits_app.usage.reading import DenialCount, LimitKeys, denied

_NO_CODE_LIMITS: Final[Mapping[str, Iterable[CodeLimits]]] = {}


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rejections by a limit in a minute, with the reason.

    `name` is the display name of the entity, if it has one. `limit` is the limit as it was then, or the one that code
    sets; None if it is unknown, for example because code sets several with this key. `policy_id` is its
    policy, `event_id` the primary key of the audit event that wrote that version of the policy, and `event_number` its
    number; they are None without one. `url` is that of the URL rule for which the resource was made, if it was.
    """

    count: DenialCount
    name: str
    limit: LimitDefinition | None
    policy_id: int | None
    event_id: int | None
    event_number: int | None
    url: str = ""

    @property
    def client(self) -> str:
        """Who was rejected, in words."""
        if self.count.entity:
            who = with_name(self.count.entity, {self.count.entity: self.name})
            return who if self.count.bucket == BucketKind.ENTITY else f"{who} ({self.count.bucket.label})"
        whole_site = gettext("No user (whole site)")
        return whole_site if self.count.bucket == BucketKind.ENTITY else str(self.count.bucket.label)

    @property
    def why(self) -> str:
        """The reason as a sentence."""
        resource = self.url or self.count.resource or gettext("all resources together")
        limit = limit_name(self.count.key) if self.limit is None else limit_in_words(self.limit)
        values = {"who": self.client, "limit": limit, "resource": resource}
        if self.count.key == Blocked.key:
            return gettext("%(who)s was blocked on %(resource)s.") % values
        return gettext("%(who)s reached the limit of %(limit)s on %(resource)s.") % values


def rejections(
    resource: str | None = None,
    *,
    entity: EntityName = None,
    key: LimitKeys = None,
    since: datetime | None = None,
    until: datetime | None = None,
    request_id: str | None = None,
    offset: int = 0,
    most: int = 100,
) -> list[Rejection]:
    """Rejections with their reasons, the latest minute first; by default of the last 48 hours.

    `key` is a limit key, or several. `since` and `until` select the minutes that begin in this time, `until` excluded.
    `request_id` selects the rejections of this request, if it is among the last of its minute. `offset` rows are
    skipped, and at most `most` returned. The number of queries does not depend on the number of rows.
    Raises InvalidRequest (a ValueError) for an invalid time.
    """
    denials = denied(resource, entity, key, since=since, until=until, request_id=request_id)[offset : offset + most]
    return explained(denials)


def explained(denials: Iterable[Denial]) -> list[Rejection]:
    """Return rows of rejections with their reasons, in their order; the number of queries does not depend on them."""
    counts = [DenialCount.of(denial) for denial in denials]
    subjects = subjects_of(counts)
    rows = Entity.objects.filter(identifier__in=subjects).select_related("plan") if subjects else ()
    clients = {row.identifier: row for row in rows}
    names = user_names(subjects.keys() - {identifier for identifier, row in clients.items() if row.name})
    for identifier, name in names.items():
        clients.setdefault(identifier, Entity(identifier=identifier)).name = name
    return _explained(counts, subjects, clients)


def rejections_of(
    client: Entity, *, most: int, code_limits: Mapping[str, Iterable[CodeLimits]] = _NO_CODE_LIMITS
) -> list[Rejection]:
    """`rejections` in the last 48 hours of one client, whose name and plan are known.

    `code_limits` are those of resources for which they were read before.
    """
    identifier = client.identifier
    counts = [DenialCount.of(denial) for denial in denied(None, identifier, None, since=None, until=None)[:most]]
    return _explained(counts, subjects_of(counts), {identifier: client}, code_limits)


def _explained(
    counts: Sequence[DenialCount],
    subjects: Mapping[str, Sequence[str]],
    clients: Mapping[str, Entity],
    code_limits: Mapping[str, Iterable[CodeLimits]] = _NO_CODE_LIMITS,
) -> list[Rejection]:
    """Rejections with their reasons; `subjects` are the clients with the patterns that match them."""
    history = policy_history(counts, {*chain.from_iterable(subjects.values())})
    rejected = [(count, clients.get(count.entity) or Entity(identifier="")) for count in counts]
    policies = [
        _of_plan(client, count, history.rejecting(count, subjects.get(count.entity, ()))) for count, client in rejected
    ]
    without_policy = {count.resource for count, versions in zip(counts, policies, strict=True) if not versions}
    code = _code_limits(without_policy, code_limits)
    urls = resource_labels(count.resource for count in counts)
    explained = [_rejection(*about, versions, code) for about, versions in zip(rejected, policies, strict=True)]
    return [replace(rejection, url=urls.get(rejection.count.resource, "")) for rejection in explained]


def _of_plan(client: Entity, count: DenialCount, versions: Iterable[PolicyVersion]) -> list[PolicyVersion]:
    """The policies that may apply to a client by its plan, as far as that is known."""
    if client.plan is None and count.bucket != BucketKind.SHARED:
        return [*versions]
    plan = None if client.plan is None else client.plan.name
    return [version for version in versions if version.state["plan"] in (None, plan)]


def _code_limits(
    resources: Collection[str], read_before: Mapping[str, Iterable[CodeLimits]]
) -> dict[tuple[str, str], set[LimitDefinition]]:
    """The limits that code sets, by resource and key; `read_before` are those of some of them."""
    limits: dict[tuple[str, str], set[LimitDefinition]] = {}
    unread = [resource for resource in resources if resource not in read_before]
    rows = CodeLimits.objects.filter(resource__in=unread) if unread else ()
    for row in chain(rows, *[read_before.get(resource, ()) for resource in resources]):
        for limit in row.definitions:
            limits.setdefault((row.resource, limit.key), set()).add(limit)
    return limits


def _rejection(
    count: DenialCount,
    client: Entity,
    versions: Sequence[PolicyVersion],
    code: Mapping[tuple[str, str], Collection[LimitDefinition]],
) -> Rejection:
    unknown = Rejection(count, client.name, None, None, None, None)
    if count.bucket in (BucketKind.MEMBER, BucketKind.OTHERS):
        return unknown
    if not versions:
        set_in_code = tuple(code.get((count.resource, count.key), ()))
        return replace(unknown, limit=set_in_code[0]) if len(set_in_code) == 1 else unknown
    version = min(versions, key=PolicyVersion.rank)
    if version.state["plan"] is not None and client.plan is None:
        return unknown  # a client can have a plan from its parent, its groups or the request
    return Rejection(
        count, client.name, version.limit(count), version.policy_id, version.event_id, version.event_number
    )
