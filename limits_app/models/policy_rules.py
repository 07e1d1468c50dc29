"""Which policies there can be, as constraints of the database and as advice for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.core.exceptions import ValidationError
from django.db import models, router
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from limits_app.conf import OnUnavailable
from limits_app.models.constraints import NoOverlap, Undated
from limits_app.models.weekly_hours import WeeklyHours

if TYPE_CHECKING:
    from limits_app.models.policy import Policy

__all__ = ["CONSTRAINTS", "Enforcement", "PolicyEffect", "check_hours", "check_neighbours"]


class PolicyEffect(models.TextChoices):
    """What a policy does to those it holds for."""

    LIMITS = "limits", _("limits")
    BLOCKED = "blocked", _("blocked")
    UNLIMITED = "unlimited", _("unlimited")


class Enforcement(models.TextChoices):
    """Whether a policy is obeyed."""

    ENFORCE = "enforce", _("enforce")
    SHADOW = "shadow", _("shadow: count what it would refuse, and refuse nothing")
    OFF = "off", _("off")


CONSTRAINTS: Final[list[models.BaseConstraint]] = [
    # An index over expressions, because in a plain one no NULL equals another.
    models.UniqueConstraint(
        Coalesce("resource", Value(0)),
        Coalesce("entity", Value(0)),
        Coalesce("valid_from", Undated()),
        "weekly_hours",
        name="limits_app_policy_one_per_scope",
        violation_error_message=_("There is a policy for this resource and entity already: change that one."),
    ),
    NoOverlap(
        name="limits_app_policy_no_overlap",
        violation_error_message=_("There is a policy with dates for this resource and entity that overlaps."),
    ),
    models.CheckConstraint(
        name="limits_app_policy_effect",
        condition=Q(effect__in=PolicyEffect.values),
        violation_error_message=_("The effect is one of limits, blocked and unlimited."),
    ),
    models.CheckConstraint(
        name="limits_app_policy_on_unavailable",
        condition=Q(on_unavailable__in=["", *map(str, OnUnavailable)]),
        violation_error_message=_("While the store is down, requests meet block, allow or local."),
    ),
    models.CheckConstraint(
        name="limits_app_policy_extends_with_limits",
        condition=Q(extends=False) | Q(effect=PolicyEffect.LIMITS),
        violation_error_message=_(
            "Only limits can be added to broader ones: a policy that extends has the effect limits."
        ),
    ),
    models.CheckConstraint(
        name="limits_app_policy_enforcement",
        condition=Q(enforcement__in=Enforcement.values, rollout_percent__lte=100),
        violation_error_message=_("A policy is enforced, in the shadow or off, for 0 to 100 percent of the entities."),
    ),
    models.CheckConstraint(
        name="limits_app_policy_dates",
        condition=Q(valid_until__isnull=True) | Q(valid_from__isnull=False, valid_until__gt=F("valid_from")),
        violation_error_message=_("A policy with dates begins before it ends."),
    ),
    models.CheckConstraint(
        name="limits_app_policy_time_zone",
        condition=Q(weekly_hours="") | ~Q(time_zone=""),
        violation_error_message=_("Weekly hours need a time zone."),
    ),
]


def check_hours(policy: Policy) -> None:
    """Refuse weekly hours that cannot be read."""
    if not policy.weekly_hours:
        return
    try:
        WeeklyHours.parse(policy.weekly_hours, policy.time_zone)
    except ValueError as error:
        raise ValidationError({"weekly_hours": str(error)}) from error


def check_neighbours(policy: Policy) -> None:
    """Refuse dates or weekly hours that overlap with those of another policy of the same scope."""
    using = policy._state.db or router.db_for_write(type(policy))
    others = type(policy).objects.using(using).exclude(pk=policy.pk)
    others = others.filter(resource=policy.resource_id, entity=policy.entity_id)
    if policy.valid_from is not None:
        dated = others.filter(
            Q(valid_until__isnull=True) | Q(valid_until__gt=policy.valid_from), valid_from__isnull=False
        )
        if policy.valid_until is not None:
            dated = dated.filter(valid_from__lt=policy.valid_until)
        overlapping = dated.first()
    elif policy.weekly_hours:
        own = WeeklyHours.parse(policy.weekly_hours, policy.time_zone)
        scheduled = others.filter(valid_from=None).exclude(weekly_hours="")
        overlapping = next((other for other in scheduled if _overlaps(own, other)), None)
    else:
        return
    if overlapping is not None:
        raise ValidationError(
            _("It overlaps with the policy that holds %(when)s: of one scope, only one can hold at a time."),
            params={"when": overlapping.when()},
        )


def _overlaps(hours: WeeklyHours, other: Policy) -> bool:
    try:
        return hours.overlaps(WeeklyHours.parse(other.weekly_hours, other.time_zone))
    except ValueError:
        return False  # never in force, so in nobody's way
