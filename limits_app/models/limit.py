"""One constraint of a policy, as a row."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, Self

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidLimit
from limits_app.core.limits import Blocked, CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.limits import Limit as Definition
from limits_app.models.base import Configuration
from limits_app.models.fields import ExactTextField
from limits_app.models.limit_rules import CONSTRAINTS, LimitKind, wrong_fields
from limits_app.models.policy import Policy
from limits_app.models.policy_rules import PolicyEffect

__all__ = ["ALGORITHMS", "Limit", "definition_of"]

Number = Decimal | float | None

ALGORITHMS: Final = [
    (RateLimitAlgorithm.TOKEN_BUCKET.value, _("token bucket")),
    (RateLimitAlgorithm.LEAKY_BUCKET.value, _("leaky bucket")),
    (RateLimitAlgorithm.SLIDING_WINDOW.value, _("sliding window")),
    (RateLimitAlgorithm.FIXED_WINDOW.value, _("fixed window")),
    (RateLimitAlgorithm.GCRA.value, _("GCRA")),
]
_ALGORITHMS: Final = ("", *RateLimitAlgorithm)
_FIELDS: Final = ("key", "capacity", "window_seconds", "algorithm", "burst", "max_hold_seconds")


class Limit(Configuration):
    """The columns of a limit's definition; which of them it has depends on its kind."""

    policy = models.ForeignKey(Policy, verbose_name=_("policy"), on_delete=models.CASCADE, related_name="limits")
    kind = models.CharField(
        _("kind"),
        max_length=16,
        choices=LimitKind.choices,
        default=LimitKind.RATE,
        help_text=_("A rate counts units that a request names, calls count requests, permits are held and given back."),
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
        ordering = ["policy_id", "key"]
        default_permissions = ()  # a limit is a part of its policy, and who may change one may change the other
        constraints = CONSTRAINTS

    def __str__(self) -> str:
        return f"{self.key}: {self.summary()}"

    @classmethod
    def from_definition(cls, policy: Policy, definition: Definition, *, shared: bool = False) -> Self:
        """Make the row, not saved yet, of a definition."""
        if isinstance(definition, Blocked):
            raise InvalidLimit("nothing is limited to nothing: make the policy “blocked” instead")
        row = cls(policy=policy, key=definition.key, capacity=_decimal(definition.capacity), shared=shared)
        if isinstance(definition, ResourceLimit):
            row.kind = LimitKind.RESOURCE
            row.max_hold_seconds = _decimal(definition.max_hold_seconds)
        else:
            row.kind = LimitKind.CALL if isinstance(definition, CallLimit) else LimitKind.RATE
            row.window_seconds = _decimal(definition.window_seconds)
            row.algorithm = definition.algorithm.value
            row.burst = _decimal(definition.burst)
        return row

    def definition(self) -> Definition:
        """Give the row as an immutable value; InvalidLimit where it is none, which the constraints rule out."""
        return definition_of(
            self.kind,
            self.key,
            self.capacity,
            self.window_seconds,
            self.algorithm,
            self.burst,
            self.max_hold_seconds,
        )

    def summary(self) -> str:
        """Say it in words, such as “1000 / 60 s (token bucket)” or “10 at once”."""
        if self.kind == LimitKind.RESOURCE:
            words = gettext("%(capacity)s at once") % {"capacity": _amount(self.capacity)}
            if self.max_hold_seconds is None:
                return words
            return gettext("%(words)s, %(seconds)s s each at most") % {
                "words": words,
                "seconds": _amount(self.max_hold_seconds),
            }
        how = [str(self.get_algorithm_display())]
        if self.burst is not None:
            how.append(gettext("burst %(burst)s") % {"burst": _amount(self.burst)})
        return f"{_amount(self.capacity)} / {_amount(self.window_seconds)} s ({', '.join(how)})"

    def clean(self) -> None:
        """Fill in what the kind implies, and refuse what is no definition or does not belong into its policy."""
        super().clean()
        if self.kind not in LimitKind.values or self.algorithm not in _ALGORITHMS or self.capacity is None:
            return  # the fields have said so
        kind = LimitKind(self.kind)
        if kind is LimitKind.CALL and not self.key:
            self.key = CallLimit.key
        if kind is not LimitKind.RESOURCE and not self.algorithm:
            self.algorithm = RateLimitAlgorithm.TOKEN_BUCKET.value
        given = {field for field in _FIELDS if getattr(self, field) not in (None, "")}
        if wrong := wrong_fields(kind, self.algorithm, self.key, given):
            raise ValidationError(wrong)
        try:
            self.definition()
        except InvalidLimit as error:
            raise ValidationError({_field_of(error, self.key): str(error)}) from error
        self._check_policy()

    def _check_policy(self) -> None:
        try:
            effect, entity_id = self.policy.effect, self.policy.entity_id
        except ObjectDoesNotExist:
            return  # the field has said so
        if self.shared and entity_id is not None:
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


def definition_of(kind: str, key: str, capacity: Number, *rest: Any) -> Definition:
    """Give columns, in the order of the model, as an immutable value; InvalidLimit where they are none."""
    window_seconds, algorithm, burst, max_hold_seconds = rest
    if kind == LimitKind.RESOURCE:
        return ResourceLimit(key, _amount(capacity), _amount(max_hold_seconds))
    rate = (_amount(capacity), _amount(window_seconds), RateLimitAlgorithm(algorithm), _amount(burst))
    return CallLimit(*rate) if kind == LimitKind.CALL else RateLimit(key, *rate)


def _field_of(error: InvalidLimit, key: str) -> str:
    """The field that the core complains of: the first one it mentions."""
    words = str(error).removeprefix(f"limit {key!r}: ").split()
    return next((word for word in words if word in _FIELDS), "key")


def _amount(value: Number) -> Any:
    """A column as the core takes it: whole numbers as int, others as float; what is no number is left to the core.

    Read without a model, a database gives decimals as it likes, as floats for instance.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 3)
    if not isinstance(value, Decimal) or not value.is_finite() or value.adjusted() > 15:
        return value
    return int(value) if value == value.to_integral_value() else float(value)


def _decimal(amount: Amount | None) -> Decimal | None:
    return None if amount is None else Decimal(str(amount))
