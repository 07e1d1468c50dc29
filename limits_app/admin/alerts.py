"""Alert rules, with a test button, and the alerts in the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.admin.base import ReadOnly, RobustListAdmin, moment_column
from limits_app.admin.client_fields import ClientInput, client_in, mean_initial
from limits_app.models import Alert, AlertChannel, AlertKind, AlertRule
from limits_app.services.display import amount
from limits_app.services.rights import Action, may

_NOT_SENDING: Final = tuple(f"django.core.mail.backends.{name}.EmailBackend" for name in ("dummy", "console"))
_CONFIDENTIAL = ("target", "secret")


class AlertRuleForm(forms.ModelForm):  # type: ignore[type-arg]  # generic only in its type stubs
    """Never shows the stored secret, and keeps it when the field is left empty."""

    class Meta:
        widgets = {"secret": forms.PasswordInput(attrs={"autocomplete": "new-password"}), "entity": ClientInput}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        mean_initial(self, "entity")

    def clean_entity(self) -> str:
        """The identifier of the client, also where its name was entered."""
        return client_in(self, "entity")

    def clean_secret(self) -> str:
        """The new secret, or the stored one."""
        return self.cleaned_data["secret"] or str(self.initial.get("secret", ""))


@admin.register(AlertRule)
class AlertRuleAdmin(RobustListAdmin):
    """Alert rules. Targets and secrets are only for users who may change them."""

    list_display = ["name", "event", "resource", "entity", "channel", "enabled"]
    list_filter = ["kind", "channel", "enabled"]
    search_fields = ["name"]
    form = AlertRuleForm

    @admin.display(description=_("event"), ordering="kind")
    def event(self, rule: AlertRule) -> str:
        """The event, with its threshold."""
        kind = str(AlertKind(rule.kind).label)
        if rule.kind == AlertKind.THRESHOLD and rule.percent is not None:
            return gettext("%(event)s: %(percent)s %%") % {"event": kind, "percent": rule.percent}
        if rule.kind == AlertKind.REJECTIONS and rule.rejections is not None:
            more = gettext("%(event)s: more than %(count)s per minute")
            return more % {"event": kind, "count": amount(rule.rejections)}
        return kind

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Hide target and secret from users who may only view."""
        allowed = self.has_change_permission(request, obj) or (obj is None and self.has_add_permission(request))
        fields = super().get_fields(request, obj)
        return [field for field in fields if allowed or field not in _CONFIDENTIAL]

    def get_urls(self) -> list[URLPattern]:
        """The pages, and the test button of a rule."""
        view = self.admin_site.admin_view(self.test_view)
        return [path("<int:object_id>/test/", view, name="limits_app_alertrule_test"), *super().get_urls()]

    def test_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """Send a test alert of a rule as it is saved."""
        from limits_app.alerts import NotDelivered, send_test  # the clients for e-mail and webhooks

        rule = self.get_object(request, str(object_id))
        if not may(request.user, Action.TEST_ALERT):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if rule is None:
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:limits_app_alertrule_changelist"))
        try:
            send_test(rule)
        except NotDelivered as error:
            text = gettext("The test alert was not sent: %(error)s.") % {"error": error}
            self.message_user(request, text, messages.ERROR)
        else:
            self.message_user(request, gettext("The test alert was sent."), messages.SUCCESS)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:limits_app_alertrule_change", args=[object_id]))

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **options: Any) -> HttpResponse:
        """Say above the form why alerts would not be sent."""
        context["notices"] = [*_reasons_for_silence(options.get("obj"))]
        return super().render_change_form(request, context, *args, **options)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Say above the list why alerts would not be sent."""
        notices = [*_reasons_for_silence(None)]
        if not notices and not AlertRule.objects.exists():
            notices = [gettext("There is no alert rule, so nobody is notified of anything.")]
        return super().changelist_view(request, {"notices": notices, **(extra_context or {})})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the rule, and warn if nothing would be sent."""
        super().save_model(request, obj, form, change)
        for reason in _reasons_for_silence(obj):
            self.message_user(request, reason, messages.WARNING)


def _reasons_for_silence(rule: AlertRule | None) -> Iterator[str]:
    """Why the alerts of a rule, or of all rules, would not be sent."""
    if not conf.get(conf.ALERTS):
        yield gettext("Alerts are switched off on this site, so nothing is sent: set LIMITS['ALERTS'] = True.")
    if rule is None:
        return
    if not rule.enabled:
        yield gettext("This rule is not enabled, so it sends nothing.")
    if rule.channel == AlertChannel.EMAIL and (backend := _mail_backend()) in _NOT_SENDING:
        yield gettext("E-mail is not sent by this site: its EMAIL_BACKEND is %(backend)s.") % {"backend": backend}


def _mail_backend() -> str | None:
    """The backend of the default mailer; None for that of Django. Before Django 6.1 all e-mail has one backend."""
    mailers: dict[str, dict[str, Any]] | None = getattr(settings, "MAILERS", None)
    return settings.EMAIL_BACKEND if mailers is None else mailers.get("default", {}).get("BACKEND")


@admin.register(Alert)
class AlertAdmin(ReadOnly, RobustListAdmin):
    """The alerts."""

    list_display = ["created", "rule", "text", "attempts", "next_attempt", "sent", "last_error"]
    list_filter = [("sent_at", admin.EmptyFieldListFilter)]
    list_select_related = ["rule"]
    search_fields = ["about"]
    fields = ["rule", "text", "created", "attempts", "next_attempt", "sent", "last_error"]
    readonly_fields = ["text", "created", "next_attempt", "sent"]

    created = moment_column("created_at", _("created at"))
    next_attempt = moment_column("next_attempt_at", _("next attempt at"))
    sent = moment_column("sent_at", _("sent at"))

    @admin.display(description=_("text"), ordering="about")
    def text(self, alert: Alert) -> str:
        """The text of the alert."""
        return str(alert.payload["text"])
