"""The audit log, to read and to revert changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin import AdminSite, AllValuesFieldListFilter, ModelAdmin
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import audit
from limits_app.admin.action_forms import RevertForm
from limits_app.admin.audit_lines import AuditLine, line_of, lines
from limits_app.admin.audit_words import (
    clients_of,
    field_in_words,
    in_sentences,
    kind_in_words,
    objects_in_words,
    source_in_words,
    value_in_words,
)
from limits_app.admin.base import ReadOnly, RobustListAdmin, confirmation
from limits_app.admin.forms import is_primary_key
from limits_app.admin.own_blocks import CONFIRM, block_problem
from limits_app.models import AuditEvent, Entity
from limits_app.services import block_confirmation
from limits_app.services.clients import client_names, events_of, users_named
from limits_app.services.display import moment
from limits_app.services.rights import Action, may, may_revert

_LAST_EVENTS: Final = 100
_MOST_CHOICES: Final = 15
"""How many clients and objects of the last events a filter offers."""


def events_in_words(
    site: AdminSite, events: Sequence[AuditEvent], names: Mapping[str, str] | None, *, client: str = ""
) -> Iterator[dict[str, str]]:
    """Who changed what, when and why, save by save, and where that can be seen in full and undone.

    The names of clients are read at once, unless they were. For the events of a `client`, only these are undone.
    """
    query = {"client": client} if client else None
    undone = audit.undone(events)
    for line in lines(events, names):
        event = line.event
        revert = reverse(f"{site.name}:limits_app_auditevent_revert", args=[event.pk], query=query)
        yield {
            "when": moment(event.when),
            "who": event.actor or source_in_words(event.source),
            "what": line.sentence,
            "reason": line.reason,
            "url": reverse(f"{site.name}:limits_app_auditevent_change", args=[event.pk]),
            "undo": revert if line.can_be_undone and not _is_undone(line, undone) else "",
        }


def _is_undone(line: AuditLine, undone: set[int]) -> bool:
    return all(event.number in undone for event in line.events)


class ClientFilter(admin.SimpleListFilter):
    """By the client whose row or policies were changed."""

    title = _("client")
    parameter_name = "client"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        """The clients that were changed last, and the chosen one."""
        labels = AuditEvent.objects.filter(object_type=Entity._meta.model_name).order_by("-number")
        last = labels.values_list("object_label", flat=True)[:_LAST_EVENTS]
        names = [*filter(None, [request.GET.get(self.parameter_name, "")]), *last]
        return [(name, name) for name in [*dict.fromkeys(names)][:_MOST_CHOICES]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEvent]) -> QuerySet[AuditEvent]:
        """Keep the events of the chosen client."""
        return queryset.filter(events_of([self.value()], queryset.db)) if self.value() else queryset


class ObjectFilter(admin.SimpleListFilter):
    """By the object that was changed."""

    title = _("object")
    parameter_name = "object"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        """The objects that were changed last, and the chosen one."""
        events = AuditEvent.objects.order_by("-number").only("object_type", "object_label", "before", "after")
        kind, _space, label = request.GET.get(self.parameter_name, "").partition(" ")
        chosen = events.filter(object_type=kind, object_label=label)[:1] if kind else ()
        objects: dict[str, AuditEvent] = {}
        for event in [*chosen, *events[:_LAST_EVENTS]]:
            if event.object_label:
                objects.setdefault(f"{event.object_type} {event.object_label}", event)
        offered = dict([*objects.items()][:_MOST_CHOICES])
        return [*zip(offered, objects_in_words([*offered.values()], {}), strict=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEvent]) -> QuerySet[AuditEvent]:
        """Keep the events of the chosen object."""
        kind, _space, label = (self.value() or "").partition(" ")
        return queryset.filter(object_type=kind, object_label=label) if kind else queryset


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
    "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
)


def _table(label: str, heads: Iterable[str], rows: Iterable[Sequence[str]]) -> SafeString:
    """A table whose rows begin with their names."""
    named = [(name, format_html_join("", "<td>{}</td>", [(cell,) for cell in cells])) for name, *cells in rows]
    body = format_html_join("", '<tr><th scope="row">{}</th>{}</tr>', named)
    return format_html(_TABLE, label, format_html_join("", "<th>{}</th>", [(head,) for head in heads]), body)


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnly, RobustListAdmin):
    """The audit log."""

    list_display = ["at", "who", "what", "why"]
    list_display_links = ["what"]
    list_filter = [
        "when",
        ClientFilter,
        ObjectFilter,
        "verb",
        ("object_type", _FilterInWords),
        ("source", _FilterInWords),
    ]
    search_fields = ["actor", "object_label", "reason"]
    search_help_text = _("Search by who did it, object, name of a user, or reason.")
    actions = None
    change_form_template = "admin/limits_app/auditevent/change_form.html"
    fieldsets = [
        (None, {"fields": ["what", "at", "actor", "way", "reason"]}),
        (_("What changed"), {"fields": ["differences"]}),
        (_("In full"), {"classes": ["collapse"], "fields": ["number", "kind", "label", "states"]}),
        (_("Hash chain"), {"classes": ["collapse"], "fields": ["object_id", "previous", "digest"]}),
    ]

    def get_urls(self) -> list[URLPattern]:
        """Offer a page that reverts, besides those to read."""
        view = self.admin_site.admin_view(self.revert_view)
        return [path("<path:object_id>/revert/", view, name="limits_app_auditevent_revert"), *super().get_urls()]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Add links that revert, with the permission for that."""
        return [*self.list_display, "undo"] if may(request.user, Action.REVERT) else [*self.list_display]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Read the events of a page, and say what each save changed, in one row."""
        changelist = super().get_changelist_instance(request)
        rows = []
        for line in lines(changelist.result_list):
            row: Any = line.event
            row.line = line
            rows.append(row)
        is_latest = not changelist.params and changelist.page_num == 1
        undone = audit.undone(row.line.event for row in rows) if is_latest else set()
        for row in rows:
            row.is_undone = _is_undone(row.line, undone)
        changelist.result_list = rows
        return changelist

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search, also for the names of users."""
        events, is_repeating = super().get_search_results(request, queryset, search_term)
        identifiers = users_named(search_term)
        return events | queryset.filter(events_of(identifiers, queryset.db)) if identifiers else events, is_repeating

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one event, and a link to revert it, with the permission for that."""
        event = self._event(object_id)
        context = {**(extra_context or {}), "may_revert": event is not None and self._may_revert(request, event)}
        return super().change_view(request, object_id, form_url, context)

    def row_in_words(self, row: AuditEvent) -> str:
        """What changed."""
        return self.what(row)

    def revert_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for confirmation and revert an event; shows the error if it cannot be reverted."""
        event = self._event(object_id)
        if event is None:
            raise Http404(gettext("The event does not exist."))
        if not self._may_revert(request, event):
            raise PermissionDenied
        line = lines([event])[0] if "alone" in request.GET else line_of(event, request.GET.get("client", ""))
        form = RevertForm(request.POST if request.method == "POST" else None)
        if not form.is_valid():
            return self._confirmation(request, line, form)
        try:
            with audit.acting(
                actor=request.user.get_username(),
                source="admin",
                reason=form.cleaned_data["reason"],
                using=event._state.db,
            ):
                if not self._check_block(request, line, form):
                    return self._confirmation(request, line, form)
                for part in reversed(line.events):
                    if not self._may_revert(request, part):  # depends on whether the object exists now
                        raise PermissionDenied
                    undo = gettext("undo of %(change)s") % {"change": self._change(part)}
                    audit.revert(part, force=form.cleaned_data["force"], reason=form.cleaned_data["reason"] or undo)
        except audit.CannotRevert as error:
            self.message_user(request, str(error), messages.ERROR)
            return self._confirmation(request, line, form)
        self.message_user(request, gettext("Undone: %(what)s.") % {"what": line.sentence}, messages.SUCCESS)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:limits_app_auditevent_changelist"))

    @admin.display(description=_("when"), ordering="number")
    def at(self, event: AuditEvent) -> str:
        """Show the time as other pages do."""
        return moment(event.when)

    @admin.display(description=_("who"), ordering="actor")
    def who(self, event: AuditEvent) -> str:
        """Show the actor, or without one the source."""
        return event.actor or source_in_words(event.source)

    @admin.display(description=_("what"), ordering="object_label")
    def what(self, event: Any) -> str:
        """Say what changed."""
        return str(event.line.sentence) if hasattr(event, "line") else lines([event])[0].sentence

    @admin.display(description=_("reason"), ordering="reason")
    def why(self, event: Any) -> str:
        """Show why it was saved."""
        return str(event.line.reason) or "-"

    @admin.display(description=_("undo"))
    def undo(self, event: Any) -> SafeString | str:
        """Lead to the page that reverts."""
        if event.is_undone:
            return gettext("undone")
        if not event.line.can_be_undone:
            return "-"
        url = reverse(f"{self.admin_site.name}:limits_app_auditevent_revert", args=[event.pk])
        label = '<a href="{}">{}<span class="visually-hidden"> {}</span></a>'
        return format_html(label, url, gettext("Undo…"), self.what(event))

    @admin.display(description=_("type of object"), ordering="object_type")
    def kind(self, event: AuditEvent) -> str:
        """Say what kind of object it is about."""
        return kind_in_words(event.object_type)

    @admin.display(description=_("object"), ordering="object_label")
    def label(self, event: AuditEvent) -> str:
        """Name the object as the sentence does."""
        return objects_in_words([event], client_names(clients_of([event])))[0]

    @admin.display(description=_("source"), ordering="source")
    def way(self, event: AuditEvent) -> str:
        """Show the source."""
        return source_in_words(event.source)

    @admin.display(description=_("differences"))
    def differences(self, event: AuditEvent) -> SafeString:
        """Show each changed field."""
        return self._differences(event, gettext("before"), gettext("after"))

    def _differences(self, event: AuditEvent, before: str, after: str) -> SafeString:
        """A table of the changed fields, with the heads of the values."""
        differences = audit.differences(event.before, event.after)
        kind = event.object_type
        rows = [
            (
                field_in_words(kind, difference.field),
                str(_CHANGES[difference.change]),
                value_in_words(kind, difference.field, difference.before),
                value_in_words(kind, difference.field, difference.after),
            )
            for difference in differences
        ]
        heads = gettext("field"), gettext("change"), before, after
        return _table(gettext("differences"), heads, rows)

    @admin.display(description=_("all fields"))
    def states(self, event: AuditEvent) -> SafeString:
        """Show each field of the object before and after."""
        kind, states = event.object_type, [event.before, event.after]
        values = [
            {difference.field: difference.after for difference in audit.differences(None, state)} if state else {}
            for state in states
        ]
        rows = [
            (field_in_words(kind, field), *[value_in_words(kind, field, state.get(field)) for state in values])
            for field in values[0] | values[1]
        ]
        return _table(gettext("all fields"), (gettext("field"), gettext("before"), gettext("after")), rows)

    def _event(self, object_id: str) -> AuditEvent | None:
        key = unquote(object_id)
        return AuditEvent.objects.filter(pk=key).first() if is_primary_key(key) else None

    def _may_revert(self, request: HttpRequest, event: AuditEvent) -> bool:
        """Whether the user has the permissions that reverting this event needs."""
        try:
            return may_revert(request.user, event)
        except audit.CannotRevert:
            return False

    def _check_block(self, request: HttpRequest, line: AuditLine, form: RevertForm) -> bool:
        """Whether it makes no block that needs a confirmation, or has it; otherwise the form shows the error."""
        problem = block_problem(request, map(block_confirmation.revert_of, line.events))
        if problem and not form.cleaned_data[CONFIRM]:
            form.add_error(CONFIRM, problem)
        return form.is_valid()

    def _confirmation(self, request: HttpRequest, line: AuditLine, form: RevertForm) -> HttpResponse:
        title = gettext("Undo “%(what)s”?") % {"what": line.sentence}
        more = 0 if "alone" in request.GET or "client" not in request.GET else len(line_of(line.event).events)
        context = {
            "event": line.event,
            "more": more if more > len(line.events) else 0,
            "parts": [*map(self._part, reversed(line.events))],
            "needs_force": bool(form.data.get("force")) or any(map(audit.changed_since, line.events)),
        }
        return confirmation(self, request, form, title=title, template="auditevent/revert", **context)

    def _part(self, event: AuditEvent) -> dict[str, Any]:
        """One change of a save that is undone: what happens to its object, and the values now and then."""
        reverting = AuditEvent(object_type=event.object_type, before=audit.state_now(event), after=event.before)
        return {
            "event": event,
            "label": self.label(event),
            "what": in_sentences([event])[0],
            "change": self._change(event),
            "differences": self._differences(reverting, gettext("now"), gettext("after the undo")),
        }

    def _change(self, event: AuditEvent) -> str:
        """A change by who made it and when, such as “carol's change of 2026-11-28 12:17 (UTC)”."""
        return gettext("%(who)s's change of %(when)s") % {"who": self.who(event), "when": moment(event.when)}
