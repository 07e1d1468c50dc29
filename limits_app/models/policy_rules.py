"""Rules of policies, as database constraints and validation errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, router
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.conf import OnUnavailable
from limits_app.models.constraints import UniqueNumbers
from limits_app.models.fields import aware, in_site_time
from limits_app.models.limit_rules import check_definitions
from limits_app.models.snapshots import Snapshot, batches
from limits_app.models.weekly_hours import WeeklyHours

if TYPE_CHECKING:
    from limits_app.models.policy import Policy


class PolicyEffect(models.TextChoices):
    """The effect of a policy."""

    LIMITS = "limits", _("limits")
    BLOCKED = "blocked", _("blocked")
    UNLIMITED = "unlimited", _("unlimited")


def has_ended(valid_until: datetime | None, now: datetime) -> bool:
    """Whether a policy that is valid until then applies no more; a datetime that is aware, or naive like `now`."""
    return valid_until is not None and valid_until <= now


def not_ended(now: datetime, path: str = "") -> Q:
    """The filter for policies that apply now or later: those of which `has_ended` is False.

    `path` is the prefix of their fields, such as `policies__`.
    """
    return Q(**{f"{path}valid_until": None}) | Q(**{f"{path}valid_until__gt": in_site_time(now)})


class Enforcement(models.TextChoices):
    """Whether a policy is enforced."""

    ENFORCE = "enforce", _("enforce")
    SHADOW = "shadow", _("shadow: report what it would reject, without rejecting")
    OFF = "off", _("off")


class Counted(models.TextChoices):
    """Whether a policy for all resources counts each of them, or all together."""

    EACH = "each", _("for each resource separately")
    TOTAL = "total", _("over all resources together")


_ENTITY_AND_PLAN: Final = _("A policy is for an entity or for a plan, not for both: leave one of them empty.")
_NOT_A_TOTAL: Final = _(
    "A total is over all resources, and applies in addition to other policies: leave the resource empty, uncheck "
    "“extends”, and choose the effect “limits” or “blocked”."
)
_EXTENDS_WITHOUT_LIMITS: Final = _("A policy that extends a broader one must have the effect “limits”.")
_ENDS_FIRST: Final = _("The start must be before the end.")

_SCOPE: Final = ("resource_id", "entity_id", "plan_id", "counted")
"""The columns that policies of one scope have in common."""
_SCHEDULE: Final = ("valid_from", "valid_until", "weekly_hours", "time_zone")
"""The columns of a schedule."""

CONSTRAINTS: Final[list[models.BaseConstraint]] = [
    # An index over expressions, because NULLs are distinct in a plain one; so is the last one of policies with dates,
    # which `check_spans` compares.
    UniqueNumbers(
        Coalesce("resource", Value(0)),
        Coalesce("entity", Value(0)),
        Coalesce("plan", Value(0)),
        "counted",
        "weekly_hours",
        Case(When(valid_from=None, then=Value(0)), output_field=models.IntegerField()),
        name="limits_app_policy_one_per_scope",
        violation_error_message=_("A policy for this resource and entity or plan already exists."),
    ),
    models.CheckConstraint(
        name="limits_app_policy_values",
        condition=Q(
            effect__in=PolicyEffect.values,
            on_unavailable__in=["", *map(str, OnUnavailable)],
            enforcement__in=Enforcement.values,
            rollout_percent__lte=100,
            slice_seconds__lte=60,
        ),
    ),
    # Validation has an error for each of these.
    models.CheckConstraint(
        name="limits_app_policy_fields",
        condition=(Q(entity=None) | Q(plan=None))
        & (Q(extends=False) | Q(effect=PolicyEffect.LIMITS))
        & (Q(valid_until=None) | Q(valid_from__isnull=False, valid_until__gt=F("valid_from")))
        & (Q(weekly_hours="") | ~Q(time_zone=""))
        & (
            Q(counted=Counted.EACH)
            | Q(counted=Counted.TOTAL, resource=None, extends=False) & ~Q(effect=PolicyEffect.UNLIMITED)
        ),
    ),
]


def check_beginning(policy: Policy) -> None:
    """Reject an end without a start for a permanent policy, which would stop applying without a replacement."""
    using = policy._state.db or router.db_for_write(type(policy))
    if type(policy).objects.using(using).filter(pk=policy.pk, valid_from=None).exists():
        raise ValidationError(
            {"valid_until": _("This policy is permanent: also enter a start, or add a separate policy with dates.")}
        )


def weakened(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Say that a policy in force would be enforced no longer, or for fewer entities; empty where it would not.

    Both have the `enforcement` and the `rollout_percent` of the policy.
    """
    share = before["rollout_percent"]
    if before["enforcement"] != Enforcement.ENFORCE or not share:
        return ""
    if after["enforcement"] != Enforcement.ENFORCE:
        return gettext("Saving stops enforcing this policy.")
    if after["rollout_percent"] >= share:
        return ""
    words = gettext("Saving reduces the rollout from %(before)s %% to %(after)s %% of entities.")
    return words % {"before": share, "after": after["rollout_percent"]}


