"""Candidates: other limits for a policy, which are evaluated beside it until they are promoted or discarded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, router
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import LimitDefinition
from limits_app.models.base import Configuration
from limits_app.models.limit import noted_limits, validate_limits
from limits_app.models.policy import Policy
from limits_app.models.validators import validate_text

_PERCENT: Final = (MinValueValidator(1), MaxValueValidator(100))


class CandidateState(models.TextChoices):
    """Whether the limits of a candidate are evaluated, in force, or were withdrawn after they had been in force."""

    TESTING = "testing", _("testing")
    PROMOTED = "promoted", _("enforced")
    REVERTED = "reverted", _("reverted")


@dataclass(frozen=True, slots=True)
class CandidateValue:
    """A candidate as a value.

    While it is tested, `limits` are evaluated for `percent` of the entities. Once it is promoted, `watched_until` is
    the time until which its rejections are counted.
    """

    candidate_id: int
    limits: tuple[LimitDefinition, ...]
    shared: frozenset[str]
    percent: int
    watched_until: datetime | None = None


class Candidate(Configuration):
    """Other limits for a policy; a policy has at most one candidate."""

    part_of = ("policy",)

    policy = models.ForeignKey(Policy, verbose_name=_("policy"), on_delete=models.CASCADE, related_name="candidates")
    limits = models.TextField(
        _("limits"),
        validators=[validate_text, validate_limits],
        help_text=_("Limits instead of those of the policy, such as “100/min tokens=1M/day”."),
    )
    percent = models.PositiveSmallIntegerField(
        _("tried on (%)"),
        default=100,
        validators=_PERCENT,
        help_text=_("Percentage of clients on which it is tried, without rejecting; always the same ones."),
    )
    revert_percent = models.PositiveSmallIntegerField(
        _("revert above (percent rejected)"),
        null=True,
        blank=True,
        validators=_PERCENT,
        help_text=_(
            "Once enforced, revert when requests of more than this percentage of clients, and of at least two, are "
            "rejected. Empty: never."
        ),
    )
    revert_minutes = models.PositiveSmallIntegerField(
        _("watch for (minutes)"),
        default=10,
        validators=[MinValueValidator(1), MaxValueValidator(1440)],
        help_text=_("How long rejections are watched for that, from when it is enforced."),
    )
    reason = models.TextField(_("reason"), blank=True, default="", validators=[validate_text])
    state = models.CharField(
        _("state"), max_length=8, choices=CandidateState.choices, default=CandidateState.TESTING, editable=False
    )
    watched_until = models.DateTimeField(_("watched until"), null=True, editable=False)
    previous_effect = models.CharField(max_length=16, blank=True, default="", editable=False)
    previous_limits = models.TextField(_("limits before"), blank=True, default="", editable=False)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    class Meta(Configuration.Meta):
        verbose_name = _("trial")
        verbose_name_plural = _("trials")
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["policy"],
                name="limits_app_candidate_one_per_policy",
                violation_error_message=_("This policy already has a trial: discard it first."),
            ),
            models.CheckConstraint(
                name="limits_app_candidate_fields",
                condition=Q(state__in=CandidateState.values, percent__gte=1, percent__lte=100)
                & (Q(revert_percent=None) | Q(revert_percent__gte=1, revert_percent__lte=100)),
                violation_error_message=_("Percentages must be 1 to 100."),
            ),
        ]

    def __str__(self) -> str:
        return self.shown_as or f"trial of {self.policy}"

    def clean(self) -> None:
        """Reject limits that its policy cannot have."""
        super().clean()
        policy = Policy.objects.using(router.db_for_write(Policy)).filter(pk=self.policy_id).first()
        if policy is None or (policy.entity_id is None and policy.plan_id is None):
            return
        try:
            is_shared = any(noted.shared for noted in noted_limits(self.limits))
        except InvalidLimit:  # the field has an error already
            return
        if is_shared:
            raise ValidationError({"limits": _("Limits of an entity or a plan cannot be shared: leave “shared” out.")})
