"""Rows under the names that lists show, wherever Django's own pages, messages and log would print their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final

from django.contrib.admin import ModelAdmin
from django.http import HttpRequest, HttpResponse
from django.utils.html import escape
from django.utils.safestring import SafeData, mark_safe

from limits_app.admin.menu import menu
from limits_app.services.policy_words import row_in_words
from limits_app.services.rule_labels import urls_named_in, with_urls

_DELETED: Final = "limits_deleted"
"""The attribute of a request with the name of the row that it deletes."""


def _named(row: Any, name: str) -> Any:
    """A copy of a row for pages, whose text is a name; the text of the row itself remains its label."""
    shown = copy(row)
    shown.shown_as = name
    return shown


class NamedRows(ModelAdmin):  # type: ignore[type-arg]  # generic only in its type stubs
    """Pages, messages and log entries that name rows as lists do."""

    def row_in_words(self, row: Any) -> str:
        """The name of a row in the heading of its page and above it."""
        return row_in_words(row)

    def named(self, row: Any) -> Any:
        """The row for pages and messages that print it."""
        return row if row is None else _named(row, self.row_in_words(row))

    def action_checkbox(self, obj: Any) -> Any:
        """The box that selects a row of a list, which has read the name."""
        return super().action_checkbox(_named(obj, getattr(obj, "in_words", str(obj))))

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **options: Any) -> HttpResponse:
        """Show the form."""
        if options.get("obj") is not None:
            named = self.named(options["obj"])
            context |= {"original": named, "subtitle": str(named)}
        return super().render_change_form(request, context, *args, **options)

    def response_add(self, request: HttpRequest, obj: Any, *args: Any, **options: Any) -> HttpResponse:
        """Continue after a row was added."""
        return super().response_add(request, self.named(obj), *args, **options)

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        """Continue after a row was changed."""
        return super().response_change(request, self.named(obj))

    def render_delete_form(self, request: HttpRequest, context: Any) -> HttpResponse:
        """Ask for confirmation."""
        named = self.named(context["object"])
        # Django 6.1 prints the text beside the row.
        context |= {"object": named, "escaped_object": str(named), "menu": menu(self.admin_site, request)}
        return super().render_delete_form(request, context)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """Return what is deleted with rows, and what prevents it, by URLs in place of generated names."""
        deleted, counts, permissions, protected = super().get_deleted_objects(objs, request)
        return _with_urls(deleted), counts, permissions, _with_urls(protected)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete a row, and keep its name for the message."""
        setattr(request, _DELETED, self.row_in_words(obj))
        super().delete_model(request, obj)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: Any) -> HttpResponse:
        """Continue after a row was deleted."""
        return super().response_delete(request, vars(request).get(_DELETED, obj_display), obj_id)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Show what users of the admin did with a row."""
        response = super().history_view(request, object_id, extra_context)
        context = getattr(response, "context_data", None)
        if context and "object" in context:
            title, row = str(context["title"]), context["object"]
            context |= {"object": self.named(row), "title": title.replace(str(row), self.row_in_words(row))}
        return response

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Log that a row was added."""
        return super().log_addition(request, self.named(obj), message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Log that a row was changed."""
        return super().log_change(request, self.named(obj), message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Log that rows are deleted."""
        rows: Any = [self.named(row) for row in queryset]
        return super().log_deletions(request, rows)


def _with_urls(lines: Sequence[Any]) -> list[Any]:
    """Nested lines of HTML, with URLs in place of the names of resources that were made for their rules."""
    return _replaced(lines, urls_named_in(_flat(lines)))


def _flat(lines: Iterable[Any]) -> Iterator[str]:
    for line in lines:
        if isinstance(line, list):
            yield from _flat(line)
        else:
            yield str(line)


def _replaced(lines: Iterable[Any], urls: Mapping[str, str]) -> list[Any]:
    escaped = {name: escape(url) for name, url in urls.items()}
    replaced: list[Any] = []
    for line in lines:
        if isinstance(line, list):
            replaced.append(_replaced(line, urls))
        elif isinstance(line, SafeData):
            replaced.append(mark_safe(with_urls(str(line), escaped)))  # noqa: S308 - what it adds is escaped
        else:
            replaced.append(with_urls(str(line), urls))
    return replaced
