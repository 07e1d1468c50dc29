"""Admin pages whose every change is written to the audit log, in the transaction of the change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import models, router, transaction
from django.utils.translation import gettext as _

from limits_app import audit
from limits_app.admin.json_field import JSONField
from limits_app.admin.primary_keys import Autocomplete, is_primary_key
from limits_app.models import Configuration, Verb

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse

    ModelAdmin = admin.ModelAdmin[Configuration]
    ModelForm = forms.ModelForm[Configuration]
else:
    ModelAdmin = admin.ModelAdmin  # they take no parameters when the code runs
    ModelForm = forms.ModelForm

__all__ = ["AuditedAdmin", "AuditedForm"]


class AuditedForm(ModelForm):
    """Remembers the object as it was before the form changed it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.before = None if self.instance.pk is None else audit.snapshot(self.instance)


class AuditedAdmin(ModelAdmin):
    """Writes one event for each object that is created, changed or deleted, with its inlines."""

    form = AuditedForm
    formfield_overrides = {models.JSONField: {"form_class": JSONField}}

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Give fields with autocompletion the widget that takes bad input."""
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs["widget"] = Autocomplete(db_field, self.admin_site, using=kwargs.get("using"))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def response_action(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse | None:
        """Do the chosen action, if what was selected can be rows."""
        if not all(map(is_primary_key, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            self.message_user(request, _("Select rows of this list, and choose the action again."), messages.ERROR)
            return None
        return super().response_action(request, *args, **options)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save the inlines, and record the whole."""
        super().save_related(request, form, formsets, change)
        item: Configuration = form.instance
        verb = Verb.UPDATE if change else Verb.CREATE
        self._record(request, verb, item, before=form.before, after=audit.snapshot(item))

    def delete_model(self, request: HttpRequest, obj: Configuration) -> None:
        """Record the deletion, and do it."""
        with transaction.atomic(using=obj._state.db):
            self._record(request, Verb.DELETE, obj, before=audit.snapshot(obj), after=None)
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Configuration]) -> None:
        """Record the deletion of each object, and delete them all or none."""
        with transaction.atomic(using=router.db_for_write(self.model)):
            for item in queryset:
                self._record(request, Verb.DELETE, item, before=audit.snapshot(item), after=None)
            super().delete_queryset(request, queryset)

    def _record(
        self,
        request: HttpRequest,
        verb: Verb,
        item: Configuration,
        *,
        before: audit.Snapshot | None,
        after: audit.Snapshot | None,
    ) -> None:
        audit.record(
            verb,
            item,
            before=before,
            after=after,
            actor=request.user.get_username(),
            source="admin",
            reason=getattr(item, "reason", ""),
        )
