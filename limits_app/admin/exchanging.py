"""Import and export of lists as files, where the app `import_export` is installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext
from import_export.admin import ImportMixin
from import_export.formats.base_formats import CSV, JSON

from limits_app import audit
from limits_app.admin.large_lists import LargeListAdmin, Link
from limits_app.admin.tables import TABLES
from limits_app.models import AuditEvent

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.urls import URLPattern

__all__ = ["ExchangingAdmin"]

_FORMATS: Final = {"csv": CSV, "json": JSON}


class ExchangingAdmin(ImportMixin, LargeListAdmin):  # type: ignore[misc]  # of a package without types
    """Files are shown as differences first, then change all rows or none, and are audited as an import.

    Whoever may add and change rows may import them; whoever may look at them may export them, as they are filtered.
    """

    change_list_template = "admin/limits_app/change_list.html"
    import_export_change_list_template = None
    import_template_name = "admin/limits_app/import.html"
    import_formats = tuple(_FORMATS.values())
    import_error_display = ("message", "row")
    skip_admin_log = True

    def get_urls(self) -> list[URLPattern]:
        """Offer exports beside the pages of imports."""
        view = self.admin_site.admin_view(self.export_view)
        name = f"limits_app_{self.opts.model_name}_export"
        urls: list[URLPattern] = super().get_urls()
        return [path("export/<str:kind>/", view, name=name), *urls]

    def links(self, request: HttpRequest) -> Iterable[Link]:
        """Point at imports and exports, for whoever may do them."""
        yield from super().links(request)
        here = f"{self.admin_site.name}:limits_app_{self.opts.model_name}"
        if self.has_import_permission(request):
            yield Link(reverse(f"{here}_import"), gettext("Import"))
        query = request.GET.urlencode()
        for kind in _FORMATS:
            address = reverse(f"{here}_export", args=[kind]) + (f"?{query}" if query else "")
            yield Link(address, gettext("Export as %(format)s") % {"format": kind.upper()})

    def has_import_permission(self, request: HttpRequest) -> bool:
        """Whoever may add and change rows."""
        return self.has_add_permission(request) and self.has_change_permission(request)

    def get_import_resource_classes(self, request: HttpRequest) -> list[Any]:
        """Give the table of the model."""
        return [TABLES[self.model]]

    def get_import_data_kwargs(self, **options: Any) -> dict[str, Any]:
        """Change all rows or none."""
        return {**super().get_import_data_kwargs(**options), "rollback_on_validation_errors": True}

    def process_import(self, request: HttpRequest, **options: Any) -> HttpResponse:
        """Do what was shown, and say who did it."""
        actor = request.user.get_username()
        with audit.acting(actor=actor, source="import", using=router.db_for_write(AuditEvent)):
            response: HttpResponse = super().process_import(request, **options)
            return response

    def process_result(self, result: Any, request: HttpRequest) -> HttpResponse:
        """Say what was done; what could not be done has changed nothing."""
        if result.has_errors() or result.has_validation_errors():
            problem = gettext("Nothing was imported, because rows have changed since: import the file again.")
            self.message_user(request, problem, messages.ERROR)
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:limits_app_{self.opts.model_name}_import"))
        response: HttpResponse = super().process_result(result, request)
        if warning := getattr(result, "warning", ""):
            self.message_user(request, warning, messages.WARNING)
        return response

    def export_view(self, request: HttpRequest, kind: str) -> HttpResponse:
        """Give the rows of the list, as it is filtered, as a file; what it cannot be filtered by, the list answers."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if kind not in _FORMATS:
            raise Http404(gettext("There is no such format."))
        table, form = TABLES[self.model](), _FORMATS[kind]()
        try:
            rows = self.get_changelist_instance(request).get_queryset(request)
        except IncorrectLookupParameters:
            there = reverse(f"{self.admin_site.name}:limits_app_{self.opts.model_name}_changelist")
            return HttpResponseRedirect(f"{there}?{request.GET.urlencode()}")
        response = HttpResponse(form.export_data(table.export(queryset=rows)), content_type=form.get_content_type())
        response["Content-Disposition"] = f'attachment; filename="{self.opts.model_name}.{kind}"'
        return response
