"""A page that grants a boost: to whom, of what, how much more, and until when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext

from limits_app import audit, services
from limits_app.admin.action_forms import GrantForm
from limits_app.admin.figures import short_moment
from limits_app.admin.large_lists import Link
from limits_app.admin.states import StatefulAdmin
from limits_app.admin.verbs import StatePermissions
from limits_app.core.errors import LimitsError

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

__all__ = ["GrantingAdmin"]


class GrantingAdmin(StatePermissions, StatefulAdmin):
    """Policies, with a page that grants boosts."""

    def get_urls(self) -> list[URLPattern]:
        """Offer the page beside those of the policies."""
        view = self.admin_site.admin_view(self.grant_view)
        return [path("boost/", view, name="limits_app_policy_boost"), *super().get_urls()]

    def links(self, request: HttpRequest) -> Iterable[Link]:
        """Point at the page, for whoever may use it."""
        yield from super().links(request)
        if self.has_boost_permission(request):
            yield Link(reverse(f"{self.admin_site.name}:limits_app_policy_boost"), gettext("Grant a boost"))

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Have policies in the index for whoever may grant boosts, too."""
        return {**super().get_model_perms(request), "boost": self.has_boost_permission(request)}

    def grant_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for the boost, and grant it."""
        if not self.has_boost_permission(request):
            raise PermissionDenied
        form = GrantForm(request.POST if request.method == "POST" else None)
        if form.is_valid() and self._granted(request, form):
            return HttpResponseRedirect(self._next(request))
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Grant a boost"),
            "opts": self.opts,
            "form": form,
            "back": self._next(request),
            "media": self.media + form.media,
        }
        return TemplateResponse(request, "admin/limits_app/confirm_action.html", context)

    def _next(self, request: HttpRequest) -> str:
        """Where to go on: to the policies, for whoever may look at them."""
        name = self.admin_site.name
        if self.has_view_or_change_permission(request):
            return reverse(f"{name}:limits_app_policy_changelist")
        return reverse(f"{name}:app_list", args=[self.opts.app_label])

    def _granted(self, request: HttpRequest, form: GrantForm) -> bool:
        """Grant it; where that cannot be, the form says why."""
        says = form.cleaned_data
        resource = None if says["resource"] is None else says["resource"].name
        actor = request.user.get_username()
        try:
            with audit.acting(actor=actor, source="admin"):
                policy = services.boost(says["entity"], resource, says["factor"], says["until"], says["reason"])
        except LimitsError as error:
            form.add_error(None, str(error))
            return False
        said = gettext("%(policy)s is boosted %(when)s.") % {"policy": policy, "when": policy.when(short_moment)}
        self.message_user(request, said, messages.SUCCESS)
        return True
