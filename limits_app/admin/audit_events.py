"""The audit log, to read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from limits_app.models import AuditEvent

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    ModelAdmin = admin.ModelAdmin[AuditEvent]
else:
    ModelAdmin = admin.ModelAdmin  # it takes no parameters when the code runs

__all__ = ["AuditEventAdmin"]


class AuditEventAdmin(ModelAdmin):
    """Who changed what."""

    list_display = ["when", "actor", "source", "verb", "object_type", "object_label", "reason"]
    list_filter = ["when", "verb", "object_type", "source"]
    search_fields = ["actor", "object_label", "reason"]
    fields = [
        "when",
        "actor",
        "source",
        "verb",
        "object_type",
        "object_id",
        "object_label",
        "before_text",
        "after_text",
        "reason",
    ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: AuditEvent | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AuditEvent | None = None) -> bool:
        """Nobody."""
        return False

    @admin.display(description=_("before"))
    def before_text(self, event: AuditEvent) -> SafeString:
        """Show the object as it was."""
        return _readable(event.before)

    @admin.display(description=_("after"))
    def after_text(self, event: AuditEvent) -> SafeString:
        """Show the object as it became."""
        return _readable(event.after)


def _readable(snapshot: Any) -> SafeString:
    return format_html("<pre>{}</pre>", json.dumps(snapshot, indent=2, ensure_ascii=False))
