"""Alert rules, and the outbox of alerts."""

from __future__ import annotations

from typing import Any, Final, Self

from django.core.exceptions import ValidationError
from django.core.validators import URLValidator, validate_email
from django.db import models
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.models.base import Definable
from limits_app.models.fields import ExactTextField
from limits_app.models.validators import validate_identifier, validate_resource_name, validate_text

_ABOUT_LIMITS: Final = True


class AlertKind(models.TextChoices):
    """The events that alerts are sent for: the value, `_ABOUT_LIMITS` for some, and the label.

    An event that `is_about_limits` has a resource and an entity, which rules can choose.
    """

    is_about_limits: bool

    def __new__(cls, value: str, is_about_limits: bool = False) -> Self:
        """Make a member with its trait."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.is_about_limits = is_about_limits
        return member

    THRESHOLD = "threshold", _ABOUT_LIMITS, _("a limit has reached a threshold")
    REJECTIONS = "rejections", _ABOUT_LIMITS, _("many requests of a client were rejected")
    STORE = "store", _("a store became unavailable or available")
    CANDIDATE = "candidate", _("a trial was reverted")
    EMERGENCY = "emergency", _("the emergency switch was set")


class AlertChannel(models.TextChoices):
    """How an alert is sent."""

    EMAIL = "email", _("e-mail")
    WEBHOOK = "webhook", _("webhook")
    SLACK = "slack", _("Slack-compatible webhook")


_validate_url: Final = URLValidator(schemes=["http", "https"])


class AlertRule(Definable):
    """Sends an alert to one target for each event of a kind.

    The audit log does not record it, because targets and secrets are confidential.
    """

    name = models.CharField(_("name"), max_length=100, unique=True, validators=[validate_text])
    enabled = models.BooleanField(_("enabled"), default=True)
    kind = models.CharField(_("event"), max_length=16, choices=AlertKind.choices)
    percent = models.PositiveSmallIntegerField(
        _("threshold in percent"),
        null=True,
        blank=True,
        help_text=_("For a limit that reaches a threshold: one of LIMITS['NEAR_THRESHOLDS'], by default 80."),
    )
    rejections = models.PositiveIntegerField(
        _("rejections per minute"),
        null=True,
        blank=True,
        help_text=_("For many rejections: an alert is sent above this number, at most one an hour for each client."),
    )
    resource = models.CharField(
        _("resource"),
        max_length=64,
        blank=True,
        validators=[validate_resource_name],
        help_text=_("Only for events about limits; all resources when left empty."),
    )
    entity = ExactTextField(
        _("client"),
        max_length=255,
        blank=True,
        validators=[validate_identifier],
        help_text=_("Only for events about limits; all clients when left empty."),
    )
    channel = models.CharField(_("channel"), max_length=8, choices=AlertChannel.choices, default=AlertChannel.EMAIL)
    target = models.TextField(
        _("send to"),
        validators=[validate_text],
        help_text=_("E-mail addresses, one per line, or the URL of a webhook."),
    )
    secret = models.CharField(
        _("webhook secret"),
        max_length=255,
        blank=True,
        validators=[validate_text],
        help_text=_("Signs the requests to a webhook. Leave empty to keep the stored secret."),
    )
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    class Meta:
        verbose_name = _("alert rule")
        verbose_name_plural = _("alert rules")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def addresses(self) -> list[str]:
        """The e-mail addresses of the target."""
        return self.target.replace(",", "\n").split()

    def clean_alone(self) -> None:
        """Reject fields that do not fit the kind or the channel."""
        errors: dict[str, Any] = {}
        is_about_limits = self.kind in AlertKind.values and AlertKind(self.kind).is_about_limits
        if self.kind == AlertKind.THRESHOLD:
            levels = [round(level * 100) for level in conf.get(conf.NEAR_THRESHOLDS)]
            if self.percent not in levels:
                allowed = ", ".join(map(str, levels))
                errors["percent"] = gettext(
                    "Enter one of %(known)s, or add the threshold to LIMITS['NEAR_THRESHOLDS']."
                ) % {"known": allowed}
        if self.kind == AlertKind.REJECTIONS and not self.rejections:
            errors["rejections"] = gettext("Enter a number of rejections per minute, 1 or more.")
        for name in ("resource", "entity"):
            if getattr(self, name) and not is_about_limits:
                errors[name] = gettext("Leave this empty: this kind of event is not about one resource or entity.")
        try:
            self._check_target()
        except ValidationError as error:
            errors["target"] = error
        if errors:
            raise ValidationError(errors)

    def _check_target(self) -> None:
        if self.channel != AlertChannel.EMAIL:
            _validate_url(self.target)
            return
        if not self.addresses:
            raise ValidationError(gettext("Enter at least one e-mail address."))
        for address in self.addresses:
            validate_email(address)


class Alert(models.Model):
    """An alert in the outbox: to be sent at `next_attempt_at`, or sent, or given up after the last attempt."""

    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, verbose_name=_("rule"))
    about = models.CharField(_("about"), max_length=400)
    payload = models.JSONField(_("content"))
    dedupe_key = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(_("created at"), db_index=True)
    attempts = models.PositiveSmallIntegerField(_("attempts"), default=0)
    next_attempt_at = models.DateTimeField(_("next attempt at"), null=True, db_index=True)
    sent_at = models.DateTimeField(_("sent at"), null=True)
    last_error = models.CharField(_("last error"), max_length=500, blank=True)

    class Meta:
        default_permissions = ("view",)
        verbose_name = _("alert")
        verbose_name_plural = _("alert log")
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.rule}: {self.about}"
