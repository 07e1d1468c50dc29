"""Limits as one sentence: what is limited, who is counted, how much, and what happens to requests beyond it.

A `SimpleLimit` is for people who do not know the tables of the app. It stands for a URL rule with limits, or for a
policy of a resource or of all resources together; `save` makes or changes these rows, and `read` reads them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import audit
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.engine.notation import CALLS, Noted, limit_text, parse_limit
from limits_app.models import Counted, CountedBy, Endpoint, Enforcement, Policy, PolicyEffect, write_alias
from limits_app.services import definitions
from limits_app.services.limit_words import limit_in_words


class What(models.TextChoices):
    """What is limited."""

    URL = "url", _("a URL")
    RESOURCE = "resource", _("a resource")
    EVERYTHING = "everything", _("all resources together")


class Who(models.TextChoices):
    """Who has a count."""

    CLIENT = "client", _("each client: user, API key or IP address")
    USER = "user", _("each user")
    ADDRESS = "address", _("each IP address")
    KEY = "key", _("each API key")
    ENTITY = "entity", _("one user, key, tenant or IP address")
    PLAN = "plan", _("each member of a plan")
    TOGETHER = "together", _("everyone together")


_COUNTED_BY: Final = {
    Who.CLIENT: CountedBy.ENTITY,
    Who.USER: CountedBy.USER,
    Who.ADDRESS: CountedBy.IP,
    Who.KEY: CountedBy.API_KEY,
    Who.TOGETHER: CountedBy.EVERYONE,
}
_PATTERNS: Final = {Who.USER: "user:*", Who.ADDRESS: "ip:*", Who.KEY: "key:*"}
_SUBJECTS: Final = {
    Who.CLIENT: _("Each client may"),
    Who.USER: _("Each user may"),
    Who.ADDRESS: _("Each IP address may"),
    Who.KEY: _("Each API key may"),
    Who.TOGETHER: _("Everyone together may"),
}


@dataclass(frozen=True, slots=True)
class SimpleAmount:
    """One limit: for example 100 `requests` per 1 `min`; without a `period` it is the number at the same time."""

    number: str
    unit: str = "requests"
    periods: int = 1
    period: str = "min"

    @property
    def text(self) -> str:
        """The limit as text; requests are counted in a sliding window, which never allows more in one period."""
        key = CALLS if self.unit in {"requests", CALLS, CallLimit.key} else self.unit.strip().replace(" ", "_")
        if not self.period:
            return f"{key}={self.number}:permits"
        every = self.period if self.periods == 1 else f"{self.periods}{self.period}"
        window = ":sliding_window" if key == CALLS and self.period != "month" else ""
        return f"{key}={self.number}/{every}{window}"


@dataclass(frozen=True, slots=True)
class SimpleLimit:
    """The sentence. `limits` are texts such as `calls=100/min`; `path`, `resource`, `entity` and `plan` are names."""

    what: What
    who: Who
    limits: tuple[str, ...]
    path: str = ""
    resource: str = ""
    entity: str = ""
    plan: str = ""
    shadow: bool = False


def sentence(limit: SimpleLimit) -> str:
    """Read a limit back, such as “Each user may make 100 requests per minute on /api/search/.”."""
    if limit.who in _SUBJECTS:
        subject = str(_SUBJECTS[limit.who])
    else:
        whose = limit.entity if limit.who == Who.ENTITY else gettext("Each member of the plan %s") % limit.plan
        subject = gettext("%s may") % whose
    where = {What.URL: limit.path, What.RESOURCE: limit.resource}.get(limit.what)
    place = gettext("on %s") % where if where else gettext("over all resources together")
    parts = gettext(" and ").join(map(_in_words, map(parse_limit, limit.limits)))
    after = gettext("Requests beyond that are reported and not rejected.") if limit.shadow else ""
    return f"{subject} {parts} {place}. {after}".strip()


def save(
    limit: SimpleLimit, instance: Endpoint | Policy | None = None, *, actor: str, reason: str
) -> Endpoint | Policy:
    """Make the rows of a limit, or change those of `instance`, in one transaction with their audit events.

    Raises InvalidDefinition with everything that is wrong, by the names of the fields of a rule or a policy, and
    ValidationError where the limits of the scope exist already; then nothing has changed.
    """
    acting = partial(audit.acting, actor=actor, source="admin", reason=reason)
    with transaction.atomic(write_alias()):
        with acting():
            existing = conflict(limit)
            if existing is not None and existing != instance:
                raise ValidationError(
                    gettext("Limits for this URL or resource and this client type already exist. Edit them instead.")
                )
            model = Endpoint if limit.what == What.URL else Policy
            if instance is not None and type(instance) is not model:
                instance.delete()
                instance = None
            if model is Endpoint:
                fields = _rule_fields(limit, is_new=instance is None)
            else:
                fields = _policy_fields(limit, reason or getattr(instance, "reason", ""))
            new, find = instance is None, definitions.find_or_new
            definition = definitions.read(instance or model(), fields, partial=not new, find=find)
            definitions.save(definition)
            row: Endpoint | Policy = definition.row
        if isinstance(row, Endpoint):
            row.refresh_from_db()  # its policy was made at the end of the block
            with acting():
                _policies_of(row).update(enforcement=_enforcement(limit))
    return row


def entity_of(limit: SimpleLimit) -> str:
    """The identifier or pattern of the entity that a limit is for, whose row `save` makes; empty without one."""
    if limit.what == What.URL:
        return ""
    return _PATTERNS.get(limit.who) or (limit.entity if limit.who == Who.ENTITY else "")


def conflict(limit: SimpleLimit) -> Endpoint | Policy | None:
    """The rule or policy that exists for the same URL and count, or for the same scope."""
    if limit.what == What.URL:
        rules = Endpoint.objects.using(write_alias()).filter(path=limit.path, counted_by=_COUNTED_BY[limit.who])
        return rules.exclude(limits="").first()
    scope = _scope(limit)
    names = {"resource__name": scope["resource"], "entity__identifier": scope["entity"], "plan__name": scope["plan"]}
    permanent = Policy.objects.using(write_alias()).filter(valid_from=None, weekly_hours="", counted=scope["counted"])
    return permanent.filter(**names).first()


def read(row: Endpoint | Policy) -> SimpleLimit | None:
    """Read a rule or a policy as a sentence; None for one that a sentence cannot express."""
    if isinstance(row, Endpoint):
        who = next((who for who, counted in _COUNTED_BY.items() if counted == row.counted_by), None)
        if not (row.path and row.limits) or who is None or ":shared" in row.limits:
            return None
        shadow = _policies_of(row).filter(enforcement=Enforcement.SHADOW).exists()
        texts = tuple(text if "=" in text else f"{CALLS}={text}" for text in row.limits.split())
        return SimpleLimit(What.URL, who, texts, path=row.path, shadow=shadow)
    if row.valid_from or row.weekly_hours or row.extends or row.effect != PolicyEffect.LIMITS:
        return None
    if row.enforcement == Enforcement.OFF or row.rollout_percent < 100:
        return None
    if row.resource is None and row.counted != Counted.TOTAL:
        return None
    what = What.EVERYTHING if row.resource is None else What.RESOURCE
    try:
        limits = [limit_row.noted() for limit_row in row.limits.all()]
    except InvalidLimit:  # written past the validation of the model
        return None
    if len({noted.shared for noted in limits}) != 1:
        return None
    entity = "" if row.entity is None else row.entity.identifier
    return SimpleLimit(
        what,
        _who(row, entity, limits),
        tuple(limit_text(noted.limit) for noted in limits),
        resource="" if row.resource is None else row.resource.name,
        entity="" if entity in _PATTERNS.values() else entity,
        plan="" if row.plan is None else row.plan.name,
        shadow=row.enforcement == Enforcement.SHADOW,
    )


def _who(row: Policy, entity: str, limits: Sequence[Noted]) -> Who:
    if row.plan is not None:
        return Who.PLAN
    pattern = next((who for who, pattern in _PATTERNS.items() if pattern == entity), None)
    if pattern is not None:
        return pattern
    if entity:
        return Who.ENTITY
    return Who.TOGETHER if limits[0].shared else Who.CLIENT


def _rule_fields(limit: SimpleLimit, *, is_new: bool) -> dict[str, Any]:
    fields = {"path": limit.path, "limits": " ".join(limit.limits), "counted_by": _COUNTED_BY[limit.who]}
    return fields | ({"name": limit.path[:100]} if is_new else {})


def _enforcement(limit: SimpleLimit) -> Enforcement:
    return Enforcement.SHADOW if limit.shadow else Enforcement.ENFORCE


def _policies_of(rule: Endpoint) -> QuerySet[Policy]:
    """The policy that was made for the limits of a rule."""
    return Policy.objects.using(write_alias()).filter(resource__name=rule.limits_resource, entity=None, plan=None)


def _policy_fields(limit: SimpleLimit, reason: str) -> dict[str, Any]:
    shared = ":shared" if limit.who == Who.TOGETHER else ""
    limits = [text + shared for text in limit.limits]
    return _scope(limit) | {"limits": limits, "enforcement": _enforcement(limit), "reason": reason}


def _scope(limit: SimpleLimit) -> dict[str, Any]:
    """The fields of a policy that say what it is for."""
    return {
        "resource": limit.resource if limit.what == What.RESOURCE else None,
        "entity": entity_of(limit) or None,
        "plan": limit.plan if limit.who == Who.PLAN else None,
        "counted": Counted.TOTAL if limit.what == What.EVERYTHING else Counted.EACH,
    }


def _in_words(noted: Noted) -> str:
    """For example “make 100 requests per minute” or “use 1,000,000 tokens per day”."""
    limit = noted.limit
    match limit:
        case ResourceLimit():
            text = gettext("hold %(limit)s")
        case CallLimit():
            text = gettext("make %(limit)s")
        case _:
            text = gettext("use %(limit)s")
    return text % {"limit": limit_in_words(limit)}
