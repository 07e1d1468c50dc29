"""The audit log, to read and to revert changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin import AdminSite, AllValuesFieldListFilter
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import FieldDoesNotExist, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import yesno
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import audit
from limits_app.admin.action_forms import RevertForm
from limits_app.admin.base import ReadOnly, RobustListAdmin, confirmation
from limits_app.admin.formatting import moment
from limits_app.admin.forms import is_primary_key
from limits_app.admin.own_blocks import CONFIRM, block_problem
from limits_app.audit.reverting import MODELS
from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent
from limits_app.services import blocks
from limits_app.services.limit_words import limit_name
from limits_app.services.rights import may_revert

_SOURCES: Final[Mapping[str, Any]] = {
    "admin": _("admin"),
    "api": _("API"),
    "code": _("code"),
    "command": _("command"),
    "import": _("import"),
    "service": _("app function"),
}
_OTHER_KINDS: Final[Mapping[str, Any]] = {
    "state": _("usage"),
    "auditevent": _("audit log"),
    "erasure": _("erased identifier"),
}


def source_in_words(source: str) -> str:
    """Return the label of a source; sites can use custom sources."""
    return str(_SOURCES.get(source, source))


def kind_in_words(object_type: str) -> str:
    """Return the label of the object type of an event."""
    model = MODELS.get(object_type)
    return str(_OTHER_KINDS.get(object_type, object_type) if model is None else model._meta.verbose_name)


def event_in_words(site: AdminSite, event: AuditEvent) -> dict[str, str]:
    """Who changed what, when and why, and where that can be seen in full and undone."""
    revert = reverse(f"{site.name}:limits_app_auditevent_revert", args=[event.pk])
    return {
        "when": moment(event.when, "SHORT_DATETIME_FORMAT"),
        "who": event.actor or source_in_words(event.source),
        "what": f"{event.get_verb_display()}: {kind_in_words(event.object_type)} {event.object_label}",
        "reason": event.reason,
        "url": reverse(f"{site.name}:limits_app_auditevent_change", args=[event.pk]),
        "undo": revert if event.object_type in MODELS else "",
    }


def field_in_words(object_type: str, field: str) -> str:
    """Name a field as its form does, or, within parts such as `limits tpm: text`, that of the part."""
    field_label = _found(object_type, field)
    label = getattr(field_label, "verbose_name", None)  # the other side of a relation, such as candidates, has none
    if label is None:
        return field
    parts = field.replace(f"limits {CallLimit.key}: ", f"limits {limit_name(CallLimit.key)}: ").split(": ")
    return ": ".join([*parts[:-1], str(label)])


def value_in_words(object_type: str, field: str, value: Any) -> str:
    """Say what a field has: of what can be chosen what the form calls it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(yesno(value))
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(dict(getattr(_found(object_type, field), "flatchoices", ())).get(value, value))


def _found(object_type: str, field: str) -> Any:
    """The field of a model that a difference is about; None where there was one once."""
    model: Any = MODELS.get(object_type)
    *parts, name = field.split(": ")
    try:
        for part in parts:
            model = model and model._meta.get_field(part.partition(" ")[0]).related_model
        return model._meta.get_field(name) if model else None
    except FieldDoesNotExist:
        return None


