"""The page of the emergency switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.action_forms import BoostEnd, EmergencyForm
from limits_app.admin.base import AuditedAdmin, confirmation
from limits_app.engine.errors import InvalidLimit
from limits_app.models import EmergencySwitch, Enforcement
from limits_app.services.display import moment
from limits_app.services.rights import Action, may

_MODES: Final[Mapping[Enforcement, Any]] = {
    Enforcement.OFF: _("Switch all limits off…"),
    Enforcement.SHADOW: _("Only report, reject nothing…"),
    Enforcement.ENFORCE: _("Enforce all limits again…"),
}
"""What the buttons do, each after a confirmation."""
_SET: Final[Mapping[Enforcement, Any]] = {
    Enforcement.OFF: _("All limits are switched off."),
    Enforcement.SHADOW: _("Limits are only reported: nothing is rejected."),
    Enforcement.ENFORCE: _("All limits are enforced again."),
}
"""What was done, without an end."""
_SET_UNTIL: Final[Mapping[Enforcement, Any]] = {
    Enforcement.OFF: _("All limits are switched off until %(until)s."),
    Enforcement.SHADOW: _("Limits are only reported until %(until)s: nothing is rejected."),
}


@admin.register(EmergencySwitch)
class EmergencyAdmin(AuditedAdmin):
    """One page: the present mode, a form for another one, and its confirmation."""

    def get_urls(self) -> list[URLPattern]:
        """Return the URL of the page; there are no rows to list."""
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="limits_app_emergencyswitch_changelist")]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: there is one switch."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the switch, ask for confirmation, or set it."""
        if not may(request.user, Action.VIEW_EMERGENCY):
            raise PermissionDenied
        may_change = may(request.user, Action.SET_EMERGENCY)
        if request.method == "POST" and not may_change:
            raise PermissionDenied
        switch = services.emergency()
        form = EmergencyForm(request.POST or None, initial={"ends": BoostEnd.HOUR})
        if switch.mode != Enforcement.ENFORCE and request.GET.get("mode") == Enforcement.ENFORCE and may_change:
            form = EmergencyForm(request.POST or {"mode": Enforcement.ENFORCE.value})
        confirming = form.is_valid()
        if "confirmed" in request.POST and confirming and self._set(request, form):
            return HttpResponseRedirect(request.path)
        is_asking = confirming and not form.non_field_errors()
        context = {
            "switch": switch,
            "until": moment(switch.until),
            "may_change": may_change,
            "modes": [(mode.value, label) for mode, label in _MODES.items() if mode != switch.mode],
            "confirming": is_asking,
            "ends_at": moment(form.cleaned_data["until"]) if is_asking else "",
        }
        return confirmation(
            self, request, form, title=capfirst(self.opts.verbose_name), template="emergency", **context
        )

    def _set(self, request: HttpRequest, form: EmergencyForm) -> bool:
        """Set the switch; an error is shown in the form."""
        data = form.cleaned_data
        try:
            with self.acting(request):
                services.set_emergency(data["mode"], reason=data["reason"], until=data["until"])
        except InvalidLimit as error:
            form.add_error(None, str(error))
            return False
        mode, until = Enforcement(data["mode"]), moment(data["until"])
        message = _SET_UNTIL[mode] % {"until": until} if until else _SET[mode]
        self.message_user(request, message, messages.SUCCESS)
        return True
