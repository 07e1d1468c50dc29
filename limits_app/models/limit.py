"""One constraint of a policy, as a row."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, Self

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.core.amounts import Amount
from limits_app.core.clock import DEFAULT_ZONE, LONGEST_ZONE_NAME
from limits_app.core.errors import InvalidLimit
from limits_app.core.limits import Blocked, CallLimit, QuotaLimit, QuotaPeriod, RateLimitAlgorithm, ResourceLimit
from limits_app.core.limits import Limit as Definition
from limits_app.models.base import Configuration
from limits_app.models.fields import ExactTextField, cascade
from limits_app.models.limit_rules import COLUMNS, CONSTRAINTS, LimitKind, amount_of, definition_of, wrong_fields
from limits_app.models.policy import Policy
from limits_app.models.policy_rules import PolicyEffect, is_unsaved
from limits_app.models.pool import PoolMember

__all__ = ["ALGORITHMS", "PERIODS", "Limit"]

ALGORITHMS: Final = [
    (RateLimitAlgorithm.TOKEN_BUCKET.value, _("token bucket")),
    (RateLimitAlgorithm.LEAKY_BUCKET.value, _("leaky bucket")),
    (RateLimitAlgorithm.SLIDING_WINDOW.value, _("sliding window")),
    (RateLimitAlgorithm.FIXED_WINDOW.value, _("fixed window")),
    (RateLimitAlgorithm.GCRA.value, _("GCRA")),
]
PERIODS: Final = [
    (QuotaPeriod.HOUR.value, _("hour")),
    (QuotaPeriod.DAY.value, _("day")),
    (QuotaPeriod.WEEK.value, _("week")),
    (QuotaPeriod.MONTH.value, _("month")),
]
_ALGORITHMS: Final = ("", *RateLimitAlgorithm)
_PERIODS: Final = ("", *QuotaPeriod)


class Limit(Configuration):
    """The columns of a limit's definition; which of them it has depends on its kind. It belongs to a policy, or to a
    member of a pool.
    """

    part_of = ("policy", "member")

    policy = models.ForeignKey(
        Policy, verbose_name=_("policy"), on_delete=cascade, null=True, blank=True, related_name="limits"
    )
    member = models.ForeignKey(
        PoolMember,
        verbose_name=_("pool member"),
        on_delete=cascade,
        null=True,
        blank=True,
        related_name="limits",
    )
    kind = models.CharField(
        _("kind"),
        max_length=16,
        choices=LimitKind.choices,
        default=LimitKind.RATE,
        help_text=_(
            "A rate counts units that a request names, calls count requests, a quota counts units per calendar period "
            "or session, permits are held and given back."
        ),
    )
    key = ExactTextField(
        _("key"),
        max_length=64,
        blank=True,
        help_text=_("Its name in requests, such as “tpm”; calls always have “call_count”, also when left empty."),
    )
    capacity = models.DecimalField(
        _("capacity"),
        max_digits=16,
        decimal_places=3,
        help_text=_("How much per window, or how many permits at once. To admit nothing, make the policy “blocked”."),
    )
    window_seconds = models.DecimalField(
        _("window (s)"),
        max_digits=16,
        decimal_places=3,
        null=True,
        blank=True,
        help_text=_("Per how many seconds: 60 is a minute, 3600 an hour, 86400 a day. Permits have none."),
    )
    algorithm = models.CharField(
        _("algorithm"),
        max_length=16,
        choices=ALGORITHMS,
        blank=True,
        help_text=_("How a rate is measured; token bucket when left empty. Permits have none."),
    )
    burst = models.DecimalField(
        _("burst"),
        max_digits=16,
        decimal_places=3,
        null=True,
        blank=True,
        help_text=_("How much may pass at once; the capacity when left empty. Windows and permits have none."),
    )
    max_hold_seconds = models.DecimalField(
        _("longest hold (s)"),
        max_digits=16,
        decimal_places=3,
        null=True,
        blank=True,
        help_text=_("After how many seconds a permit is taken away; never when left empty. Only permits have it."),
    )
    period = models.CharField(
        _("period"),
        max_length=8,
        choices=PERIODS,
        blank=True,
        help_text=_("What a quota is per, as the calendar has it; weeks start on Monday. Only quotas have one."),
    )
    time_zone = ExactTextField(
        _("time zone"),
        max_length=LONGEST_ZONE_NAME,
        blank=True,
        help_text=_("Whose midnights count, such as “Europe/Berlin”; UTC when left empty. Only periods have one."),
    )
    session_seconds = models.DecimalField(
        _("session (s)"),
        max_digits=16,
        decimal_places=3,
        null=True,
        blank=True,
        help_text=_("Instead of a period: how many seconds a quota holds from its first use on, such as 18000."),
    )
    soft = models.BooleanField(
        _("soft"),
        default=False,
        help_text=_("It refuses nothing: what goes beyond it is counted and reported. Permits cannot be soft."),
    )

    shared = models.BooleanField(
        _("shared"),
        default=False,
        help_text=_(
            "One for all entities together instead of one for each; on every resource there is one of its own."
        ),
    )

    class Meta(Configuration.Meta):
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        ordering = ["policy_id", "member_id", "key"]
        default_permissions = ()  # a limit is a part of its policy or pool, and who may change one may change the other
        constraints = CONSTRAINTS

    def __str__(self) -> str:
        return f"{self.key}: {self.summary()}"

    @classmethod
    def from_definition(cls, owner: Policy | PoolMember, definition: Definition, *, shared: bool = False) -> Self:
        """Make the row, not saved yet, of a definition, for a policy or a member of a pool."""
        if isinstance(definition, Blocked):
            raise InvalidLimit("nothing is limited to nothing: make the policy “blocked” instead")
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
        """Give the row as an immutable value; InvalidLimit where it is none, which the constraints rule out."""
        return definition_of(*[getattr(self, column) for column in COLUMNS])

    def summary(self) -> str:
        """Say it in words, such as “1000 / 60 s (token bucket)”, “5 per month (UTC), soft” or “10 at once”."""
        return gettext("%(words)s, soft") % {"words": self._words()} if self.soft else self._words()

    def _words(self) -> str:
        if self.kind == LimitKind.QUOTA:
            return self._words_of_quota()
        if self.kind == LimitKind.RESOURCE:
            words = gettext("%(capacity)s at once") % {"capacity": amount_of(self.capacity)}
            if self.max_hold_seconds is None:
                return words
            return gettext("%(words)s, %(seconds)s s each at most") % {
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
        """Fill in what the kind implies, and refuse what is no definition or does not belong into its policy."""
        if self.kind not in LimitKind.values:
            return  # the fields have said so
        kind = LimitKind(self.kind)
        self._fill_in(kind)
        if self.algorithm not in _ALGORITHMS or self.period not in _PERIODS or not isinstance(self.soft, bool):
            return  # likewise
        if self.capacity is None:
            return  # likewise
        given = {field for field in COLUMNS if getattr(self, field) not in (None, "")}
        if not self.soft:
            given.remove("soft")
        if wrong := wrong_fields(kind, self.algorithm, self.key, given):
            raise ValidationError(wrong)
        try:
            self.definition()
        except InvalidLimit as error:
            if not self.key:
                raise ValidationError(
                    {"key": gettext("Write a key, such as “tpm”: requests name the limit by it.")}
                ) from error
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
            return  # the field has said so
        if (policy is None) == (member is None):
            raise ValidationError({"policy": gettext("A limit belongs either to a policy or to a member of a pool.")})
        if policy is None:
            if self.shared:
                raise ValidationError({"shared": gettext("The limits of a pool's member are shared by all as it is.")})
            return
        effect = policy.effect
        if self.shared and (policy.entity_id is not None or is_unsaved(policy, "entity")):
            raise ValidationError(
                {
                    "shared": gettext(
                        "Only limits of a resource or of the system can be shared: those of an entity are its own."
                    )
                }
            )
        if effect in (PolicyEffect.BLOCKED, PolicyEffect.UNLIMITED):
            raise ValidationError(
                gettext("A policy that is “%(effect)s” has no limits: remove this one, or choose the effect “limits”.")
                % {"effect": PolicyEffect(effect).label}
            )


def _field_of(error: InvalidLimit, key: str) -> str:
    """The field that the core complains of: the first one it mentions."""
    words = str(error).removeprefix(f"limit {key!r}: ").split()
    return next((word for word in words if word in COLUMNS), "key")


def _decimal(amount: Amount | None) -> Decimal | None:
    return None if amount is None else Decimal(str(amount))
