"""Findings about the configuration: policies, pools, resources, entities, endpoints and their URLs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django.utils.module_loading import import_string

from limits_app import conf
from limits_app.engine import parse_limit
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone
from limits_app.models import Endpoint, Enforcement, Entity, Policy, PolicyEffect, registered, write_alias
from limits_app.models.patterns import is_pattern
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.policies import with_secrets
from limits_app.services.doctor.environment import Finding, Severity
from limits_app.services.limits_file.content import LIMITS, SECTIONS, FileEntry, Name, stored_where
from limits_app.services.limits_file.planning import lines, overlapping
from limits_app.services.limits_file.proposed import dropped_limits
from limits_app.services.site_urls import SiteUrls
from limits_app.usage.reading import never_used

_SHOWN: Final = 10


def configured(entries: Mapping[Name, FileEntry]) -> Iterator[Finding]:
    """Check all configuration."""
    by_section: dict[str, list[FileEntry]] = {}
    for entry in entries.values():
        by_section.setdefault(entry.section.name, []).append(entry)
    policies, pools = by_section.get("policies", []), by_section.get("pools", [])
    used_pools = {entry.state["pool"] for entry in by_section.get("resources", [])}
    yield from _dropped(entries, policies)
    yield from _unreachable(policies, {entry.key[0]: entry.state for entry in by_section.get("entities", [])})
    yield from chain.from_iterable(_pool(pool, is_used=pool.key[0] in used_pools) for pool in pools)
    yield from _spread(by_section.get("resources", []))
    yield from _unlimited(by_section.get("resources", []), policies, pools)
    yield from silent(write_alias())
    yield from _impossible(entries)
    yield from islice(_left_out(policies, pools), _SHOWN)
    endpoints = by_section.get("endpoints", [])
    yield from unseen(endpoints)
    yield from islice(pointless(endpoints), _SHOWN)
    yield from islice(hidden(endpoints), _SHOWN)
    yield from _unknown(policies)


def _dropped(entries: Mapping[Name, FileEntry], policies: list[FileEntry]) -> Iterator[Finding]:
    dropped = [*dropped_limits(entries.values(), policies, write_alias())]
    advice = "Mark the policy “extends”, or repeat the limit in it; ignore this if it is intended."
    yield from _few("limits_app.D010", Severity.WARNING, dropped, what="limits are dropped by policies", advice=advice)


def _unreachable(policies: list[FileEntry], entities: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    now = timezone.now()
    texts = [
        f"{policy.label} never applies: {why}" for policy in policies if (why := _why_never(policy, now, entities))
    ]
    advice = "Delete the policy, or correct when it applies."
    yield from _few("limits_app.D011", Severity.INFO, texts, what="policies never apply", advice=advice)


def _why_never(policy: FileEntry, now: datetime, entities: Mapping[str, Mapping[str, Any]]) -> str | None:
    state, (_, entity, _, hours, *_) = policy.state, policy.key
    row = entities.get(entity, {})
    if row.get("blocked") or row.get("unlimited"):
        return f"the entity is {'blocked' if row['blocked'] else 'unlimited'} itself"
    if state["enforcement"] == Enforcement.OFF:
        return "it is switched off"
    if state["rollout_percent"] == 0:
        return "it is rolled out to 0 % of entities"
    if state["valid_until"] and datetime.fromisoformat(state["valid_until"]).timestamp() <= now.timestamp():
        return f"it ended at {state['valid_until']}"
    if not hours:
        return None
    try:
        WeeklyHours.parse(hours, state["time_zone"])
    except ValueError as error:
        return str(error)
    return None


def _pool(pool: FileEntry, *, is_used: bool) -> Iterator[Finding]:
    members = pool.state["members"]
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
    limited = {pool.key[0] for pool in pools if any(member[LIMITS] for member in pool.state["members"].values())}
    texts = [
        f"{resource.label} has no limits for entities without a specific policy"
        for resource in resources
        if not general & {"", resource.key[0]} and resource.state["pool"] not in limited
    ]
    advice = "Set limits for the resource or the system; if all is to be admitted, say so with an unlimited policy."
    yield from _few("limits_app.D014", Severity.WARNING, texts, what="resources have no limits", advice=advice)


def _says(policy: FileEntry) -> bool:
    """Whether a policy has an effect, also if it is to allow everything."""
    return policy.state["enforcement"] != Enforcement.OFF and (
        policy.state["effect"] != PolicyEffect.LIMITS or bool(policy.state[LIMITS])
    )


def silent(using: str) -> Iterator[Finding]:
    """Rows of entities without effect, of which there may be many: the database counts them."""
    rows = Entity._base_manager.using(using)
    plain = rows.filter(name="", parent=None, plan=None, unlimited=False, blocked=False, metadata={})
    named = (Policy._base_manager.using(using).filter(entity=OuterRef("pk")), rows.filter(parent=OuterRef("pk")))
    unused = plain.filter(*(~Exists(references) for references in named)).order_by()
    first = unused.order_by("pk").values_list("identifier", flat=True)[:_SHOWN]
    messages = [f"entity {identifier} has a row without configuration" for identifier in first]
    number = unused.count() if len(messages) == _SHOWN else len(messages)
    advice = "Delete the row: the same limits apply to an entity without a row."
    what = "entities have rows without configuration"
    yield from _few("limits_app.D015", Severity.INFO, messages, what=what, advice=advice, number=number)


def relevant(using: str) -> dict[Name, FileEntry]:
    """All configuration, except for entities that have neither policies, plans nor flags and are in no hierarchy."""
    policies = Policy._base_manager.using(using).exclude(entity=None).values("entity")
    parents = Entity._base_manager.using(using).exclude(parent=None).values("parent")
    means = Q(unlimited=True) | Q(blocked=True) | ~Q(plan=None) | ~Q(parent=None)
    means |= Q(pk__in=policies) | Q(pk__in=parents)
    return {
        entry.name: entry
        for section in SECTIONS.values()
        for entry in stored_where(section, means if section.model is Entity else Q(), using)
    }


def _impossible(entries: Mapping[Name, FileEntry]) -> Iterator[Finding]:
    """Invalid rows, which only programs that bypass the app can write."""
    for problem in islice(lines(entries), _SHOWN):
        yield Finding(
            "limits_app.D016",
            Severity.ERROR,
            problem.message,
            "Change or empty its parent; until then only its nearest ancestors are charged.",
        )
    for problem in islice(overlapping(entries), _SHOWN):
        yield Finding(
            "limits_app.D017",
            Severity.ERROR,
            problem.message,
            "Change when one of them applies, or delete it; until then it is not defined which one does.",
        )


def _left_out(policies: list[FileEntry], pools: list[FileEntry]) -> Iterator[Finding]:
    """Invalid limits, which only programs that bypass the app can write; those in unknown time zones are a check's."""
    owners = [(policy.label, policy.state) for policy in policies]
    for pool in pools:
        owners += [(f"member {name} of {pool.label}", state) for name, state in pool.state["members"].items()]
    for label, state in owners:
        for text in state[LIMITS]:
            try:
                parse_limit(text)
            except UnknownTimeZone:
                continue
            except InvalidLimit:
                yield Finding(
                    "limits_app.D030",
                    Severity.ERROR,
                    f"{label} has the invalid limit {text}",
                    "Enter the limit again; until then a policy is without it, and a member is not used.",
                )


