"""Read-only pages: effective limits, usage, live traffic, and the preview of a policy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.urls import path

from limits_app.admin.pages.explain import explain_page
from limits_app.admin.pages.limit import limit_page
from limits_app.admin.pages.live import live_page, live_state
from limits_app.admin.pages.preview import preview_page
from limits_app.admin.pages.usage import usage_page
from limits_app.models import UsageSnapshot

__all__ = ["UsageAdmin"]

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.urls import URLPattern

    from limits_app.admin.pages.common import View

    ModelAdmin = admin.ModelAdmin[UsageSnapshot]
else:
    ModelAdmin = admin.ModelAdmin  # it takes no parameters when the code runs


class UsageAdmin(ModelAdmin):
    """Usage snapshots, read-only."""

    def get_urls(self) -> list[URLPattern]:
        """The pages; snapshots cannot be edited."""
        return [
            path("", self._view(usage_page), name="limits_app_usagesnapshot_changelist"),
            path("live/", self._view(live_page), name="limits_app_live"),
            path("live/state/", self._view(live_state), name="limits_app_live_state"),
            path("explain/", self._view(explain_page), name="limits_app_explain"),
            path("preview/", self._view(preview_page), name="limits_app_preview"),
            path("limit/", self._view(limit_page), name="limits_app_limit"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Snapshots cannot be added, changed or deleted."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Snapshots cannot be added, changed or deleted."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Snapshots cannot be added, changed or deleted."""
        return False

    def _view(self, view: View) -> Any:
        return self.admin_site.admin_view(partial(view, self.admin_site))