def check_fields(policy: Policy) -> None:
    """Raise ValidationError for inconsistent fields."""
    if policy.extends and policy.effect != PolicyEffect.LIMITS:
        raise ValidationError({"extends": _EXTENDS_WITHOUT_LIMITS})
    if has(policy, "entity") and has(policy, "plan"):
        raise ValidationError({"plan": _ENTITY_AND_PLAN})
    is_each = has(policy, "resource") or policy.extends or policy.effect == PolicyEffect.UNLIMITED
    if policy.counted == Counted.TOTAL and is_each:
        raise ValidationError({"counted": _NOT_A_TOTAL})
    start, end = policy.valid_from, policy.valid_until
    if isinstance(start, datetime) and isinstance(end, datetime) and in_site_time(end) <= in_site_time(start):
        raise ValidationError({"valid_until": _ENDS_FIRST})


class PolicySchedule(NamedTuple):
    """When a policy is in force: between dates, in weekly hours, or always."""

    valid_from: datetime | None
    valid_until: datetime | None
    hours: WeeklyHours | None

    @classmethod
    def of(cls, valid_from: datetime | None, valid_until: datetime | None, hours: str, zone: str) -> PolicySchedule:
        """Return the schedule from the columns of a policy; dates without a time zone are in that of the site."""
        valid_from, valid_until = [date and aware(date) for date in (valid_from, valid_until)]
        return cls(valid_from, valid_until, WeeklyHours.stored(hours, zone) if hours else None)

    def overlaps(self, other: PolicySchedule) -> bool:
        """Whether two policies of one scope would be in force at the same time, and neither precedes the other.

        One with dates precedes one with weekly hours, which precedes the one that is always in force.
        """
        if self.valid_from is not None and other.valid_from is not None:
            begins_before_end = other.valid_until is None or self.valid_from < other.valid_until
            return begins_before_end and (self.valid_until is None or other.valid_from < self.valid_until)
        if self.valid_from is not None or other.valid_from is not None or self.hours is None or other.hours is None:
            return False
        return self.hours.overlaps(other.hours)


def check_neighbours(policy: Policy) -> None:
    """Reject dates or weekly hours that overlap with those of another policy of the same scope."""
    if any(is_unsaved(policy, name) for name in ("resource", "entity", "plan")):
        return  # an unsaved scope has no other policies
    own = PolicySchedule.of(*[getattr(policy, name) for name in _SCHEDULE])
    if own.valid_from is None and own.hours is None:
        return
    using = policy._state.db or router.db_for_write(type(policy))
    others = type(policy).objects.using(using).exclude(pk=policy.pk).exclude(valid_from=None, weekly_hours="")
    others = others.filter(
        resource=policy.resource_id, entity=policy.entity_id, plan=policy.plan_id, counted=policy.counted
    )
    for other in others.only(*_SCHEDULE):
        if own.overlaps(PolicySchedule.of(*[getattr(other, name) for name in _SCHEDULE])):
            raise ValidationError(
                _("It overlaps with the policy that applies %(when)s: only one policy of a scope can apply at a time."),
                params={"when": other.when()},
            )


def is_unsaved(policy: Policy, name: str) -> bool:
    """Whether the resource, the entity or the plan of a policy is not saved yet."""
    return getattr(policy, f"{name}_id") is None and getattr(policy, name) is not None


def has(policy: Policy, name: str) -> bool:
    """Whether a policy has a resource, an entity or a plan, also one that is not saved yet."""
    return getattr(policy, f"{name}_id") is not None or getattr(policy, name) is not None


def check_limits(before: Snapshot, now: Snapshot) -> None:
    """Raise IntegrityError for a policy with limits that it cannot have, on every write."""
    if all(before.get(name) == now[name] for name in ("entity", "plan", "effect", "limits")):
        return
    if now["effect"] != PolicyEffect.LIMITS and now["limits"]:
        raise IntegrityError(f"a policy that is {now['effect']} has no limits: delete them first")
    is_for_some = now["entity"] is not None or now["plan"] is not None
    if is_for_some and any(limit.get("shared") for limit in now["limits"]):
        raise IntegrityError("limits of an entity or a plan cannot be shared by all entities")
    check_definitions(now["limits"])


def check_spans(keys: Collection[Any], using: str) -> None:
    """Raise IntegrityError for overlapping dates of policies of one scope, on every write.

    Only PostgreSQL has a constraint for it. Weekly hours are checked by validation only.
    """
    dated = apps.get_model("limits_app", "Policy")._base_manager.using(using).exclude(valid_from=None).order_by()
    scopes: set[tuple[Any, ...]] = set()
    for batch in batches(keys):
        scopes |= {*dated.filter(pk__in=batch).values_list(*_SCOPE)}
    entities = {scope[1] for scope in scopes}
    beside = [dated.filter(entity__in=batch) for batch in batches(entities - {None})]
    if None in entities:
        beside.append(dated.filter(entity=None))
    for other in beside:
        rows = other.order_by(*_SCOPE, "valid_from").values_list(*_SCOPE, *_SCHEDULE)
        for scope, of_scope in groupby(rows, lambda row: row[: len(_SCOPE)]):
            # In the order of their beginnings, one that overlaps with any overlaps with the next one.
            schedules = [PolicySchedule.of(*row[len(_SCOPE) :]) for row in of_scope] if scope in scopes else []
            if any(schedule.overlaps(following) for schedule, following in pairwise(schedules)):
                raise IntegrityError("limits_app_policy_no_overlap: two policies of one scope have overlapping dates")
