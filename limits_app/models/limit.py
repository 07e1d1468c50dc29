"""Limits of policies and pool members."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, Self

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.core.amounts import Amount
from limits_app.core.clock import DEFAULT_ZONE, LONGEST_ZONE_NAME
from limits_app.core.errors import InvalidLimit
from limits_app.core.limits import Blocked, CallLimit, QuotaLimit, QuotaPeriod, RateLimitAlgorithm, ResourceLimit
from limits_app.core.limits import Limit as Definition
from limits_app.core.notation import Noted, checked_limits, limit_text, parse_limits
from limits_app.models.base import Configuration
from limits_app.models.fields import ExactTextField, cascade
from limits_app.models.limit_rules import COLUMNS, CONSTRAINTS, LimitKind, amount_of, definition_of, wrong_fields
from limits_app.models.policy import Policy
from limits_app.models.policy_rules import PolicyEffect
from limits_app.models.pool import PoolMember

ALGORITHMS: Final = [(algorithm.value, _(algorithm.label)) for algorithm in RateLimitAlgorithm]
PERIODS: Final = [
    (QuotaPeriod.HOUR.value, _("hour")),
    (QuotaPeriod.DAY.value, _("day")),
    (QuotaPeriod.WEEK.value, _("week")),
    (QuotaPeriod.MONTH.value, _("month")),
]
_ALGORITHMS: Final = ("", *RateLimitAlgorithm)
_PERIODS: Final = ("", *QuotaPeriod)


def _number(label: Any, help_text: Any, *, required: bool = False) -> Any:
    """A column for an amount, or for seconds."""
    optional = not required
    return models.DecimalField(
        label, max_digits=16, decimal_places=3, null=optional, blank=optional, help_text=help_text
    )


class Limit(Configuration):
    """A limit of a policy or a pool member. Its kind decides which of the columns apply."""

    part_of = ("policy", "member")

    policy = models.ForeignKey(
        Policy, verbose_name=_("policy"), on_delete=cascade, null=True, blank=True, related_name="limits"
    )
    member = models.ForeignKey(
        PoolMember, verbose_name=_("pool member"), on_delete=cascade, null=True, blank=True, related_name="limits"
    )
    key = ExactTextField(
        _("unit"),
        max_length=64,
        blank=True,
        help_text=_("What is counted: the key in code, such as “tokens”. Leave empty for requests (“call_count”)."),
    )
    kind = models.CharField(
        _("kind"),
        max_length=16,
        choices=LimitKind.choices,
        default=LimitKind.RATE,
        help_text=_(
            "Units, such as tokens, or requests: how many in any time of a fixed length. Quota: units per calendar "
            "period. Concurrent use: how many at the same time."
        ),
    )
    capacity = _number(
        _("capacity"),
        _("How many are allowed in the time, or at the same time. To reject every request, use a “blocked” policy."),
        required=True,
    )
    window_seconds = _number(
        _("per (seconds)"), _("60 is a minute, 3600 an hour, 86400 a day. Only for units and requests.")
    )
    algorithm = models.CharField(
        _("algorithm"),
        max_length=16,
        choices=ALGORITHMS,
        blank=True,
        help_text=_("Leave empty for a token bucket. Only for units and requests."),
    )
    burst = _number(
        _("burst size"),
        _("How many can be used in one moment. Leave empty for the capacity. Only for buckets and GCRA."),
    )
    max_hold_seconds = _number(
        _("freed after (seconds)"),
        _("When a use that did not end is no longer counted. Leave empty for never. Only for concurrent use."),
    )
    period = models.CharField(
        _("calendar period"),
        max_length=8,
        choices=PERIODS,
        blank=True,
        help_text=_("Weeks start on Monday. Only for quotas."),
    )
    time_zone = ExactTextField(
        _("time zone"),
        max_length=LONGEST_ZONE_NAME,
        blank=True,
        help_text=_("Time zone of the calendar period, such as “Europe/Berlin”. Leave empty for UTC."),
    )
    session_seconds = _number(
        _("from first use (seconds)"),
        _("Length of a quota period that begins with the first use, such as 18000, instead of a calendar period."),
    )
    soft = models.BooleanField(
        _("report only"),
        default=False,
        help_text=_("Report usage above the limit without rejecting requests. Not for concurrent use."),
    )

    shared = models.BooleanField(
        _("shared by all entities"),
        default=False,
        help_text=_(
            "One counter for all entities instead of one for each entity; each resource is counted separately."
        ),
    )

    class Meta(Configuration.Meta):
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        ordering = ["policy_id", "member_id", "key"]
        default_permissions = ()  # the permissions of the policy or pool apply to its limits
        constraints = CONSTRAINTS

    def __str__(self) -> str:
        return f"{LimitKind.CALL.label if self.kind == LimitKind.CALL else self.key}: {self.summary()}"

    @classmethod
    def from_definition(cls, owner: Policy | PoolMember, definition: Definition, *, shared: bool = False) -> Self:
        """Return an unsaved row of a definition, for a policy or a pool member."""
        if isinstance(definition, Blocked):
            raise InvalidLimit("a limit of 0 is not possible: use the effect “blocked” instead")
        row = cls(key=definition.key, capacity=_decimal(definition.capacity), shared=shared)
        row.policy, row.member = (owner, None) if isinstance(owner, Policy) else (None, owner)
        row.soft = definition.soft
        if isinstance(definition, ResourceLimit):
            row.kind = LimitKind.RESOURCE
            row.max_hold_seconds = _decimal(definition.max_hold_seconds)
        elif isinstance(definition, QuotaLimit):
            row.kind = LimitKind.QUOTA
            row.session_seconds = _decimal(definition.session_seconds)
            row.period, row.time_zone = (definition.period, definition.time_zone) if definition.period else ("", "")
        else:
            row.kind = LimitKind.CALL if isinstance(definition, CallLimit) else LimitKind.RATE
            row.window_seconds = _decimal(definition.window_seconds)
            row.algorithm = definition.algorithm.value
            row.burst = _decimal(definition.burst)
        return row

    def definition(self) -> Definition:
        """Return the row as an immutable value; raises InvalidLimit for a row that violates the constraints."""
        return definition_of(*[getattr(self, column) for column in COLUMNS])

    def noted(self) -> Noted:
        """Return its definition, and whether all entities share it."""
        return Noted(self.definition(), self.shared)

    def text(self) -> str:
        """Return it in text notation, such as `tpm=400k/min`."""
        return limit_text(self.definition(), shared=self.shared)

    def summary(self) -> str:
        """Describe it, such as “1000 / 60 s (token bucket)”, “5 per month (UTC), soft” or “10 at once”."""
        return gettext("%(words)s, soft") % {"words": self._words()} if self.soft else self._words()

    def _words(self) -> str:
        if self.kind == LimitKind.QUOTA:
            return self._words_of_quota()
        if self.kind == LimitKind.RESOURCE:
            words = gettext("%(capacity)s at once") % {"capacity": amount_of(self.capacity)}
            if self.max_hold_seconds is None:
                return words
            return gettext("%(words)s, timeout %(seconds)s s") % {
                "words": words,
                "seconds": amount_of(self.max_hold_seconds),
            }
        how = [str(self.get_algorithm_display())]
        if self.burst is not None:
            how.append(gettext("burst %(burst)s") % {"burst": amount_of(self.burst)})
        return f"{amount_of(self.capacity)} / {amount_of(self.window_seconds)} s ({', '.join(how)})"

    def _words_of_quota(self) -> str:
        capacity = amount_of(self.capacity)
        if self.session_seconds is not None:
            seconds = amount_of(self.session_seconds)
            return gettext("%(capacity)s per session of %(seconds)s s") % {"capacity": capacity, "seconds": seconds}
        words = {"capacity": capacity, "period": self.get_period_display(), "zone": self.time_zone}
        return gettext("%(capacity)s per %(period)s (%(zone)s)") % words

    def clean_alone(self) -> None:
        """Fill in implied values, and reject invalid definitions and limits that do not fit the policy."""
        if self.kind not in LimitKind.values:
            return  # reported by the field
        kind = LimitKind(self.kind)
        self._fill_in(kind)
        if self.algorithm not in _ALGORITHMS or self.period not in _PERIODS or not isinstance(self.soft, bool):
            return  # reported by the field
        if self.capacity is None:
            return  # reported by the field
        given = {field for field in COLUMNS if getattr(self, field) not in (None, "")}
        if not self.soft:
            given.remove("soft")
        if wrong := wrong_fields(kind, self.algorithm, self.key, given):
            raise ValidationError(wrong)
        try:
            self.definition()
        except InvalidLimit as error:
            if not self.key:
                raise ValidationError({"key": gettext("Enter what is counted, such as “tokens”.")}) from error
            message = str(error).removeprefix(f"limit {self.key!r}: ")
            raise ValidationError({_field_of(error, self.key): message}) from error
        self._check_owner()

    def _fill_in(self, kind: LimitKind) -> None:
        if kind is LimitKind.CALL and not self.key:
            self.key = CallLimit.key
        if kind in (LimitKind.RATE, LimitKind.CALL) and not self.algorithm:
            self.algorithm = RateLimitAlgorithm.TOKEN_BUCKET.value
        if kind is LimitKind.QUOTA and self.period and not self.time_zone:
            self.time_zone = DEFAULT_ZONE

    def _check_owner(self) -> None:
        try:
            policy, member = self.policy, self.member
        except ObjectDoesNotExist:
            return  # reported by the field
        if (policy is None) == (member is None):
            raise ValidationError({"policy": gettext("A limit must belong to either a policy or a pool member.")})
        if policy is None:
            if self.shared:
                raise ValidationError({"shared": gettext("Limits of pool members are always shared.")})
            return
        effect = policy.effect
        if self.shared and not policy.is_for_all_entities:
            raise ValidationError(
                {
                    "shared": gettext(
                        "Only limits of a resource or of the system can be shared, not those of an entity or of a plan."
                    )
                }
            )
        if effect in (PolicyEffect.BLOCKED, PolicyEffect.UNLIMITED):
            raise ValidationError(
                gettext("A policy with the effect “%(effect)s” cannot have limits: remove this one, or use “limits”.")
                % {"effect": PolicyEffect(effect).label}
            )


@lru_cache(maxsize=1024)
def noted_limits(text: str) -> tuple[Noted, ...]:
    """Read limits in the order of their keys; raises InvalidLimit for an invalid one, and for none."""
    found = tuple(sorted(parse_limits(text), key=lambda one: one.limit.key))
    checked_limits([one.limit for one in found])
    return found


def validate_limits(text: str) -> None:
    """Reject text that is not limits such as `60/min tokens=1M/day`."""
    try:
        for one in noted_limits(text):
            Limit.from_definition(Policy(), one.limit, shared=one.shared).clean_alone()
    except InvalidLimit as error:
        raise ValidationError(str(error)) from error


def limit_texts(rows: Iterable[Limit]) -> list[str]:
    """Return limits in text notation, in the order of their keys."""
    return [row.text() for row in sorted(rows, key=lambda row: str(row.key))]


def _field_of(error: InvalidLimit, key: str) -> str:
    """The field of an error of the core: the first one that the message names."""
    words = str(error).removeprefix(f"limit {key!r}: ").split()
    return next((word for word in words if word in COLUMNS), "key")


def _decimal(amount: Amount | None) -> Decimal | None:
    return None if amount is None else Decimal(str(amount))
