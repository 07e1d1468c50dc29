"""Admin pages that handle invalid input, detect concurrent edits, and record every change in the audit log."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from http import HTTPStatus
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IS_POPUP_VAR, IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.contrib.admin.widgets import AdminTextareaWidget
from django.db import models, router
from django.db.models import QuerySet
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import escape
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from limits_app import audit
from limits_app.admin.choices import RowField, RowsView
from limits_app.admin.forms import Autocomplete, DateTimeFormField, DateTimeWidget, JSONField, is_primary_key
from limits_app.admin.menu import menu
from limits_app.admin.row_names import NamedRows
from limits_app.models.snapshots import snapshots
from limits_app.services.display import moment
from limits_app.services.rights import Action, may, may_change_rows, may_choose

_NUL = "\0"


class RobustListAdmin(NamedRows):
    """A list below the menu of the app, which handles all invalid filter values in the same way."""

    class Media:
        css = {"all": ["limits_app/lists.css", "limits_app/pages.css"]}

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Stay out of the menu, whose entries lead here."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list."""
        context: dict[str, Any] = {"menu": menu(self.admin_site, request)}
        if IS_POPUP_VAR not in request.GET:
            context["title"] = capfirst(self.opts.verbose_name_plural)
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may view rows; a form that offers them needs only its own permission to find them."""
        if super().has_view_permission(request, obj):
            return True
        match = request.resolver_match
        names = {"autocomplete", f"limits_app_{self.opts.model_name}_autocomplete"}
        return match is not None and match.url_name in names and may_choose(request.user, self.model)

    def get_urls(self) -> list[URLPattern]:
        """Add the address of what pickers find."""
        view = self.admin_site.admin_view(RowsView.as_view(admin_site=self.admin_site))
        name = f"limits_app_{self.opts.model_name}_autocomplete"
        return [path("autocomplete/", view, name=name), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **options: Any) -> HttpResponse:
        """Show the form below the menu."""
        context["menu"] = menu(self.admin_site, request)
        return super().render_change_form(request, context, *args, **options)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Filter; Django raises errors for NUL and for dates at the ends of the calendar."""
        filters = ((name, value) for name, values in request.GET.lists() for value in values if name != SEARCH_VAR)
        if any(_NUL in name + value for name, value in filters):
            raise IncorrectLookupParameters
        try:
            changelist = super().get_changelist_instance(request)
        except (OverflowError, ValueError) as error:
            raise IncorrectLookupParameters from error
        if not (changelist.has_active_filters or changelist.query):
            changelist.full_result_count = changelist.result_count  # without “Show all”, since all are shown
        return changelist

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search; Django's autocompletion raises an error for NUL, which no text contains."""
        if _NUL in search_term:
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)


