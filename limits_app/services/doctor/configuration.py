"""Findings about the configuration: policies, pools, resources, entities, endpoints and their URLs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Exists, OuterRef
from django.utils import timezone

from limits_app import conf
from limits_app.engine import parse_limit
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone
from limits_app.models import (
    MAX_LEVELS,
    Enforcement,
    Entity,
    Policy,
    PolicyEffect,
)
from limits_app.models.fields import aware
from limits_app.models.patterns import is_pattern
from limits_app.models.policy_rules import has_ended
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.policies import with_secrets
from limits_app.services.doctor.environment import MOST_LISTED, Finding, Severity
from limits_app.services.doctor.url_rules import of_url_rules
from limits_app.services.limits_file.content import LIMITS, FileEntry
from limits_app.services.limits_file.planning import lines, overlapping
from limits_app.services.limits_file.proposed import dropped_limits
from limits_app.services.limits_file.stored import StoredObjects, client_policies, general_objects
from limits_app.usage.reading import never_used

ShowChecked = Callable[[int], object]
"""Takes the number of policies that were checked so far."""


class _Few:
    """The findings of a kind: one for each of the first messages, as they are found, and one with how many more."""

    def __init__(self, code: str, severity: Severity, what: str, advice: str) -> None:
        self._finding = (code, severity)
        self._what = what
        self._advice = advice
        self._number = 0

    def first(self, messages: Iterable[str]) -> Iterator[Finding]:
        """Count some messages, and give the findings for those that are among the first ones."""
        for message in messages:
            self._number += 1
            if self._number <= MOST_LISTED:
                yield Finding(*self._finding, message, self._advice)

    def rest(self) -> Iterator[Finding]:
        """Give the finding for all others, if there are any."""
        if self._number > MOST_LISTED:
            yield Finding(*self._finding, f"more {self._what}: {self._number - MOST_LISTED}", self._advice)


def configured(using: str, show: ShowChecked) -> Iterator[Finding]:
    """Check all configuration: first what is about many clients, then the policies of clients, part by part."""
    general = general_objects(using)
    by_section: dict[str, list[FileEntry]] = {}
    for entry in general:
        by_section.setdefault(entry.section.name, []).append(entry)
    policies, pools, resources = (by_section.get(name, []) for name in ("policies", "pools", "resources"))
    used_pools = {entry.state["pool"] for entry in resources}
    yield from chain.from_iterable(_pool(pool, is_used=pool.key[0] in used_pools) for pool in pools)
    yield from _spread(resources)
    yield from _unlimited(resources, policies, pools)
    yield from _silent(using)
    yield from _misplaced(using)
    yield from of_url_rules(by_section.get("endpoints", []), using)
    parts = filter(None, chain([policies], client_policies(using)))
    yield from _of_policies(parts, pools, using, show)


def _of_policies(
    parts: Iterable[list[FileEntry]], pools: list[FileEntry], using: str, show: ShowChecked
) -> Iterator[Finding]:
    """Check all policies; each part has all policies of its clients."""
    dropped = _Few(
        "limits_app.D010",
        Severity.WARNING,
        "limits are dropped by policies",
        "Mark the policy “extends”, or repeat the limit in it; ignore this if it is intended.",
    )
    unreachable = _Few(
        "limits_app.D011", Severity.INFO, "policies never apply", "Delete the policy, or correct when it applies."
    )
    # The next two are only written by programs that bypass the app.
    ambiguous = _Few(
        "limits_app.D017",
        Severity.ERROR,
        "policies overlap with others",
        "Change when one of them applies, or delete it; until then it is not defined which one does.",
    )
    invalid = _Few(
        "limits_app.D030",
        Severity.ERROR,
        "limits are invalid",
        "Enter the limit again; until then a policy is without it, and a member is not used.",
    )
    unknown = _Few(
        "limits_app.D026",
        Severity.INFO,
        "entities with policies never used anything",
        "Check that it is spelled as your code does.",
    )
    members = ((f"member {name} of {pool.label}", state) for pool in pools for name, state in _members(pool).items())
    yield from invalid.first(_invalid_limits(members))
    checked = 0
    for policies in parts:
        objects = StoredObjects(using)
        objects.add(policies)
        objects.read_replaced(policies)
        entities = {
            name: entry.state for (section, (name, *_)), entry in objects.entries.items() if section == "entities"
        }
        yield from dropped.first(dropped_limits(objects.entries.values(), policies, using))
        yield from unreachable.first(_unreachable(policies, entities))
        yield from ambiguous.first(
            problem.message for problem in overlapping({policy.name: policy for policy in policies})
        )
        yield from invalid.first(_invalid_limits((policy.label, policy.state) for policy in policies))
        yield from unknown.first(_unknown(policies))
        checked += len(policies)
        show(checked)
    for few in (dropped, unreachable, ambiguous, invalid, unknown):
        yield from few.rest()


def _unreachable(policies: list[FileEntry], entities: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    now = timezone.now()
    for policy in policies:
        if why := _why_never(policy, now, entities):
            yield f"{policy.label} never applies: {why}"


def _why_never(policy: FileEntry, now: datetime, entities: Mapping[str, Mapping[str, Any]]) -> str | None:
    state, (_, entity, _, hours, *_) = policy.state, policy.key
    row = entities.get(entity, {})
    if row.get("blocked") or row.get("unlimited"):
        return f"the entity is {'blocked' if row['blocked'] else 'unlimited'} itself"
    if state["enforcement"] == Enforcement.OFF:
        return "it is switched off"
    if state["rollout_percent"] == 0:
        return "it is rolled out to 0 % of entities"
    if state["valid_until"] and has_ended(aware(datetime.fromisoformat(state["valid_until"])), aware(now)):
        return f"it ended at {state['valid_until']}"
    if not hours:
        return None
    try:
        WeeklyHours.parse(hours, state["time_zone"])
    except ValueError as error:
        return str(error)
    return None


def _pool(pool: FileEntry, *, is_used: bool) -> Iterator[Finding]:
    members = _members(pool)
    enabled = {name: member for name, member in members.items() if member["enabled"]}
    if not enabled:
        yield Finding(
            "limits_app.D012",
            Severity.ERROR if is_used else Severity.WARNING,
            f"{pool.label} has no enabled member: all requests are rejected",
            "Enable a member, or remove the pool from its resources.",
        )
    for name, member in enabled.items():
        try:
            with_secrets(member["config"], f"member {name!r} of {pool.label}")
        except ImproperlyConfigured as error:
            yield Finding(
                "limits_app.D013", Severity.ERROR, str(error), "Set it where the site runs, or correct the config."
            )


def _members(pool: FileEntry) -> Mapping[str, Mapping[str, Any]]:
    members: Mapping[str, Mapping[str, Any]] = pool.state["members"]
    return members


def _spread(resources: list[FileEntry]) -> Iterator[Finding]:
    """Pools whose members are counted in several stores."""
    stores: dict[str, set[str]] = {}
    for resource in resources:
        stores.setdefault(resource.state["pool"], set()).add(resource.state["store"] or conf.get(conf.STORE))
    for pool in sorted(filter(None, stores)):
        aliases = ", ".join(sorted(stores[pool]))
        if len(stores[pool]) > 1:
            yield Finding(
                "limits_app.D018",
                Severity.WARNING,
                f"the pool {pool} serves resources that are counted in several stores: {aliases}",
                "Put these resources into one store: each store allows the full capacity of the members.",
            )


def _unlimited(resources: list[FileEntry], policies: list[FileEntry], pools: list[FileEntry]) -> Iterator[Finding]:
    """Resources without any limit."""
    general = {policy.key[0] for policy in policies if not policy.key[1] and not policy.key[4] and _says(policy)}
    limited = {pool.key[0] for pool in pools if any(member[LIMITS] for member in _members(pool).values())}
    few = _Few(
        "limits_app.D014",
        Severity.WARNING,
        "resources have no limits",
        "Set limits for the resource or the system; if all is to be admitted, say so with an unlimited policy.",
    )
    yield from few.first(
        f"{resource.label} has no limits for entities without a specific policy"
        for resource in resources
        if not general & {"", resource.key[0]} and resource.state["pool"] not in limited
    )
    yield from few.rest()


def _says(policy: FileEntry) -> bool:
    """Whether a policy has an effect, also if it is to allow everything."""
    return policy.state["enforcement"] != Enforcement.OFF and (
        policy.state["effect"] != PolicyEffect.LIMITS or bool(policy.state[LIMITS])
    )


def _silent(using: str) -> Iterator[Finding]:
    """Rows of entities without effect, of which there may be many: the database counts them."""
    rows = Entity._base_manager.using(using)
    plain = rows.filter(name="", parent=None, plan=None, unlimited=False, blocked=False, metadata={}, billing_from=None)
    named = (Policy._base_manager.using(using).filter(entity=OuterRef("pk")), rows.filter(parent=OuterRef("pk")))
    unused = plain.filter(*(~Exists(references) for references in named)).order_by()
    first = [*unused.order_by("pk").values_list("identifier", flat=True)[:MOST_LISTED]]
    advice = "Delete the row: the same limits apply to an entity without a row."
    for identifier in first:
        message = f"entity {identifier} has a row without configuration"
        yield Finding("limits_app.D015", Severity.INFO, message, advice)
    more = unused.count() - MOST_LISTED if len(first) == MOST_LISTED else 0
    if more > 0:
        message = f"more entities have rows without configuration: {more}"
        yield Finding("limits_app.D015", Severity.INFO, message, advice)


def _misplaced(using: str) -> Iterator[Finding]:
    """Entities that are their own ancestors, or too many levels deep, which only programs that bypass the app write."""
    above = "__".join(["parent"] * MAX_LEVELS)
    rows = Entity._base_manager.using(using).filter(**{f"{above}__isnull": False}).order_by("pk")
    names = [("entities", (identifier,)) for identifier in rows.values_list("identifier", flat=True)[:MOST_LISTED]]
    objects = StoredObjects(using)
    objects.read_lines(names)
    entities = {name: objects.entries[name] for name in names if name in objects.entries}
    for problem in lines(entities, objects.entries):
        yield Finding(
            "limits_app.D016",
            Severity.ERROR,
            problem.message,
            "Change or empty its parent; until then only its nearest ancestors are charged.",
        )


def _invalid_limits(owners: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Limits of policies or members that cannot be read; those in unknown time zones are a check's."""
    for label, state in owners:
        for text in filter(_is_invalid, state[LIMITS]):
            yield f"{label} has the invalid limit {text}"


@lru_cache(maxsize=1024)
def _is_invalid(text: str) -> bool:
    """Whether a limit cannot be read; most policies have the same ones."""
    try:
        parse_limit(text)
    except UnknownTimeZone:
        return False
    except InvalidLimit:
        return True
    return False


def _unknown(policies: list[FileEntry]) -> Iterator[str]:
    """Policies of entities that no request ever had, where usage is counted."""
    names = {policy.key[1] for policy in policies if not is_pattern(policy.key[1])} - {""}
    for name in never_used(names):
        yield f"the entity {name!r} has a policy and never used anything"
