"""Import and export of lists, if the app import_export is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from diff_match_patch import diff_match_patch
from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied, ValidationError
from django.db import router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext
from import_export.admin import ImportMixin
from import_export.fields import Field
from import_export.formats.base_formats import CSV, JSON
from import_export.forms import ConfirmImportForm
from import_export.resources import Diff, ModelResource
from import_export.widgets import ForeignKeyWidget, JSONWidget, Widget
from tablib import Dataset

from limits_app import audit
from limits_app.admin.actions import dropped_limits_warning
from limits_app.admin.base import AuditedAdmin
from limits_app.admin.menu import menu
from limits_app.admin.own_blocks import CONFIRM, ConfirmBlock, block_problem
from limits_app.models import AuditEvent, Counted, Endpoint, Entity, Plan, Policy, Pool, Resource, registered
from limits_app.models.limit import limit_texts
from limits_app.models.validators import validate_json
from limits_app.services import block_confirmation, definitions
from limits_app.services.safe_text import csv_lines, unguarded

_MARKS: Final = {-1: "<del>{}</del>", 0: "{}", 1: "<ins>{}</ins>"}


class PlainDiff(Diff):  # type: ignore[misc]  # of a package without types
    """What a row was and will be, in words that are styled elsewhere."""

    def as_html(self) -> list[SafeString]:
        """Mark deleted and added text."""
        return [
            self._marked("" if self.new else before, after)
            for before, after in zip(self.left, self.right, strict=False)
        ]

    def _marked(self, before: object, after: object) -> SafeString:
        tool = diff_match_patch()
        parts = tool.diff_main(str(before), str(after))
        tool.diff_cleanupSemantic(parts)
        return mark_safe("".join(_MARKS[way].format(escape(text)) for way, text in parts))  # noqa: S308 - escaped


class Named(ForeignKeyWidget):  # type: ignore[misc]
    """A related row by its name."""

    def clean(self, value: Any, row: Any = None, **options: Any) -> Any:
        """Find the row; raises ValueError if it does not exist."""
        try:
            return super().clean(value, row, **options)
        except ObjectDoesNotExist:
            what = {"model": self.model._meta.verbose_name, "name": value}
            raise ValueError(gettext("%(model)s %(name)s does not exist: create it first") % what) from None


class TimestampWidget(Widget):  # type: ignore[misc]
    """A date and time as ISO 8601 has it, exact and with its zone."""

    def clean(self, value: Any, row: Any = None, **options: Any) -> datetime | None:
        """Parse it; raises ValueError for an invalid timestamp or one without a time zone."""
        if not value:
            return None
        moment = datetime.fromisoformat(str(value))
        if moment.tzinfo is None:
            raise ValueError(gettext("must be a timestamp with a time zone, such as 2026-03-04T12:00:00+00:00"))
        return moment

    def render(self, value: Any, obj: Any = None, **options: Any) -> str:
        """Write it."""
        return "" if value is None else value.isoformat()


class JsonWidget(JSONWidget):  # type: ignore[misc]
    """JSON that databases can store, as text or as data."""

    def clean(self, value: Any, row: Any = None, **options: Any) -> Any:
        """Read it."""
        document = json.loads(value) if isinstance(value, str) and value else value
        validate_json(document)
        return document

    def render(self, value: Any, obj: Any = None, **options: Any) -> str:
        """Serialize it in canonical form."""
        return json.dumps(value, ensure_ascii=False, sort_keys=True)


class Notations(JsonWidget):
    """Limits as text, such as `calls=60/min tpm=1M/day@UTC`, or as a list in JSON."""

    def clean(self, value: Any, row: Any = None, **options: Any) -> Any:
        """Read them."""
        if isinstance(value, str) and not value.lstrip().startswith(("[", "{")):
            return value.split()
        return super().clean(value, row, **options)

    def render(self, value: Any, obj: Any = None, **options: Any) -> str:
        """Write them as text, separated by spaces."""
        return " ".join(value)


class LimitsField(Field):  # type: ignore[misc]
    """The limits of a policy: those of the file until they are saved, otherwise the saved ones."""

    def get_value(self, instance: Any, **options: Any) -> list[str]:
        """Return them as text, in the order of their keys."""
        if instance is None:
            return []
        of_file: list[str] | None = instance.__dict__.get("limits_to_be")
        return limit_texts(instance.limits.all() if instance.pk else ()) if of_file is None else of_file

    def save(self, instance: Any, row: Mapping[str, Any], is_m2m: bool = False, **options: Any) -> None:
        """Store the limits of the file; raises ValueError for invalid ones."""
        instance.limits_to_be = limit_texts(definitions.read_limits(self.clean(row)))


class ExchangeTable(ModelResource):  # type: ignore[misc]
    """Files change all rows or none; unchanged rows are skipped."""

    class Meta:
        clean_model_instances = True
        skip_unchanged = True
        report_skipped = True
        use_transactions = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._changes: list[block_confirmation.BlockedChange] = []

    def before_import(self, dataset: Any, **options: Any) -> None:
        """Reject a file without the columns that identify rows."""
        missing = [name for name in self._meta.import_id_fields if name not in (dataset.headers or ())]
        if missing:
            raise ValidationError(
                gettext("The file must have the columns that identify rows: %s.") % ", ".join(missing)
            )

    def skip_row(self, instance: Any, original: Any, *args: Any, **options: Any) -> bool:
        """Skip unchanged rows, and note how others change."""
        if original.pk is not None and super().skip_row(instance, original, *args, **options):
            return True
        before = None if original.pk is None else block_confirmation.state_of(original)
        self._changes.append((self._meta.model, before, block_confirmation.state_of(instance)))
        return False

    def after_import(self, dataset: Any, result: Any, **options: Any) -> None:
        """Note how the rows change."""
        super().after_import(dataset, result, **options)
        result.changes = self._changes

    def get_diff_class(self) -> type[Diff]:
        """Return the class that renders differences."""
        return PlainDiff


class ResourceRows(ExchangeTable):
    """Resources."""

    pool = Field("pool", "pool", Named(Pool, "name"))

    class Meta(ExchangeTable.Meta):
        model = Resource
        fields = registered(Resource).fields
        import_id_fields = registered(Resource).identity


class EntityRows(ExchangeTable):
    """Entities; parents come before their children."""

    parent = Field("parent", "parent", Named(Entity, "identifier"))
    plan = Field("plan", "plan", Named(Plan, "name"))
    billing_from = Field("billing_from", "billing_from", TimestampWidget())
    metadata = Field("metadata", "metadata", JsonWidget(), default=dict)

    class Meta(ExchangeTable.Meta):
        model = Entity
        fields = registered(Entity).fields
        import_id_fields = registered(Entity).identity


class PolicyRows(ExchangeTable):
    """Policies with their limits."""

    resource = Field("resource", "resource", Named(Resource, "name"))
    entity = Field("entity", "entity", Named(Entity, "identifier"))
    plan = Field("plan", "plan", Named(Plan, "name"))
    valid_from = Field("valid_from", "valid_from", TimestampWidget())
    valid_until = Field("valid_until", "valid_until", TimestampWidget())
    limits = LimitsField("limits", "limits", Notations())

    class Meta(ExchangeTable.Meta):
        model = Policy
        fields = (*registered(Policy).fields, "limits")
        import_id_fields = registered(Policy).identity

    def before_import(self, dataset: Any, **options: Any) -> None:
        """Add the columns that files without plans and totals leave out."""
        for name, value in (("plan", ""), ("counted", Counted.EACH.value)):
            if dataset.headers and name not in dataset.headers:
                dataset.append_col([value] * dataset.height, header=name)
        super().before_import(dataset, **options)

    def get_queryset(self) -> Any:
        """All policies with the data of their rows."""
        return super().get_queryset().select_related("resource", "entity", "plan").prefetch_related("limits")

    def after_save_instance(self, instance: Policy, row: Mapping[str, Any], **options: Any) -> None:
        """Save the limits of the file; without a column of limits they stay unchanged."""
        imported: object = instance.__dict__.pop("limits_to_be", None)
        try:
            definition = definitions.read(instance, {} if imported is None else {"limits": imported}, partial=True)
        except definitions.InvalidDefinition as error:
            raise ValidationError(str(error)) from error
        if imported is not None:
            definitions.save(definition)

    def after_import(self, dataset: Any, result: Any, **options: Any) -> None:
        """Note which limits the changed policies drop; of a preview, too, what it would change is there until now."""
        super().after_import(dataset, result, **options)
        if not result.has_errors() and not result.has_validation_errors():
            changed = [row.object_id for row in result if row.is_new() or row.is_update()]
            result.warning = dropped_limits_warning(changed)


class EndpointRules(ExchangeTable):
    """Endpoints."""

    resource = Field("resource", "resource", Named(Resource, "name"))
    amounts = Field("amounts", "amounts", JsonWidget(), default=dict)

    class Meta(ExchangeTable.Meta):
        model = Endpoint
        fields = registered(Endpoint).fields
        import_id_fields = ("name",)


TABLES: Final[Mapping[type[Any], type[ExchangeTable]]] = {
    Resource: ResourceRows,
    Entity: EntityRows,
    Policy: PolicyRows,
    Endpoint: EndpointRules,
}


class GuardedCSV(CSV):  # type: ignore[misc]
    """CSV that a spreadsheet can open without executing anything; the import restores the text."""

    @staticmethod
    def pieces(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
        """Write rows as they are read."""
        return csv_lines(columns, rows)

    def create_dataset(self, in_stream: Any, **options: Any) -> Any:
        """Read the rows, with the text that was exported."""
        dataset = super().create_dataset(in_stream, **options)
        return Dataset(*[[*map(unguarded, row)] for row in dataset], headers=dataset.headers)


class PiecewiseJSON(JSON):  # type: ignore[misc]
    """A list of objects."""

    @staticmethod
    def pieces(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
        """Write rows as they are read."""
        before = "["
        for row in rows:
            yield before + json.dumps(dict(zip(columns, row, strict=True)), default=str)
            before = ",\n"
        yield "[]" if before == "[" else "]"


_FORMATS: Final[Mapping[str, Any]] = {"csv": GuardedCSV, "json": PiecewiseJSON}


class ConfirmImport(ConfirmBlock, ConfirmImportForm):  # type: ignore[misc]  # of a package without types
    """The file that was shown, and the box that confirms the blocks of it that need that."""


class ImportExportAdmin(ImportMixin, AuditedAdmin):  # type: ignore[misc]  # of a package without types
    """Files are shown as differences first, then change all rows or none, and are audited as an import.

    Importing needs the permissions to add and change rows, exporting the one to view them.
    An export has the rows of the list as it is filtered.
    """

    change_list_template = "admin/limits_app/change_list.html"
    import_export_change_list_template = None
    import_template_name = "admin/limits_app/import.html"
    import_formats = tuple(_FORMATS.values())
    import_error_display = ("message", "row")
    confirm_form_class = ConfirmImport
    skip_admin_log = True

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of exports."""
        view = self.admin_site.admin_view(self.export_view)
        name = f"limits_app_{self.opts.model_name}_export"
        urls: list[URLPattern] = super().get_urls()
        return [path("export/<str:kind>/", view, name=name), *urls]

    def has_import_permission(self, request: HttpRequest) -> bool:
        """Whether the user may add and change rows."""
        return self.has_add_permission(request) and self.has_change_permission(request)

    def get_import_resource_classes(self, request: HttpRequest) -> list[Any]:
        """Give the table of the model."""
        return [TABLES[self.model]]

    def get_import_data_kwargs(self, **options: Any) -> dict[str, Any]:
        """Change all rows or none."""
        return {**super().get_import_data_kwargs(**options), "rollback_on_validation_errors": True}

    def is_skip_import_confirm_enabled(self) -> bool:
        """Always show what a file changes first, whatever IMPORT_EXPORT_SKIP_ADMIN_CONFIRM is."""
        return False

    def import_action(self, request: HttpRequest, **options: Any) -> HttpResponse:
        """Show what a file changes, with the box that confirms blocks only where it is needed."""
        response: Any = super().import_action(request, **options)
        response.context_data["menu"] = menu(self.admin_site, request)
        form = response.context_data.get("confirm_form")
        if form is not None:
            problem = block_problem(request, response.context_data["result"].changes)
            form.fields[CONFIRM].required = True
            if problem:
                response.context_data["block_problem"] = problem
            else:
                del form.fields[CONFIRM]
        return response  # type: ignore[no-any-return]  # of a package without types

    def process_dataset(self, dataset: Any, form: Any, request: HttpRequest, **options: Any) -> Any:
        """Import the rows, or none of them where a block needs a confirmation and has none."""
        result = super().process_dataset(dataset, form, request, **options)
        is_confirmed = form.cleaned_data.get(CONFIRM)
        result.block_problem = "" if is_confirmed else block_problem(request, getattr(result, "changes", ()))
        if result.block_problem:
            transaction.set_rollback(True, using=router.db_for_write(AuditEvent))
        return result

    def process_import(self, request: HttpRequest, **options: Any) -> HttpResponse:
        """Import the confirmed rows with the user as actor."""
        actor = request.user.get_username()
        with audit.acting(actor=actor, source="import", using=router.db_for_write(AuditEvent)):
            response: HttpResponse = super().process_import(request, **options)
            return response

    def process_result(self, result: Any, request: HttpRequest) -> HttpResponse:
        """Show the result; a failed import has changed nothing."""
        problem = result.block_problem
        if result.has_errors() or result.has_validation_errors():
            problem = gettext("Nothing was imported, because rows have changed since: import the file again.")
        if problem:
            self.message_user(request, problem, messages.ERROR)
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:limits_app_{self.opts.model_name}_import"))
        response: HttpResponse = super().process_result(result, request)
        if warning := getattr(result, "warning", ""):
            self.message_user(request, warning, messages.WARNING)
        return response

    def export_view(self, request: HttpRequest, kind: str) -> HttpResponseBase:
        """Return the filtered rows of the list as a file; the list handles invalid filters."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if kind not in _FORMATS:
            raise Http404(gettext("Unknown format."))
        table, form = TABLES[self.model](), _FORMATS[kind]()
        try:
            rows = self.get_changelist_instance(request).get_queryset(request)
        except IncorrectLookupParameters:
            changelist_url = reverse(f"{self.admin_site.name}:limits_app_{self.opts.model_name}_changelist")
            return HttpResponseRedirect(f"{changelist_url}?{request.GET.urlencode()}")
        columns, records = table.get_export_headers(), map(table.export_resource, table.iter_queryset(rows))
        response = StreamingHttpResponse(form.pieces(columns, records), content_type=form.get_content_type())
        response["Content-Disposition"] = f'attachment; filename="{self.opts.model_name}.{kind}"'
        return response