def _unknown(policies: list[FileEntry]) -> Iterator[Finding]:
    """Policies of entities that no request ever had, where usage is counted."""
    names = {policy.key[1] for policy in policies if not is_pattern(policy.key[1])} - {""}
    texts = [f"the entity {name!r} has a policy and never used anything" for name in never_used(names)]
    advice = "Check that it is spelled as your code does."
    yield from _few(
        "limits_app.D026", Severity.INFO, texts, what="entities with policies never used anything", advice=advice
    )


def _few(
    code: str, severity: Severity, messages: list[str], *, what: str, advice: str, number: int | None = None
) -> Iterator[Finding]:
    """A finding for each message if they are few, else for the first ones and the number of the others.

    `number` is how many there are, where the messages are only the first ones.
    """
    more = (len(messages) if number is None else number) - _SHOWN
    for message in [*messages[:_SHOWN], *([f"more {what}: {more}"] if more > 0 else [])]:
        yield Finding(code, severity, message, advice)


_ID: Final = "limits_app.D019"
_ADVICE: Final = "Correct it, or delete the endpoint: a {what} is case-sensitive."
_TARGET: Final = tuple(
    name for name in registered(Endpoint).fields if name not in {"name", "limits", "resource", "amounts", "order"}
)
_MIDDLEWARE: Final = "limits_app.integrations.middleware.LimitsMiddleware"


def unseen(endpoints: Sequence[FileEntry]) -> Iterator[Finding]:
    """Endpoints of a site without LimitsMiddleware or a subclass of it, that no proxy asks either."""
    many = sum(endpoint.state["enabled"] for endpoint in endpoints)
    if many and not any(_is_ours(name) for name in settings.MIDDLEWARE) and not SiteUrls().answers_proxies:
        yield Finding(
            "limits_app.D024",
            Severity.WARNING,
            f"endpoints have no effect, because MIDDLEWARE does not contain LimitsMiddleware: {many}",
            f"Add {_MIDDLEWARE!r} to MIDDLEWARE, behind AuthenticationMiddleware.",
        )


def _is_ours(name: str) -> bool:
    try:
        made_of = getattr(import_string(name), "__mro__", ())
    except ImportError:  # an error when the site starts
        return False
    return _MIDDLEWARE in {f"{middleware.__module__}.{middleware.__qualname__}" for middleware in made_of}


def pointless(endpoints: Sequence[FileEntry]) -> Iterator[Finding]:
    """Endpoints with a view or an exact path that is not in the URLs of the site."""
    urls = SiteUrls()
    for endpoint in endpoints:
        path, view = endpoint.state["path"], endpoint.state["view_name"]
        if not endpoint.state["enabled"] or urls.have(path, view):
            continue
        if view:
            message = f"{endpoint.label} is about the view {view!r}, which the site does not have"
            yield Finding(_ID, Severity.WARNING, message, _ADVICE.format(what="name"))
        else:
            message = f"{endpoint.label} is about {path!r}, where the site has no view"
            yield Finding(_ID, Severity.INFO, message, _ADVICE.format(what="path"))


def hidden(endpoints: Sequence[FileEntry]) -> Iterator[Finding]:
    """Endpoints that never apply, since another one with the same path or view comes first and skips later rules."""
    rules = [
        (entry, Endpoint(pk=place, order=entry.key[1], **{name: entry.state[name] for name in _TARGET}))
        for place, entry in enumerate(endpoints)
        if entry.state["enabled"]
    ]
    by_target: dict[tuple[str, str], list[tuple[FileEntry, Endpoint]]] = {}
    for entry, rule in rules:
        by_target.setdefault((rule.path.lstrip("/"), rule.view_name), []).append((entry, rule))
    for same in by_target.values():
        for entry, rule in same:
            first = next((other for other, rule_of_other in same if rule_of_other.hides(rule)), None)
            if first is not None:
                yield Finding(
                    "limits_app.D025",
                    Severity.WARNING,
                    f"{entry.label} never applies: {first.label} comes first and skips later rules",
                    "Give it a lower order or other methods, or delete one of them.",
                )