def version_of(item: Any) -> str:
    """A version that changes with the object and its nested objects in the database."""
    snapshot = snapshots(type(item), [item.pk], item._state.db).get(item.pk)
    state = None if snapshot is None else snapshot.state
    return blake2b(json.dumps(state, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


class AuditedAdmin(RobustListAdmin):
    """Records the user for changes of an object with its inlines, and of selected objects.

    Rejects a form once if the object has changed since the form was opened, unless the form has no version.
    """

    formfield_overrides = {
        models.DateTimeField: {"form_class": DateTimeFormField, "widget": DateTimeWidget},
        models.JSONField: {"form_class": JSONField, "widget": AdminTextareaWidget(attrs={"rows": 4})},
        models.TextField: {"widget": AdminTextareaWidget(attrs={"rows": 3})},
    }

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        """Return the form, with an error if the object has changed."""
        form = super().get_form(request, obj, change=change, **options)
        sent = request.POST.get("_version")
        if obj is None or not sent or sent == version_of(obj):
            return form

        class Outdated(form):  # type: ignore[misc, valid-type]  # a class made of another
            def clean(self) -> Any:
                cleaned = super().clean()
                self.add_error(
                    None,
                    _("This object has been changed since you opened the form. Saving again overwrites that change."),
                )
                return cleaned

        return Outdated

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **options: Any) -> HttpResponse:
        """Add the version of the object to the form."""
        if options.get("obj") is not None:
            context["version"] = version_of(options["obj"])
        return super().render_change_form(request, context, *args, **options)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Use the autocompletion widget that handles invalid input."""
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs["widget"] = Autocomplete(db_field, self.admin_site, using=kwargs.get("using"))
            kwargs["form_class"] = RowField
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Escape a help text, because templates mark it as safe."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None:
            field.help_text = escape(field.help_text)
        return field

    def changeform_view(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        """Show the form, or save it."""
        with self.acting(request):
            return super().changeform_view(request, *args, **options)

    def delete_view(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        """Ask for confirmation, or delete."""
        with self.acting(request):
            return super().delete_view(request, *args, **options)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Show the events of the object, with the permission to view them: changes from elsewhere are among them."""
        response = super().history_view(request, object_id, extra_context)
        if response.status_code != HTTPStatus.OK or not may(request.user, Action.VIEW_HISTORY):
            return response
        if self.model.part_of:  # its events are those of what it is a part of
            return response
        query = {"object_type": self.opts.model_name, "object_id": unquote(object_id)}
        log = f"{self.admin_site.name}:limits_app_auditevent_changelist"
        return HttpResponseRedirect(reverse(log, query=query))

    def changelist_view(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        """Show the list, or run the chosen action."""
        with self.acting(request):
            return super().changelist_view(request, *args, **options)

    def response_action(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse | None:
        """Run the chosen action if the selected keys are valid."""
        if not all(map(is_primary_key, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            self.message_user(
                request, _("Invalid selection: select rows of this list, and run the action again."), messages.ERROR
            )
            return None
        return super().response_action(request, *args, **options)

    def acting(self, request: HttpRequest, reason: str = "") -> AbstractContextManager[object]:
        """The block in which a request changes something; a request that only reads takes no lock."""
        if request.method != "POST":
            return nullcontext()
        using = router.db_for_write(self.model)
        return audit.acting(actor=request.user.get_username(), source="admin", reason=reason, using=using)

    def list_or_index(self, request: HttpRequest) -> str:
        """The list, or without the permission to view it the index of the app."""
        if self.has_view_or_change_permission(request):
            return reverse(f"{self.admin_site.name}:limits_app_{self.opts.model_name}_changelist")
        return reverse(f"{self.admin_site.name}:app_list", args=[self.opts.app_label])


def moment_column(name: str, label: Any) -> Any:
    """The column, or the field to read, of a moment, as all pages show them."""

    @admin.display(description=label, ordering=name, empty_value="-")
    def shown(_page: Any, row: Any) -> str | None:
        return moment(getattr(row, name)) or None

    return shown


class ReadOnly:
    """Rows that cannot be added, changed or deleted."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No one may."""
        return False

    has_change_permission = has_delete_permission = has_add_permission


def site_page(
    site: AdminSite, request: HttpRequest, template: str, *, title: Any, form: BaseForm | None = None, **context: Any
) -> TemplateResponse:
    """Return a page whose links, and the autocompletion of whose form, stay on a site of the admin.

    `template` is a name without its folder and suffix, and `context` has further values of the template.
    """
    request.current_app = site.name  # what Django's own admin does
    for field in () if form is None else form.fields.values():
        if isinstance(field.widget, Autocomplete):
            field.widget.admin_site = site
    values = {**site.each_context(request), "title": title, "form": form, **context}
    return TemplateResponse(request, f"admin/limits_app/{template}.html", values)


def confirmation(
    page: ModelAdmin[Any],
    request: HttpRequest,
    form: BaseForm,
    *,
    title: Any,
    template: str = "confirm_action",
    **context: Any,
) -> TemplateResponse:
    """Return a page that shows a form and asks for confirmation; `context` has further values of the template.

    The model is `listed`, since django-unfold shows the name of the list that `opts` is about in place of the title.
    """
    values = {"listed": page.opts, "media": page.media + form.media, "menu": menu(page.admin_site, request), **context}
    return site_page(page.admin_site, request, template, title=title, form=form, **values)


class PartOf:
    """The permission to change an object of the model `whole` covers its parts."""

    whole: Any

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may view the object."""
        return self._may(request, "view")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may add such objects, or change an existing one."""
        return self._may(request, "add" if obj is None else "change")

    has_change_permission = has_delete_permission = has_add_permission

    def _may(self, request: HttpRequest, verb: str) -> bool:
        return may_change_rows(request.user, verb, self.whole)
