"""Read-only pages: rejections, usage, effective limits, live traffic, and the preview of a policy."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import URLPattern, path

from limits_app.admin.base import ReadOnly
from limits_app.admin.pages.common import EXPLAIN, USAGE, View, may
from limits_app.admin.pages.explain import explain_page
from limits_app.admin.pages.limit import limit_page
from limits_app.admin.pages.live import live_page, live_state
from limits_app.admin.pages.overview import overview_page
from limits_app.admin.pages.preview import preview_page
from limits_app.admin.pages.rejections import rejections_page
from limits_app.admin.pages.usage import usage_page
from limits_app.models import Denial, Explain, Live, Overview, UsageSnapshot

__all__ = ["ExplainAdmin", "LiveAdmin", "OverviewAdmin", "RejectionsAdmin", "UsageAdmin"]


class PagesAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in its type stubs
    """Pages in place of the list and forms of a model, so that the menu of the admin has an entry for them."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may view usage, of which rejections are a part."""
        return may(request, USAGE)

    def _view(self, view: View) -> Any:
        return self.admin_site.admin_view(partial(view, self.admin_site))


@admin.register(UsageSnapshot)
class UsageAdmin(PagesAdmin):
    """Usage and the pages beside it."""

    def get_urls(self) -> list[URLPattern]:
        """The pages; snapshots cannot be edited."""
        return [
            path("", self._view(usage_page), name="limits_app_usagesnapshot_changelist"),
            path("preview/", self._view(preview_page), name="limits_app_preview"),
            path("limit/", self._view(limit_page), name="limits_app_limit"),
        ]


@admin.register(Overview)
class OverviewAdmin(PagesAdmin):
    """The page “Overview”."""

    def get_urls(self) -> list[URLPattern]:
        """The page."""
        return [path("", self._view(overview_page), name="limits_app_overview_changelist")]


@admin.register(Live)
class LiveAdmin(PagesAdmin):
    """The page “Live”."""

    def get_urls(self) -> list[URLPattern]:
        """The page and its data."""
        return [
            path("", self._view(live_page), name="limits_app_live_changelist"),
            path("state/", self._view(live_state), name="limits_app_live_state"),
        ]


@admin.register(Explain)
class ExplainAdmin(PagesAdmin):
    """The page “Effective limits”."""

    def get_urls(self) -> list[URLPattern]:
        """The page."""
        return [path("", self._view(explain_page), name="limits_app_explain_changelist")]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may view policies."""
        return may(request, EXPLAIN)


@admin.register(Denial)
class RejectionsAdmin(PagesAdmin):
    """Rejections."""

    def get_urls(self) -> list[URLPattern]:
        """The page; rejections cannot be edited."""
        return [path("", self._view(rejections_page), name="limits_app_denial_changelist")]
