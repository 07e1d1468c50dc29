"""What a limit in words does: what it matches and replaces, whom it would have rejected, what may be misspelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Final

from django.utils.translation import gettext, ngettext

from limits_app.engine import RESOURCE_PATTERN
from limits_app.engine.limits import QuotaLimit
from limits_app.models import (
    Endpoint,
    Entity,
    Plan,
    Policy,
    PolicyEffect,
    PolicyScope,
    Resource,
    UsageSnapshot,
    in_scope,
    prefixes,
)
from limits_app.models.patterns import is_pattern
from limits_app.models.validators import WILDCARD
from limits_app.services.boosts import boosts_below
from limits_app.services.clients import client_names, find_clients, with_name
from limits_app.services.code_names import names_in_code
from limits_app.services.display import amount, moment
from limits_app.services.limit_form.outlook import outlook
from limits_app.services.limit_form.proposed import replaced_in_words, replaced_limits
from limits_app.services.limit_form.saving import replaced, resource_of
from limits_app.services.limit_form.team_members import has_counted_members, member_names
from limits_app.services.limit_sentences import (
    OF_ONE,
    SimpleLimit,
    What,
    Who,
    members,
    own_defaults,
    read,
    sentence,
    uncounted_members,
)
from limits_app.services.limit_words import limit_in_words
from limits_app.services.rule_labels import rules_of_resources
from limits_app.services.site_urls import SiteUrls
from limits_app.usage.reading import never_used, used_resources

MOST_SUGGESTED: Final = 200
_ALIKE: Final = 0.75
"""How alike a URL of the site has to be, from 0 to 1, to be suggested."""
_MOST_USED: Final = 50
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class LimitEffect:
    """What saving a limit does, in sentences; `warnings` are to be read before it is saved.

    `others` are limits of broader policies: `lost` where it replaces them, and `kept` where they apply too. It
    `keeps_others` also where there are none now.
    """

    sentence: str
    replaces: str
    lost: str
    kept: str
    others: str
    keeps_others: bool
    outlook: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    is_change: bool

    @property
    def seen(self) -> str:
        """What a form sends back once these warnings were shown; empty where nothing has to be read first."""
        to_read = [*self.warnings, self.others, *([] if self.is_change else [self.replaces])]
        text = "\n".join(filter(None, to_read))
        return blake2b(text.encode(), digest_size=12).hexdigest() if text else ""


def effect_of(limit: SimpleLimit, instance: Endpoint | Policy | None = None, *, shows_usage: bool) -> LimitEffect:
    """Describe what saving a limit in a row, or as a new one, does; nothing is saved."""
    row = replaced(limit)
    before = None if row is None else read(row)
    is_change = instance is not None and row == instance
    is_same = before is not None and (before.noted, before.shadow, before.extends) == (
        limit.noted,
        limit.shadow,
        limit.extends,
    )
    others, copies = replaced_limits(limit), {noted.limit.key for noted in limit.kept}
    kept = [other for other in others if limit.extends or other.noted.limit.key in copies]
    return LimitEffect(
        sentence(limit),
        "" if row is None or is_same else _replaces(limit, row, before),
        replaced_in_words(other for other in others if other not in kept),
        replaced_in_words(kept),
        replaced_in_words(others),
        limit.extends or bool(kept),
        outlook(limit) if shows_usage else "",
        tuple(_notes(limit)),
        () if is_change else tuple(_warnings(limit)),
        is_change=is_change,
    )


def matches_in_words(what: What, path: str) -> str:
    """How many URLs of the site a path matches; empty where none does or that is unknown, and for what is not a URL."""
    matching = SiteUrls().matching(path) if what == What.URL else None
    if not matching:
        return ""
    return ngettext("matches %(count)s URL", "matches %(count)s URLs", matching) % {"count": amount(matching)}


def unmatched_in_words(what: What, path: str) -> str:
    """Say that no URL of the site matches a path, with one that is spelled alike; empty where one matches."""
    urls = SiteUrls()
    if what != What.URL or urls.matching(path) != 0:
        return ""
    routes = {f"{route.rsplit('/', 2)[0]}/*" if WILDCARD in path else route for route in urls.routes}
    similar = get_close_matches(path, sorted(routes), n=1, cutoff=_ALIKE)
    if not similar:
        return gettext("No URL of this site matches.")
    return gettext("No URL of this site matches. Did you mean: %(url)s?") % {"url": similar[0]}


def resource_names() -> list[str]:
    """The names of resources to suggest: those with a row, those that code names, and those that were used.

    A resource that was made for a URL rule is suggested as its path, and not where the rule names a view.
    """
    in_code = {*names_in_code(), *filter(RESOURCE_PATTERN.fullmatch, SiteUrls().throttle_scopes())}
    rows = Resource.objects.order_by("name").values_list("name", flat=True)[:MOST_SUGGESTED]
    names = {*in_code, *rows, *used_resources(_MOST_USED)}
    paths = {name: rule.path for name, rule in rules_of_resources(names).items()}
    return sorted({paths.get(name, name) for name in names} - {""})


def _replaces(limit: SimpleLimit, row: Endpoint | Policy, before: SimpleLimit | None) -> str:
    if before is None or not before.limits:
        text = str(PolicyEffect(row.effect).label) if isinstance(row, Policy) else row.limits
        if isinstance(row, Policy) and row.effect == PolicyEffect.LIMITS:
            text = _in_words([limit_row.definition() for limit_row in row.limits.all()])
    else:
        text = _in_words([noted.limit for noted in before.noted])
    if limit.until and not (isinstance(row, Policy) and row.valid_until):
        return gettext("Until then it replaces: %(limits)s.") % {"limits": text}
    return gettext("Replaces: %(limits)s.") % {"limits": text}


def _in_words(limits: list[Any]) -> str:
    return gettext(" and ").join(map(limit_in_words, limits))


def starts_with_client(limit: SimpleLimit) -> bool:
    """Whether a limit has periods that begin with the billing date of a client."""
    return any(isinstance(noted.limit, QuotaLimit) and noted.limit.starts_with_client for noted in limit.noted)


def _notes(limit: SimpleLimit) -> Iterator[str]:
    if limit.until:
        yield gettext("It ends on %(date)s.") % {"date": moment(limit.until)}
    if limit.who == Who.PLAN and not Plan.objects.filter(name=limit.plan).exists():
        yield gettext("The plan “%(plan)s” will be created.") % {"plan": limit.plan}
    if limit.who == Who.USER and limit.what == What.URL:
        yield gettext("Requests without a log-in count by IP address.")
    if limit.who in {Who.CLIENT, Who.USER} and limit.what != What.EVERYTHING and not limit.until:
        yield from _lower_boosts(limit)
    if starts_with_client(limit) and limit.who in OF_ONE and not _has_billing_date(limit):
        note = gettext("%(client)s has no billing date of its own: that of its parent counts, or calendar months.")
        yield note % {"client": limit.entity}
    if limit.who == Who.TEAM and (limit.new_members or members(limit.entity).exists()):
        yield _members_in_words(limit)
        yield from _limits_as_a_whole(limit)


def _lower_boosts(limit: SimpleLimit) -> Iterator[str]:
    """Which boosts are lower than a limit of many clients: they hold their clients below it until they end."""
    boosts = boosts_below(resource_of(limit), [noted.limit for noted in limit.noted])
    prefix = prefixes.USER if limit.who == Who.USER else ""
    clients = dict.fromkeys(str(policy.entity) for policy in boosts if str(policy.entity).startswith(prefix))
    if clients:
        names = client_names(clients)
        shown = ", ".join(with_name(client, names) for client in [*clients][:_MOST_NAMED])
        note = gettext("These clients have a boost that is lower than this limit, until it ends: %(clients)s.")
        yield note % {"clients": shown + (", …" if len(clients) > _MOST_NAMED else "")}


def _limits_as_a_whole(limit: SimpleLimit) -> Iterator[str]:
    """Which limits of each client apply to a team as a whole, too."""
    if limit.lifts_each:
        if Policy.objects.filter(in_scope(PolicyScope.SYSTEM_TOTAL), limits__shared=False).exists():
            note = gettext("Those over all resources together still apply to %(team)s as to one client.")
            yield note % {"team": limit.entity}
    elif limit.counts_members and not own_defaults(limit.entity).exists():
        if limit.what == What.EVERYTHING and not limit.until and has_counted_members(limit.entity):
            return  # it is as before
        note = gettext("Other limits of each client apply to %(team)s as a whole, as to one client.")
        yield note % {"team": limit.entity}


def _has_billing_date(limit: SimpleLimit) -> bool:
    rows = Entity.objects.filter(identifier=limit.entity, billing_from__isnull=False)
    return limit.billing_from is not None or rows.exists()


def _members_in_words(limit: SimpleLimit) -> str:
    new, count = limit.new_members, members(limit.entity).count()
    names = client_names(new)
    uncounted = uncounted_members(limit.entity).count()
    values = {
        "team": limit.entity,
        "count": amount(count),
        "members": member_names(limit.entity),
        "uncounted": amount(uncounted),
        "new": ", ".join(with_name(member, names) for member in new),
    }
    texts = []
    if count:
        text = ngettext(
            "%(team)s has %(count)s member: %(members)s.", "%(team)s has %(count)s members: %(members)s.", count
        )
        texts.append(text % values)
    if new:
        texts.append(gettext("Added as members: %(new)s.") % values)
    if uncounted:
        after = gettext("The use of %(uncounted)s of them does not count for it now.")
        if limit.counts_members:
            after = gettext("The use of %(uncounted)s of them does not count for it now, and will.")
        texts.append(after % values)
    return " ".join(texts)


def _warnings(limit: SimpleLimit) -> Iterator[str]:
    """What may be misspelled: a URL, a resource or a client that nothing knows."""
    if limit.what == What.URL and SiteUrls().matching(limit.path) == 0:
        warning = gettext("No URL of this site matches “%(where)s”. Names and paths are case-sensitive.")
        yield warning % {"where": limit.path}
    if limit.what == What.RESOURCE and _is_unused(limit.resource):
        warning = gettext("Nothing has used the resource “%(name)s” so far: check the spelling.")
        yield warning % {"name": limit.resource}
    if limit.who == Who.TEAM and not (limit.new_members or members(limit.entity).exists()):
        warning = gettext("%(team)s has no members, so only its own requests count: enter its members.")
        yield warning % {"team": limit.entity}
    for name in never_used(limit.new_members) if limit.who == Who.TEAM else ():
        warning = gettext("No request has used the identifier “%(name)s” so far: check the spelling.")
        yield warning % {"name": name}
    if limit.who in OF_ONE and not is_pattern(limit.entity) and _is_unknown(limit):
        warning = gettext("No request has used the identifier “%(name)s” so far: check the spelling.")
        yield warning % {"name": limit.entity}
        if others := ", ".join(_similar(limit.entity)):
            yield gettext("Did you mean: %(clients)s?") % {"clients": others}


def _is_unused(resource: str) -> bool:
    """Whether no request has used a resource, as far as others were used, and no URL rule charges it."""
    if Endpoint.objects.filter(resource__name=resource).exists() or not UsageSnapshot.objects.exists():
        return False
    if resource in names_in_code():
        return False
    return not UsageSnapshot.objects.filter(resource=resource).exists()


def _is_unknown(limit: SimpleLimit) -> bool:
    is_team = limit.who == Who.TEAM and (bool(limit.new_members) or members(limit.entity).exists())
    return not is_team and bool(never_used([limit.entity]))


def _similar(entity: str) -> Iterator[str]:
    for client in find_clients(entity)[:3]:
        if client.identifier != entity:
            yield f"{client.identifier} ({client.name})" if client.name else client.identifier
