"""Limits as one sentence: what is limited, who is counted, how much, and what happens to requests beyond it.

A `SimpleLimit` is for people who do not know the tables of the app. It stands for a URL rule with limits, or for a
policy of a resource or of all resources together; `read` reads them back, and `limit_form.saving` saves them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import models
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.engine import (
    CALLS,
    CLIENT_START,
    Amount,
    Noted,
    QuotaPeriod,
    amount_text,
    is_currency,
    limit_body,
    limit_text,
    parse_limit,
)
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit, LimitDefinition, ResourceLimit
from limits_app.models import (
    WITHOUT_CONDITIONS,
    Counted,
    CountedBy,
    Endpoint,
    Enforcement,
    Entity,
    Policy,
    PolicyEffect,
    write_alias,
)
from limits_app.models.prefixes import ADDRESS, API_KEY, USER, each_of, kind_of
from limits_app.models.rule_fields import ERRORS, seconds_of_block
from limits_app.services.display import duration
from limits_app.services.limit_words import burst_in_words, limit_in_words


class What(models.TextChoices):
    """What is limited."""

    URL = "url", _("a URL")
    RESOURCE = "resource", _("a resource")
    EVERYTHING = "everything", _("all resources together")


class Who(models.TextChoices):
    """Who has a count."""

    USER = "user", _("each user")
    CLIENT = "client", _("each client: user, API key or IP address")
    ADDRESS = "address", _("each IP address")
    KEY = "key", _("each API key")
    ENTITY = "entity", _("one client…")
    TEAM = "team", _("a team, all its members together…")
    PLAN = "plan", _("each member of a plan…")
    TOGETHER = "together", _("all clients together")


EACH: Final = (Who.USER, Who.CLIENT, Who.ADDRESS, Who.KEY, Who.ENTITY, Who.PLAN)
"""Those of whom each has a count of its own; the others share one."""


OF_ONE: Final = (Who.ENTITY, Who.TEAM)
"""Those that are about one client, which is named."""

COUNTED_BY: Final = {
    Who.CLIENT: CountedBy.ENTITY,
    Who.USER: CountedBy.USER,
    Who.ADDRESS: CountedBy.IP,
    Who.KEY: CountedBy.API_KEY,
    Who.TOGETHER: CountedBy.EVERYONE,
}
PATTERNS: Final = {Who.USER: each_of(USER), Who.ADDRESS: each_of(ADDRESS), Who.KEY: each_of(API_KEY)}
_SUBJECTS: Final = {
    Who.CLIENT: _("Each client may"),
    Who.USER: _("Each user may"),
    Who.ADDRESS: _("Each IP address may"),
    Who.KEY: _("Each API key may"),
    Who.TOGETHER: _("All clients together may"),
}
ADVANCED: Final = tuple(name for name in WITHOUT_CONDITIONS if name not in {"responses", "block_for"})
"""The fields of URL rules that a sentence does not say."""
_TEAM: Final = "team"
"""The kind of clients that are teams also before they have members."""
_NUMBER: Final = re.compile(r"[0-9.]+[kMG]?", re.ASCII)

AT_A_TIME: Final = ""
BILLING_MONTH: Final = "billing-month"
_CALENDAR: Final = (QuotaPeriod.DAY, QuotaPeriod.WEEK, QuotaPeriod.MONTH)
PERIODS: Final = (
    ("s", _("per second")),
    ("min", _("per minute")),
    ("h", _("per hour")),
    (QuotaPeriod.DAY.value, _("per calendar day")),
    (QuotaPeriod.WEEK.value, _("per calendar week")),
    (QuotaPeriod.MONTH.value, _("per calendar month")),
    (BILLING_MONTH, _("per billing month of the client")),
    (AT_A_TIME, _("at a time")),
)
"""The periods that people choose from: clocks run through, days, weeks and months are those of the calendar, and
those of billing begin with the billing date of the client."""


@dataclass(frozen=True, slots=True)
class SimpleAmount:
    """One limit: for example 100 `requests` per `min`.

    `per` is one of `PERIODS`, or for a limit that was made elsewhere what its text says after the number.
    """

    number: Amount
    unit: str
    per: str

    @property
    def text(self) -> str:
        """The limit as text; requests are counted in a sliding window, which never allows more in one period."""
        key, number = unit_key(self.unit), amount_text(self.number)
        if self.per in _CALENDAR:
            return f"{key}={number}/{self.per}@{timezone.get_default_timezone_name()}"
        if self.per == BILLING_MONTH:
            zone = timezone.get_default_timezone_name()
            return f"{key}={number}/{QuotaPeriod.MONTH}@{zone}:from={CLIENT_START}"
        if self.per == AT_A_TIME:
            return f"{key}={number}:permits"
        if self.per not in dict(PERIODS):
            return f"{key}={number}{self.per}"
        option = ":sliding_window" if key == CALLS else ":rate" if is_currency(key) else ""
        return f"{key}={number}/{self.per}{option}"

    @classmethod
    def of(cls, limit: LimitDefinition) -> SimpleAmount:
        """The amount that stands for a limit."""
        unit = gettext("requests") if limit.key in {CALLS, CallLimit.key} else limit.key
        unit = unit.upper() if is_currency(unit) else unit
        body = limit_body(limit)
        rest = body[len(_NUMBER.match(body)[0]) :]  # type: ignore[index]  # it begins with a number
        amounts = (cls(limit.capacity, unit, per) for per, _label in PERIODS)
        return next((amount for amount in amounts if _is_text_of(amount, limit)), cls(limit.capacity, unit, rest))


def unit_key(unit: str) -> str:
    """The key of the limit of a unit that people have named."""
    name = unit.strip()
    is_requests = name.casefold() in {"", "requests", gettext("requests").casefold(), CALLS, CallLimit.key}
    key = name.lower() if is_currency(name.lower()) else name.replace(" ", "_")
    return CALLS if is_requests else key


def _is_text_of(amount: SimpleAmount, limit: LimitDefinition) -> bool:
    try:
        return parse_limit(amount.text).limit == limit
    except InvalidLimit:
        return False


@dataclass(frozen=True, slots=True)
class SimpleLimit:
    """The sentence. `limits` are texts such as `calls=100/min`; `path`, `resource`, `entity` and `plan` are names.

    `responses` and `block_for` are those of a URL rule.

    With `until` it replaces the lasting limit of the same scope until then. A plan is made where it does not exist,
    `groups` are those of users to put on it, and `groups_off` those to take off it. For a team, `counts_members` has
    the use of its members count for it, `new_members` are clients that become members, and with `lifts_each` the
    limits of each client do not apply to the team as a whole. `billing_from` is the billing date of one client, where
    that is set. Broader limits that it replaces otherwise apply too where it
    `extends` them; `kept` are copies of those that cannot be extended.
    """

    what: What
    who: Who
    limits: tuple[str, ...]
    path: str = ""
    resource: str = ""
    entity: str = ""
    plan: str = ""
    responses: str = ""
    block_for: str = ""
    shadow: bool = False
    until: datetime | None = None
    groups: tuple[Any, ...] = ()
    groups_off: tuple[Any, ...] = ()
    counts_members: bool = True
    new_members: tuple[str, ...] = ()
    lifts_each: bool = False
    billing_from: datetime | None = None
    extends: bool = False
    kept: tuple[Noted, ...] = ()

    @property
    def is_rule(self) -> bool:
        """Whether it is a URL rule with its limits; another limit of a URL is a policy of the resource of its rule."""
        return self.what == What.URL and self.who in COUNTED_BY and self.until is None

    @property
    def noted(self) -> tuple[Noted, ...]:
        """Its limits; those of everyone together are shared, which a rule for a URL counts by itself."""
        is_shared = self.who == Who.TOGETHER and self.what != What.URL
        return (*(Noted(parse_limit(text).limit, is_shared) for text in self.limits), *self.kept)


def sentence(limit: SimpleLimit) -> str:
    """Read a limit back, such as “Each user may make 100 requests per minute on /api/search/.”."""
    if limit.who in _SUBJECTS:
        subject = str(_SUBJECTS[limit.who])
    elif limit.who == Who.TEAM and limit.counts_members:
        subject = gettext("All members of %s together may") % limit.entity
    else:
        whose = gettext("Each member of “%s”") % limit.plan if limit.who == Who.PLAN else limit.entity
        subject = gettext("%s may") % whose
    where = {What.URL: limit.path, What.RESOURCE: limit.resource}.get(limit.what)
    scope = gettext("on %s") % where if where else gettext("over all resources together")
    parts = gettext(" and ").join(map(_in_words, limit.noted))
    sentences = [f"{subject} {parts} {scope}.", *_of_groups(limit), *_conditions(limit)]
    if limit.lifts_each:
        sentences.append(gettext("The limits of each client do not apply to %s as a whole.") % limit.entity)
    if limit.shadow:
        sentences.append(gettext("Requests beyond that are reported and not rejected."))
    return " ".join(sentences)


def _of_groups(limit: SimpleLimit) -> Iterator[str]:
    """Say whose users get a plan, and whose lose it."""
    if limit.groups:
        yield gettext("It is the plan of the user groups: %s.") % ", ".join(map(str, limit.groups))
    if limit.groups_off:
        yield gettext("It is no longer the plan of the user groups: %s.") % ", ".join(map(str, limit.groups_off))


def _conditions(limit: SimpleLimit) -> Iterator[str]:
    """Say which responses of a URL rule count, and for how long it blocks."""
    if limit.responses:
        text = gettext(
            "Only responses with status %(statuses)s count, so at most this number of requests run at the same time."
        )
        statuses = ", ".join(limit.responses.replace(ERRORS, "4xx,5xx").split(","))
        yield text % {"statuses": statuses}
    if limit.block_for:
        text = gettext("Once it is exceeded, all further requests are rejected for %(time)s.")
        yield text % {"time": duration(seconds_of_block(limit.block_for))}


def _in_words(noted: Noted) -> str:
    """For example “make 100 requests per minute” or “use 1,000,000 tokens per day”."""
    limit = noted.limit
    match limit:
        case ResourceLimit():
            text = gettext("hold %(limit)s")
        case _ if limit.key in {CALLS, CallLimit.key}:
            text = gettext("make %(limit)s")
        case _:
            text = gettext("use %(limit)s")
    words = text % {"limit": limit_in_words(limit)}
    return f"{words} ({burst})" if (burst := burst_in_words(limit)) else words


def members(team: str) -> QuerySet[Entity]:
    """The clients whose parent is a team."""
    return Entity.objects.using(write_alias()).filter(parent__identifier=team)


def uncounted_members(team: str) -> QuerySet[Entity]:
    """The members of a team whose use does not count for it."""
    return members(team).filter(cascade=False)


def lifting_policies(team: str) -> QuerySet[Policy]:
    """The policy by which the limits of each client do not apply to a team as a whole: it is unlimited itself."""
    return own_defaults(team).filter(effect=PolicyEffect.UNLIMITED)


def own_defaults(team: str) -> QuerySet[Policy]:
    """The policy of a client for each resource, which applies in place of the limits of each client."""
    rows = Policy.objects.using(write_alias()).filter(entity__identifier=team, resource=None, counted=Counted.EACH)
    return rows.filter(valid_from=None, weekly_hours="")


def has_total(team: Entity) -> bool:
    """Whether a client has limits over all resources, which its members are to count for."""
    return Policy.objects.using(write_alias()).filter(entity=team, counted=Counted.TOTAL).exists()


def rule_of(policy: Policy) -> Endpoint | None:
    """The URL rule that a policy was made for, where its limits are changed."""
    is_for_each = policy.entity_id is None and policy.plan_id is None
    if policy.resource is None or not (policy.resource.made_for_rule and is_for_each):
        return None
    if policy.valid_from is not None or policy.weekly_hours:
        return None
    return Endpoint.objects.using(write_alias()).filter(limits_resource=policy.resource.name).first()


def policies_of(rule: Endpoint) -> QuerySet[Policy]:
    """The policy that was made for the limits of a rule."""
    policies = Policy.objects.using(write_alias()).filter(resource__name=rule.limits_resource, entity=None, plan=None)
    return policies.filter(valid_from=None, weekly_hours="")


def is_sentence(row: Endpoint | Policy) -> bool:
    """Whether a sentence says all that a rule limits, or all that a policy says."""
    if isinstance(row, Endpoint):
        is_simple = row.counted_by in COUNTED_BY.values() and not any(getattr(row, name) for name in ADVANCED)
        return bool(row.path and row.limits) and is_simple and ":shared" not in row.limits
    if (row.valid_from and not row.valid_until) or row.weekly_hours:
        return False
    if row.extends and row.valid_from:  # a boost
        return False
    if row.effect != PolicyEffect.LIMITS or row.enforcement == Enforcement.OFF or row.rollout_percent < 100:
        return False
    if row.resource_id is None and row.counted != Counted.TOTAL:
        return False
    try:
        return len({limit_row.noted().shared for limit_row in row.limits.all()}) == 1
    except InvalidLimit:  # written past the validation of the model
        return False


def read(row: Endpoint | Policy) -> SimpleLimit | None:
    """Read a rule or a policy as a sentence; None for one that a sentence cannot express."""
    if not is_sentence(row):
        return None
    if isinstance(row, Policy):
        return _limit_of(row)
    shadow = policies_of(row).filter(enforcement=Enforcement.SHADOW).exists()
    texts = tuple(text if "=" in text else f"{CALLS}={text}" for text in row.limits.split())
    return SimpleLimit(
        What.URL,
        _who_by(row.counted_by),
        texts,
        path=row.path,
        responses=row.responses,
        block_for=row.block_for,
        shadow=shadow,
    )


def _who_by(counted_by: str) -> Who:
    return next(who for who, counted in COUNTED_BY.items() if counted == counted_by)


def _limit_of(row: Policy) -> SimpleLimit:
    limits = [limit_row.noted() for limit_row in row.limits.all()]
    entity = "" if row.entity is None else row.entity.identifier
    resource = "" if row.resource is None else row.resource.name
    is_made = row.resource is not None and row.resource.made_for_rule
    rule = Endpoint.objects.filter(limits_resource=resource).exclude(path="").first() if is_made else None
    who = _who(row, entity, limits)
    if rule is not None and who in COUNTED_BY and rule.counted_by in COUNTED_BY.values():
        who = _who_by(rule.counted_by)
    return SimpleLimit(
        What.URL if rule else What.RESOURCE if resource else What.EVERYTHING,
        who,
        tuple(limit_text(noted.limit) for noted in limits),
        path="" if rule is None else rule.path,
        resource="" if rule else resource,
        entity="" if entity in PATTERNS.values() else entity,
        plan="" if row.plan is None else row.plan.name,
        shadow=row.enforcement == Enforcement.SHADOW,
        until=row.valid_until,
        extends=row.extends,
        counts_members=who != Who.TEAM or not uncounted_members(entity).exists(),
        lifts_each=who == Who.TEAM and row.counted == Counted.TOTAL and lifting_policies(entity).exists(),
    )


def _who(row: Policy, entity: str, limits: Sequence[Noted]) -> Who:
    if row.plan is not None:
        return Who.PLAN
    pattern = next((who for who, pattern in PATTERNS.items() if pattern == entity), None)
    if pattern is not None:
        return pattern
    if entity:
        return Who.TEAM if kind_of(entity) == _TEAM or members(entity).exists() else Who.ENTITY
    return Who.TOGETHER if limits[0].shared else Who.CLIENT
