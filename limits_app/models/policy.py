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
    """For whom a policy holds; the first of these that has a policy wins as a whole."""

    ENTITY_ON_RESOURCE = "entity_on_resource", _("entity on a resource")
    ENTITY = "entity", _("entity on all resources")
    RESOURCE = "resource", _("resource")
    SYSTEM = "system", _("system")


_ON_UNAVAILABLE: Final = (
    (OnUnavailable.BLOCK.value, _("block: nothing passes")),
    (OnUnavailable.ALLOW.value, _("allow: everything passes")),
    (OnUnavailable.LOCAL.value, _("local: each process gives out its share")),
)

_NAMES: Final[Mapping[PolicyScope, str]] = {
    PolicyScope.ENTITY_ON_RESOURCE: "entity {entity} on {resource}",
    PolicyScope.ENTITY: "entity {entity}",
    PolicyScope.RESOURCE: "resource {resource}",
    PolicyScope.SYSTEM: "system",
}
"""The same in every language, because logs and outcomes keep them."""

_HOURS: Final = ("weekly_hours", "time_zone")
_SPAN: Final = ("resource", "entity", "valid_from", "valid_until")


def _date(moment: datetime) -> str:
    return moment.isoformat(" ", "minutes")


class Policy(Configuration):
    """The limits at one scope, which the resource and the entity say: both, one of them, or none for the system.

    A scope has at most one policy that always holds. Others hold at weekly hours, or between dates; while they do,
    one with dates comes first, then one with hours.
    """

    implied = ("scope",)

    resource = models.ForeignKey(
        Resource,
        verbose_name=_("resource"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="policies",
        help_text=_("Leave it empty for all resources."),
    )
    entity = models.ForeignKey(
        Entity,
        verbose_name=_("entity"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="policies",
        help_text=_("Leave it empty for everybody who has no policy of their own."),
    )
    effect = models.CharField(
        _("effect"),
        max_length=16,
        choices=PolicyEffect.choices,
        default=PolicyEffect.LIMITS,
        help_text=_("Blocked refuses everything, unlimited admits everything; neither has limits."),
    )
    extends = models.BooleanField(
        _("extends"),
        default=False,
        help_text=_("Its limits are added to those of the next broader policy, key by key, instead of replacing them."),
    )
    enforcement = models.CharField(
        _("enforcement"),
        max_length=8,
        choices=Enforcement.choices,
        default=Enforcement.ENFORCE,
        help_text=_("Try a policy in the shadow before you enforce it; switched off it is as if it were not there."),
    )
    rollout_percent = models.PositiveSmallIntegerField(
        _("rollout (%)"),
        default=100,
        validators=[MaxValueValidator(100)],
        help_text=_(
            "For how many of the entities, always the same ones; for the others it is as if it were not there."
        ),
    )
    valid_from = models.DateTimeField(
        _("valid from"),
        null=True,
        blank=True,
        help_text=_("With dates it is a boost or a freeze: while it holds, it comes before the policy without dates."),
    )
    valid_until = models.DateTimeField(
        _("valid until"), null=True, blank=True, help_text=_("When it ends; never when left empty.")
    )
    weekly_hours = models.CharField(
        _("weekly hours"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("When it holds, such as “mon-fri 09:00-17:00; sat,sun”; always when left empty."),
    )
    time_zone = models.CharField(
        _("time zone"),
        max_length=64,
        blank=True,
        default="",
        help_text=_("Whose clock the weekly hours go by, such as “Europe/Berlin”; that of the site when left empty."),
    )
    on_unavailable = models.CharField(
        _("when the store is down"),
        max_length=16,
        choices=_ON_UNAVAILABLE,
        blank=True,
        default="",
        help_text=_("What happens while nobody can count; empty means what the settings of the site say."),
    )
    reason = models.TextField(
        _("reason"),
        blank=True,
        validators=[validate_text],
        help_text=_("Why it is so, for other administrators and for the audit log."),
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
        """Fill in what dates and hours imply, and refuse invalid or overlapping ones."""
        if self.valid_until is not None and self.valid_from is None:
            check_beginning(self)
            self.valid_from = timezone.now()
        super().clean()
        check_neighbours(self)

    def clean_alone(self) -> None:
        """Fill in the time zone of weekly hours, and refuse fields that do not go together."""
        if self.weekly_hours and not self.time_zone:
            self.time_zone = timezone.get_default_timezone_name()
        check_fields(self)

    @classmethod
    def check_written(cls, written: Written, using: str) -> None:
        """Refuse invalid limits and hours, and dates that overlap with those of another policy of the scope."""
        for before, now in written.values():
            check_limits(before, now)
            if any(before.get(name) != now[name] for name in _HOURS):
                check_written_hours(*[now[name] for name in _HOURS])
        moved = [key for key, (before, now) in written.items() if any(before.get(name) != now[name] for name in _SPAN)]
        check_spans([key for key in moved if written[key][1]["valid_from"]], using)

    @property
    def scope(self) -> PolicyScope:
        """For whom it holds."""
        return scope_by_keys(self.resource_id, self.entity_id)

    def when(self, written: Callable[[datetime], str] = _date) -> str:
        """Say when it holds, with dates as ISO 8601 has them, or as they are to be written."""
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
    """For whom a policy holds that is about this resource and this entity, by their primary keys."""
    if entity_id is None:
        return PolicyScope.SYSTEM if resource_id is None else PolicyScope.RESOURCE
    return PolicyScope.ENTITY if resource_id is None else PolicyScope.ENTITY_ON_RESOURCE
