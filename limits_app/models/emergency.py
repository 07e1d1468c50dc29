"""The emergency switch: one row that turns all limits into shadow mode, or off, for the whole site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from limits_app import signals
from limits_app.models.base import Configuration
from limits_app.models.fields import aware
from limits_app.models.own_queries import read
from limits_app.models.policy_rules import Enforcement
from limits_app.models.snapshots import Snapshot
from limits_app.models.validators import validate_text

_WITHOUT_REASON: Final = _("Enter a reason: it is required unless the mode is “enforce”.")


@dataclass(frozen=True, slots=True)
class Emergency:
    """The mode of the emergency switch, its reason, and its end (None: until it is changed)."""

    mode: Enforcement = Enforcement.ENFORCE
    reason: str = ""
    until: datetime | None = None

    def as_dict(self) -> dict[str, object]:
        """The switch as plain data, for JSON."""
        return {"mode": self.mode.value, "reason": self.reason, "until": self.until}

    def at(self, now: datetime) -> Emergency:
        """The switch at a time; after its end, limits are enforced."""
        return ENFORCED if self.until is not None and self.until <= now else self


ENFORCED: Final = Emergency()
"""Limits are enforced."""


class EmergencySwitch(Configuration):
    """Whether limits are enforced. There is at most one row; without it they are."""

    named_by = "id"
    always_validated = ("reason",)

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    mode = models.CharField(
        _("mode"),
        max_length=8,
        choices=Enforcement.choices,
        default=Enforcement.ENFORCE,
        help_text=_("Shadow: all limits are evaluated and reported, but never reject. Off: nothing is limited."),
    )
    reason = models.TextField(
        _("reason"),
        blank=True,
        default="",
        validators=[validate_text],
        help_text=_("Required unless the mode is “enforce”."),
    )
    until = models.DateTimeField(
        _("until"), null=True, blank=True, help_text=_("After this, limits are enforced again. Leave empty for no end.")
    )
    updated_at = models.DateTimeField(_("updated at"), auto_now=True)

    class Meta(Configuration.Meta):
        verbose_name = _("emergency switch")
        verbose_name_plural = _("emergency switch")
        default_permissions = ("view", "change")
        constraints = [
            models.CheckConstraint(
                name="limits_app_emergency_fields",
                condition=Q(id=1, mode__in=Enforcement.values) & (Q(mode=Enforcement.ENFORCE) | ~Q(reason="")),
            )
        ]

    def __str__(self) -> str:
        return "site"

    def clean_alone(self) -> None:
        """Reject a mode other than “enforce” without a reason."""
        if self.mode != Enforcement.ENFORCE and not self.reason.strip():
            raise ValidationError({"reason": _WITHOUT_REASON})

    @classmethod
    def complete_written(cls, before: Mapping[Any, Snapshot], using: str) -> None:
        """Send the signal after the commit, also for a switch that is reverted or written by other code."""
        send = signals.emergency_switched.send_robust
        transaction.on_commit(lambda: send(sender=None, emergency=emergency(using, datetime.now(UTC))), using=using)


def emergency(using: str, now: datetime) -> Emergency:
    """The emergency switch in a database, as it is in force now."""
    row = read(using, lambda: EmergencySwitch.objects.using(using).first(), None)
    if row is None:
        return ENFORCED
    return Emergency(Enforcement(row.mode), row.reason, row.until and aware(row.until)).at(now)
