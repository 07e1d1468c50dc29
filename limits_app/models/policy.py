"""Policies: the limits of a scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.conf import OnUnavailable
from limits_app.models.base import Configuration, Written
from limits_app.models.entity import Entity
from limits_app.models.policy_rules import (
    CONSTRAINTS,
    Enforcement,
    PolicyEffect,
    check_beginning,
    check_fields,
    check_limits,
    check_neighbours,
    check_spans,
    check_written_hours,
)
from limits_app.models.resource import Resource
from limits_app.models.validators import validate_text

if TYPE_CHECKING:
    from limits_app.core.limits import Limit as LimitDefinition

__all__ = ["Policy", "PolicyScope", "scope_by_keys"]


class PolicyScope(models.TextChoices):
    """The level of a policy; the first level with a policy applies as a whole."""

    ENTITY_ON_RESOURCE = "entity_on_resource", _("entity on a resource")
    ENTITY = "entity", _("entity on all resources")
    RESOURCE = "resource", _("resource")
    SYSTEM = "system", _("system")


_ON_UNAVAILABLE: Final = (
    (OnUnavailable.BLOCK.value, _("block: reject all requests (fail closed)")),
    (OnUnavailable.ALLOW.value, _("allow: allow all requests (fail open)")),
    (OnUnavailable.LOCAL.value, _("local: each process allows its share")),
)

_NAMES: Final[Mapping[PolicyScope, str]] = {
    PolicyScope.ENTITY_ON_RESOURCE: "entity {entity} on {resource}",
    PolicyScope.ENTITY: "entity {entity}",
    PolicyScope.RESOURCE: "resource {resource}",
    PolicyScope.SYSTEM: "system",
}
"""Not translated, because they are stored in logs and outcomes."""

_HOURS: Final = ("weekly_hours", "time_zone")
_SPAN: Final = ("resource", "entity", "valid_from", "valid_until")


def _date(moment: datetime) -> str:
    return moment.isoformat(" ", "minutes")


class Policy(Configuration):
    """The limits of one scope: of a resource and an entity, of one of them, or of the system.

    A scope has at most one permanent policy. Policies with dates or weekly hours override it while they are in force;
    dates take precedence over hours.
    """

    implied = ("scope",)

    resource = models.ForeignKey(
        Resource,
        verbose_name=_("resource"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="policies",
        help_text=_("Leave empty to apply to each resource separately."),
    )
    entity = models.ForeignKey(
        Entity,
        verbose_name=_("entity"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="policies",
        help_text=_("Leave empty to apply to every user, key or IP address without a more specific policy."),
    )
    effect = models.CharField(
        _("effect"),
        max_length=16,
        choices=PolicyEffect.choices,
        default=PolicyEffect.LIMITS,
        help_text=_("Blocked rejects all requests, unlimited allows all; neither has limits."),
    )
    extends = models.BooleanField(
        _("extends"),
        default=False,
        help_text=_("Add its limits to those of the next broader policy, by key, instead of replacing them."),
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
        help_text=_("Percentage of entities that the policy applies to; always the same ones."),
    )
    valid_from = models.DateTimeField(
        _("valid from"),
        null=True,
        blank=True,
        help_text=_("Temporary override: takes precedence over the regular policy between these dates."),
    )
    valid_until = models.DateTimeField(
        _("valid until"), null=True, blank=True, help_text=_("End of the override; leave empty for no end.")
    )
    weekly_hours = models.CharField(
        _("weekly hours"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("When the policy applies, such as “mon-fri 09:00-17:00; sat,sun”; leave empty for always."),
    )
    time_zone = models.CharField(
        _("time zone"),
        max_length=64,
        blank=True,
        default="",
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
        help_text=_("What to do while the store is unavailable; leave empty for LIMITS['ON_UNAVAILABLE']."),
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
        ordering = [F("resource__name").asc(nulls_first=True), F("entity__identifier").asc(nulls_first=True)]
        permissions = [("boost_policy", "Can grant boosts")]
        indexes = [models.Index(fields=["valid_until"], name="limits_app_policy_until")]
        constraints = CONSTRAINTS

    def __str__(self) -> str:
        return _NAMES[self.scope].format(resource=self.resource, entity=self.entity)

    def clean(self) -> None:
        """Fill in implied dates and time zones, and reject invalid or overlapping ones."""
        if self.valid_until is not None and self.valid_from is None:
            check_beginning(self)
            self.valid_from = timezone.now()
        super().clean()
        check_neighbours(self)

    def clean_alone(self) -> None:
        """Fill in the time zone of weekly hours, and reject inconsistent fields."""
        if self.weekly_hours and not self.time_zone:
            self.time_zone = timezone.get_default_timezone_name()
        check_fields(self)

    @classmethod
    def check_written(cls, written: Written, using: str) -> None:
        """Reject invalid limits and hours, and dates that overlap with those of another policy of the scope."""
        for before, now in written.values():
            check_limits(before, now)
            if any(before.get(name) != now[name] for name in _HOURS):
                check_written_hours(*[now[name] for name in _HOURS])
        moved = [key for key, (before, now) in written.items() if any(before.get(name) != now[name] for name in _SPAN)]
        check_spans([key for key in moved if written[key][1]["valid_from"]], using)

    @property
    def scope(self) -> PolicyScope:
        """The level of the policy."""
        return scope_by_keys(self.resource_id, self.entity_id)

    def when(self, written: Callable[[datetime], str] = _date) -> str:
        """Describe when it applies, with dates in ISO 8601 or formatted by `write`."""
        words = []
        if self.valid_from is not None:
            until = "" if self.valid_until is None else gettext("until %(date)s") % {"date": written(self.valid_until)}
            words = [gettext("from %(date)s") % {"date": written(self.valid_from)}, until]
        if self.weekly_hours:
            words += [self.weekly_hours, self.time_zone]
        return " ".join(filter(None, words)) or gettext("always")

    def definitions(self) -> tuple[LimitDefinition, ...]:
        """Its limits as immutable values, in the order of their keys."""
        return tuple(limit.definition() for limit in self.limits.all())


def scope_by_keys(resource_id: int | None, entity_id: int | None) -> PolicyScope:
    """The level of a policy with these primary keys of a resource and an entity."""
    if entity_id is None:
        return PolicyScope.SYSTEM if resource_id is None else PolicyScope.RESOURCE
    return PolicyScope.ENTITY if resource_id is None else PolicyScope.ENTITY_ON_RESOURCE
