"""Admin pages whose every change is written to the audit log, in the transaction of the change."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.admin.widgets import AdminTextareaWidget
from django.db import models, router
from django.http import HttpResponseRedirect
from django.urls import reverse
from django.utils.html import escape
from django.utils.translation import gettext as _

from limits_app import audit
from limits_app.admin.json_field import JSONField
from limits_app.admin.moments import MomentField, MomentWidget
from limits_app.admin.primary_keys import Autocomplete, is_primary_key
from limits_app.admin.sound_lists import SoundListAdmin
from limits_app.admin.versions import VersionedAdmin

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

__all__ = ["AuditedAdmin"]


class AuditedAdmin(VersionedAdmin, SoundListAdmin):
    """Says who changes an object, with its inlines, or those that were selected."""

    formfield_overrides = {
        models.DateTimeField: {"form_class": MomentField, "widget": MomentWidget},
        models.JSONField: {"form_class": JSONField, "widget": AdminTextareaWidget(attrs={"rows": 4})},
        models.TextField: {"widget": AdminTextareaWidget(attrs={"rows": 3})},
    }

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Give fields with autocompletion the widget that takes bad input."""
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs["widget"] = Autocomplete(db_field, self.admin_site, using=kwargs.get("using"))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Show a help text as it is, which templates would take for markup."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None:
            field.help_text = escape(field.help_text)
        return field

    def changeform_view(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        """Show the form, or save what it says."""
        with self._acting(request):
            return super().changeform_view(request, *args, **options)

    def delete_view(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        """Ask whether to delete, or do it."""
        with self._acting(request):
            return super().delete_view(request, *args, **options)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Show the events of the object, to whoever may: changes from elsewhere are among them."""
        response = super().history_view(request, object_id, extra_context)
        if response.status_code != HTTPStatus.OK or not request.user.has_perm("limits_app.view_auditevent"):
            return response
        if self.model.part_of:  # its events are those of what it is a part of
            return response
        query = {"object_type": self.opts.model_name, "object_id": unquote(object_id)}
        log = f"{self.admin_site.name}:limits_app_auditevent_changelist"
        return HttpResponseRedirect(reverse(log, query=query))

    def changelist_view(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        """Show the list, or do the chosen action."""
        with self._acting(request):
            return super().changelist_view(request, *args, **options)

    def response_action(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse | None:
        """Do the chosen action, if what was selected can be rows."""
        if not all(map(is_primary_key, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            self.message_user(request, _("Select rows of this list, and choose the action again."), messages.ERROR)
            return None
        return super().response_action(request, *args, **options)

    def _acting(self, request: HttpRequest) -> AbstractContextManager[object]:
        """The block in which a request changes something; one that only looks keeps nobody waiting."""
        if request.method != "POST":
            return nullcontext()
        using = router.db_for_write(self.model)
        return audit.acting(actor=request.user.get_username(), source="admin", using=using)
