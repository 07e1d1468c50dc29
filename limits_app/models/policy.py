"""What holds for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from django.db import models
from django.db.models import F, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from limits_app.models.base import Configuration
from limits_app.models.entity import Entity
from limits_app.models.resource import Resource
from limits_app.models.validators import validate_text

if TYPE_CHECKING:
    from limits_app.core.limits import Limit as LimitDefinition

__all__ = ["Policy", "PolicyEffect", "PolicyScope"]


class PolicyEffect(models.TextChoices):
    """What a policy does to those it holds for."""

    LIMITS = "limits", _("limits")
    BLOCKED = "blocked", _("blocked")
    UNLIMITED = "unlimited", _("unlimited")


class PolicyScope(models.TextChoices):
    """For whom a policy holds; the first of these that has a policy wins as a whole."""

    ENTITY_ON_RESOURCE = "entity_on_resource", _("entity on a resource")
    ENTITY = "entity", _("entity on all resources")
    RESOURCE = "resource", _("resource")
    SYSTEM = "system", _("system")


_NAMES: Final[Mapping[PolicyScope, str]] = {
    PolicyScope.ENTITY_ON_RESOURCE: "entity {entity} on {resource}",
    PolicyScope.ENTITY: "entity {entity}",
    PolicyScope.RESOURCE: "resource {resource}",
    PolicyScope.SYSTEM: "system",
}
"""The same in every language, because logs and outcomes keep them."""


class Policy(Configuration):
    """The limits at one scope, which the resource and the entity say: both, one of them, or none for the system."""

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
        constraints = [
            # An index over expressions, because in a plain one no NULL equals another.
            models.UniqueConstraint(
                Coalesce("resource", Value(0)),
                Coalesce("entity", Value(0)),
                name="limits_app_policy_one_per_scope",
                violation_error_message=_("There is a policy for this resource and entity already: change that one."),
            ),
            models.CheckConstraint(
                name="limits_app_policy_effect",
                condition=models.Q(effect__in=PolicyEffect.values),
                violation_error_message=_("The effect is one of limits, blocked and unlimited."),
            ),
        ]

    def __str__(self) -> str:
        return _NAMES[self.scope].format(resource=self.resource, entity=self.entity)

    @property
    def scope(self) -> PolicyScope:
        """For whom it holds."""
        if self.entity_id is None:
            return PolicyScope.SYSTEM if self.resource_id is None else PolicyScope.RESOURCE
        return PolicyScope.ENTITY if self.resource_id is None else PolicyScope.ENTITY_ON_RESOURCE

    def definitions(self) -> tuple[LimitDefinition, ...]:
        """Its limits as immutable values, in the order of their keys."""
        return tuple(limit.definition() for limit in self.limits.all())
