"""Policies: the limits of a scope."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.conf import OnUnavailable
from limits_app.models.base import Configuration, Written
from limits_app.models.changes import Touched
from limits_app.models.entity import Entity
from limits_app.models.patterns import is_pattern, patterns_in
from limits_app.models.plan import Plan
from limits_app.models.policy_rules import (
    CONSTRAINTS,
    Counted,
    Enforcement,
    PolicyEffect,
    check_beginning,
    check_fields,
    check_limits,
    check_neighbours,
    check_spans,
    has,
)
from limits_app.models.resource import Resource
from limits_app.models.snapshots import Snapshot
from limits_app.models.validators import validate_hours, validate_text, validate_zone

if TYPE_CHECKING:
    from limits_app.engine.limits import LimitDefinition


class PolicyScope(models.TextChoices):
    """The level of a policy; the first level with a policy applies as a whole, and totals apply in addition.

    Of the totals of an entity, its plan and patterns the first one applies; that of the system always applies.
    """

    ENTITY_ON_RESOURCE = "entity_on_resource", _("entity on a resource")
    ENTITY = "entity", _("entity on all resources")
    PLAN_ON_RESOURCE = "plan_on_resource", _("plan on a resource")
    PLAN = "plan", _("plan on all resources")
    PATTERN_ON_RESOURCE = "pattern_on_resource", _("pattern on a resource")
    PATTERN = "pattern", _("pattern on all resources")
    RESOURCE = "resource", _("resource")
    SYSTEM = "system", _("system")
    ENTITY_TOTAL = "entity_total", _("total of an entity")
    PLAN_TOTAL = "plan_total", _("total of a plan")
    PATTERN_TOTAL = "pattern_total", _("total of a pattern")
    SYSTEM_TOTAL = "system_total", _("total of the system")


TOTALS: Final = tuple(scope for scope in PolicyScope if scope.endswith("_total"))
"""The levels of policies that count all resources together."""


_ON_UNAVAILABLE: Final = (
    (OnUnavailable.BLOCK.value, _("block: reject all requests (fail closed)")),
    (OnUnavailable.ALLOW.value, _("allow: allow all requests (fail open)")),
    (OnUnavailable.LOCAL.value, _("local: each process allows its share")),
)

_SPAN: Final = ("resource", "entity", "plan", "counted", "valid_from", "valid_until")


def _iso_date(time: datetime) -> str:
    return time.isoformat(" ", "minutes")


class Policy(Configuration):
    """The limits of one scope: of an entity, a plan or everyone, on one resource, on each resource or over all of them.

    A scope has at most one permanent policy. Policies with dates or weekly hours override it while they are in force;
    dates take precedence over hours.
    """

    implied = ("scope",)
    always_validated = ("weekly_hours", "time_zone")

    resource = models.ForeignKey(
        Resource,
        verbose_name=_("resource"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="policies",
        help_text=_("What is limited, such as an API or a model. Leave empty for all resources."),
    )
    entity = models.ForeignKey(
        Entity,
        verbose_name=_("client"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="policies",
        help_text=_("Who is limited. Leave empty for every user, key or IP address without a more specific policy."),
    )
    plan = models.ForeignKey(
        Plan,
        verbose_name=_("plan"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="policies",
        help_text=_("Applies to the clients on this plan, each with its own counters; not together with a client."),
    )
    counted = models.CharField(
        _("usage is counted"),
        max_length=8,
        choices=Counted.choices,
        default=Counted.EACH,
        help_text=_(
            "For a policy without a resource. Separately: the default for each resource. Together: one total, in "
            "addition to the limits of each resource."
        ),
    )
    effect = models.CharField(
        _("effect"),
        max_length=16,
        choices=PolicyEffect.choices,
        default=PolicyEffect.LIMITS,
        help_text=_(
            "Blocked rejects all requests, unlimited allows all; neither has limits. Unlimited over all resources is "
            "an exemption: web requests are not charged at all, also not for limits that the client has on a resource, "
            "limits that all clients share, totals and members of pools."
        ),
    )
    extends = models.BooleanField(
        _("keep broader limits too"),
        default=False,
        help_text=_(
            "Add these limits to those of the next broader policy, such as that of the plan, the resource or the "
            "system; these replace limits of the same unit. Otherwise these replace all of them."
        ),
    )
    enforcement = models.CharField(
        _("enforcement"),
        max_length=8,
        choices=Enforcement.choices,
        default=Enforcement.ENFORCE,
        help_text=_("Shadow: evaluate and report, but never reject. Off: ignore the policy."),
    )
    rollout_percent = models.PositiveSmallIntegerField(
        _("rollout (%)"),
        default=100,
        validators=[MaxValueValidator(100)],
        help_text=_("Percentage of clients that the policy applies to; always the same ones."),
    )
    valid_from = models.DateTimeField(
        _("valid from"),
        null=True,
        blank=True,
        help_text=_("Leave empty, except for a temporary policy, which takes precedence over the permanent one."),
    )
    valid_until = models.DateTimeField(_("valid until"), null=True, blank=True, help_text=_("Leave empty for no end."))
    weekly_hours = models.CharField(
        _("weekly hours"),
        max_length=255,
        blank=True,
        default="",
        validators=[validate_hours],
        help_text=_("When the policy applies, such as “mon-fri 09:00-17:00; sat,sun”; leave empty for always."),
    )
    time_zone = models.CharField(
        _("time zone"),
        max_length=64,
        blank=True,
        default="",
        validators=[validate_zone],
        help_text=_(
            "Time zone of the weekly hours, such as “Europe/Berlin”; leave empty for the time zone of the site."
        ),
    )
    on_unavailable = models.CharField(
        _("if the store is unavailable"),
        max_length=16,
        choices=_ON_UNAVAILABLE,
        blank=True,
        default="",
        help_text=_(
            "The store has the counters, for example in Redis. Leave empty for the default of the site, "
            "LIMITS['ON_UNAVAILABLE']."
        ),
    )
    slice_seconds = models.PositiveSmallIntegerField(
        _("count in each process for (seconds)"),
        blank=True,
        default=0,
        validators=[MaxValueValidator(60)],
        help_text=_(
            "For very busy limits: each process takes some of the capacity in advance, spends it for up to this time "
            "without calling the store, and returns the rest. 0: off. Only for token buckets, GCRA and quotas on "
            "Redis or a database."
        ),
    )
    reason = models.TextField(
        _("reason"),
        blank=True,
        validators=[validate_text],
        help_text=_("The reason, for other administrators and the audit log."),
    )
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated at"), auto_now=True)

    class Meta(Configuration.Meta):
        verbose_name = _("policy")
        verbose_name_plural = _("policies")
        ordering = [
            F("resource__name").asc(nulls_first=True),
            F("entity__identifier").asc(nulls_first=True),
            F("plan__name").asc(nulls_first=True),
        ]
        permissions = [("boost_policy", "Can grant boosts")]
        indexes = [models.Index(fields=["valid_until"], name="limits_app_policy_until")]
        constraints = CONSTRAINTS

    def __str__(self) -> str:
        if self.shown_as:
            return self.shown_as
        # Not translated, because it is stored in logs and outcomes.
        subject = self.scope.partition("_")[0]
        whose = {"plan": self.plan, "resource": self.resource, "system": ""}.get(subject, self.entity)
        of_resource = f"on {self.resource}" if self.scope.endswith("_on_resource") else ""
        return " ".join(filter(None, [subject, str(whose), of_resource, "in total" if self.scope in TOTALS else ""]))

    def clean(self) -> None:
        """Fill in implied dates and time zones, and reject invalid or overlapping ones."""
        if self.valid_until is not None and self.valid_from is None:
            check_beginning(self)
            self.valid_from = timezone.now()
        super().clean()
        check_neighbours(self)
        is_permanent = self.valid_from is None and not self.weekly_hours
        is_for_each = self.entity is None and self.plan is None
        if is_permanent and is_for_each and self.resource is not None and self.resource.made_for_rule:
            raise ValidationError(_("The limits of this resource are those of its URL rule: change them there."))

    def clean_alone(self) -> None:
        """Fill in the time zone of weekly hours and an empty number, and reject inconsistent fields."""
        self.slice_seconds = self.slice_seconds or 0
        if self.weekly_hours and not self.time_zone:
            self.time_zone = timezone.get_default_timezone_name()
        check_fields(self)

    @classmethod
    def check_written(cls, written: Written, using: str) -> None:
        """Reject invalid limits and hours, and dates that overlap with those of another policy of the scope."""
        super().check_written(written, using)
        for before, now in written.values():
            check_limits(before, now)
        moved = [key for key, (before, now) in written.items() if any(before.get(name) != now[name] for name in _SPAN)]
        check_spans([key for key in moved if written[key][1]["valid_from"]], using)

    @classmethod
    def touched_by(cls, key: Any, before: Snapshot, now: Snapshot) -> Touched:
        """The entity that it is for; one of another level concerns many clients."""
        identifiers = [state["entity"] for state in (before, now) if state]
        if any(identifier is None or is_pattern(identifier) for identifier in identifiers):
            return Touched.anything()
        touched = Touched.of(identifiers)
        touched.is_access = any(state["effect"] != PolicyEffect.LIMITS for state in (before, now) if state)
        return touched

    @property
    def scope(self) -> PolicyScope:
        """The level of the policy."""
        return scope_by_names(
            None if self.entity is None else self.entity.identifier,
            has_plan=self.plan_id is not None,
            has_resource=self.resource_id is not None,
            counted=self.counted,
        )

    @property
    def is_for_all_entities(self) -> bool:
        """Whether it is for all entities, as far as no more specific policy replaces it."""
        return not has(self, "entity") and not has(self, "plan")

    def when(self, shown: Callable[[datetime], str] = _iso_date) -> str:
        """Describe when it applies, with dates as `shown` returns them; in ISO 8601 by default."""
        words = []
        if self.valid_from is not None:
            until = "" if self.valid_until is None else gettext("until %(date)s") % {"date": shown(self.valid_until)}
            words = [gettext("from %(date)s") % {"date": shown(self.valid_from)}, until]
        if self.weekly_hours:
            words += [self.weekly_hours, self.time_zone]
        return " ".join(filter(None, words)) or gettext("always")

    def definitions(self) -> tuple[LimitDefinition, ...]:
        """Its limits as immutable values, in the order of their keys."""
        return tuple(limit.definition() for limit in self.limits.all())


def scope_by_names(identifier: str | None, *, has_plan: bool, has_resource: bool, counted: str) -> PolicyScope:
    """The level of a policy for an entity with an identifier or for a plan, on one resource or on all."""
    if identifier is not None:
        subject = "pattern" if is_pattern(identifier) else "entity"
    elif has_plan:
        subject = "plan"
    else:
        return PolicyScope.RESOURCE if has_resource else PolicyScope(_on_all("system", counted))
    return PolicyScope(f"{subject}_on_resource" if has_resource else _on_all(subject, counted))


def in_scope(scope: str) -> Q:
    """The filter for policies of a level."""
    of_resource, is_total = scope.endswith("resource"), scope in TOTALS
    subject = scope.removesuffix("_on_resource").removesuffix("_total")
    of_subject = {
        "entity": Q(entity__isnull=False) & ~patterns_in("entity__identifier"),
        "pattern": patterns_in("entity__identifier"),
        "plan": Q(plan__isnull=False),
    }.get(subject, Q(entity=None, plan=None))
    return of_subject & Q(resource__isnull=not of_resource, counted=Counted.TOTAL if is_total else Counted.EACH)


def _on_all(subject: str, counted: str) -> str:
    return f"{subject}_total" if counted == Counted.TOTAL else subject
