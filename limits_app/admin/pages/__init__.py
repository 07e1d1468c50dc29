"""Pages: rejections, usage, effective limits, exemptions, live traffic, and the preview of a policy."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path

from limits_app.admin.base import ReadOnly
from limits_app.admin.menu import open_tabs
from limits_app.models import (
    ActivityEntry,
    AlertsEntry,
    ClientsEntry,
    Denial,
    LimitsEntry,
    Overview,
    SettingsEntry,
    UsageSnapshot,
)
from limits_app.services.rights import Action, may

if TYPE_CHECKING:
    from limits_app.admin.pages.common import PageView


def _page(module: str, name: str = "") -> PageView:
    """Return the view of a module of this package, which is imported by the first request: most processes show none."""

    def view(site: admin.AdminSite, request: HttpRequest) -> HttpResponse:
        page: PageView = getattr(import_module(f"{__name__}.{module}"), name or f"{module}_page")
        return page(site, request)

    return view


class PagesAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in its type stubs
    """Pages in place of the list and forms of a model."""

    pages: tuple[tuple[str, str, PageView], ...] = ()
    """The route, the name of the URL and the view of each."""
    is_listed = False
    """Whether they are in the menu."""
    action: Action = Action.VIEW_USAGE
    """What viewing them is in the table of rights; rejections are a part of usage."""

    def get_urls(self) -> list[URLPattern]:
        """The pages; the rows of the model cannot be edited."""
        view, site = self.admin_site.admin_view, self.admin_site
        return [path(route, view(partial(page, site)), name=f"limits_app_{name}") for route, name, page in self.pages]

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether they are in the menu for this user."""
        return self.is_listed and self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may view the pages."""
        return may(request.user, self.action)


class EntryAdmin(PagesAdmin):
    """An entry of the menu: it opens the first of its pages that the user may view, and has several pages."""

    def get_urls(self) -> list[URLPattern]:
        """The pages, and the entry itself."""
        name = f"limits_app_{self.opts.model_name}_changelist"
        return [*super().get_urls(), path("", self.admin_site.admin_view(self.first_page), name=name)]

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Be in the menu for users who may view one of the pages."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may view one of the pages."""
        return any(open_tabs(self.model, self.admin_site, request))

    def first_page(self, request: HttpRequest) -> HttpResponse:
        """Open the first page."""
        for url, _label in open_tabs(self.model, self.admin_site, request):
            return HttpResponseRedirect(url)
        raise PermissionDenied


_CLIENTS: Final = (("client/", "client", _page("client")), ("effective/", "explain", _page("explain")))
_USAGE: Final = (("", "usagesnapshot_changelist", _page("usage")), ("preview/", "preview", _page("preview")))
_LIVE: Final = (("live/", "live", _page("live")), ("live/state/", "live_state", _page("live", "live_state")))

admin.site.register(Overview, PagesAdmin, pages=(("", "overview_changelist", _page("overview")),), is_listed=True)
admin.site.register(Denial, PagesAdmin, pages=(("", "denial_changelist", _page("rejections")),))
admin.site.register(UsageSnapshot, PagesAdmin, pages=_USAGE)
admin.site.register(LimitsEntry, EntryAdmin, pages=(("limit/", "limit", _page("limit")),))
admin.site.register(ClientsEntry, EntryAdmin, pages=_CLIENTS)
admin.site.register(ActivityEntry, EntryAdmin, pages=_LIVE)
admin.site.register(AlertsEntry, EntryAdmin)
admin.site.register(SettingsEntry, EntryAdmin, pages=(("exemptions/", "exemptions", _page("exemptions")),))