class _FilterInWords(AllValuesFieldListFilter):
    """Offers the values that occur, in words."""

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Return the choices."""
        words = source_in_words if self.field_path == "source" else kind_in_words
        for choice in super().choices(changelist):
            yield {**choice, "display": words(str(choice["display"]))}


_CHANGES: Final = {
    audit.FieldChange.ADDED: _("added"),
    audit.FieldChange.REMOVED: _("removed"),
    audit.FieldChange.CHANGED: _("changed"),
}
_TABLE: Final = (
    '<div class="limits-differences" tabindex="0" role="region" aria-label="{}">'
    "<table><thead><tr><th>{}</th><th>{}</th><th>{}</th><th>{}</th></tr></thead><tbody>{}</tbody></table></div>"
)
_ROW: Final = '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>'


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnly, RobustListAdmin):
    """The audit log."""

    list_display = ["number", "when", "actor", "verb", "kind", "object_label", "reason", "way"]
    list_filter = ["when", "verb", ("object_type", _FilterInWords), ("source", _FilterInWords)]
    search_fields = ["actor", "object_label", "reason"]
    search_help_text = _("Search by actor, object or reason.")
    actions = None
    change_form_template = "admin/limits_app/auditevent/change_form.html"
    fieldsets = [
        (None, {"fields": ["number", "when", "actor", "way", "verb", "kind", "object_label", "reason"]}),
        (_("What changed"), {"fields": ["differences"]}),
        (_("In full"), {"classes": ["collapse"], "fields": ["object_id", "before", "after", "previous", "digest"]}),
    ]

    def get_urls(self) -> list[URLPattern]:
        """Offer a page that reverts, besides those to read."""
        view = self.admin_site.admin_view(self.revert_view)
        return [path("<path:object_id>/revert/", view, name="limits_app_auditevent_revert"), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one event, and a link to revert it, with the permission for that."""
        event = self._event(object_id)
        context = {**(extra_context or {}), "may_revert": event is not None and self._may_revert(request, event)}
        return super().change_view(request, object_id, form_url, context)

    def revert_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for confirmation and revert an event; shows the error if it cannot be reverted."""
        event = self._event(object_id)
        if event is None:
            raise Http404(gettext("The event does not exist."))
        if not self._may_revert(request, event):
            raise PermissionDenied
        form = RevertForm(request.POST if request.method == "POST" else None)
        if not form.is_valid():
            return self._confirmation(request, event, form)
        try:
            with audit.acting(
                actor=request.user.get_username(),
                source="admin",
                reason=form.cleaned_data["reason"],
                using=event._state.db,
            ):
                if not self._may_revert(request, event):  # depends on whether the object exists now
                    raise PermissionDenied
                if not self._check_block(request, event, form):
                    return self._confirmation(request, event, form)
                audit.revert(event, force=form.cleaned_data["force"])
        except audit.CannotRevert as error:
            self.message_user(request, str(error), messages.ERROR)
            return self._confirmation(request, event, form)
        self.message_user(request, gettext("Event %(number)s was reverted.") % {"number": event.number})
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:limits_app_auditevent_changelist"))

    @admin.display(description=_("type of object"), ordering="object_type")
    def kind(self, event: AuditEvent) -> str:
        """Say what kind of object it is about."""
        return kind_in_words(event.object_type)

    @admin.display(description=_("source"), ordering="source")
    def way(self, event: AuditEvent) -> str:
        """Show the source."""
        return source_in_words(event.source)

    @admin.display(description=_("differences"))
    def differences(self, event: AuditEvent) -> SafeString:
        """Show each changed field."""
        differences = audit.differences(event.before, event.after)
        kind = event.object_type
        rows = [
            (
                field_in_words(kind, difference.field),
                _CHANGES[difference.change],
                value_in_words(kind, difference.field, difference.before),
                value_in_words(kind, difference.field, difference.after),
            )
            for difference in differences
        ]
        body = format_html_join("", _ROW, rows)
        heads = gettext("differences"), gettext("field"), gettext("change"), gettext("before"), gettext("after")
        return format_html(_TABLE, *heads, body)

    def _event(self, object_id: str) -> AuditEvent | None:
        key = unquote(object_id)
        return AuditEvent.objects.filter(pk=key).first() if is_primary_key(key) else None

    def _may_revert(self, request: HttpRequest, event: AuditEvent) -> bool:
        """Whether the user has the permissions that reverting this event needs."""
        try:
            return may_revert(request.user, event)
        except audit.CannotRevert:
            return False

    def _check_block(self, request: HttpRequest, event: AuditEvent, form: RevertForm) -> bool:
        """Whether it makes no block that needs a confirmation, or has it; otherwise the form shows the error."""
        problem = block_problem(request, [blocks.revert_of(event)])
        if problem and not form.cleaned_data[CONFIRM]:
            form.add_error(CONFIRM, problem)
        return form.is_valid()

    def _confirmation(self, request: HttpRequest, event: AuditEvent, form: RevertForm) -> HttpResponse:
        title = gettext("Revert event %(number)s?") % {"number": event.number}
        reverting = AuditEvent(object_type=event.object_type, before=audit.state_now(event), after=event.before)
        context = {"event": event, "differences": self.differences(reverting)}
        return confirmation(self, request, form, title=title, template="auditevent/revert", **context)
