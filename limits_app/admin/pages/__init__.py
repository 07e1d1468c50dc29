"""Pages: rejections, usage, effective limits, exemptions, live traffic, and the preview of a policy."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.contrib import admin
from django.http import HttpRequest
from django.urls import URLPattern, path

from limits_app.admin.base import ReadOnly
from limits_app.admin.pages.common import PageView
from limits_app.admin.pages.exemptions import exemptions_page
from limits_app.admin.pages.explain import explain_page
from limits_app.admin.pages.limit import limit_page
from limits_app.admin.pages.live import live_page, live_state
from limits_app.admin.pages.overview import overview_page
from limits_app.admin.pages.preview import preview_page
from limits_app.admin.pages.rejections import rejections_page
from limits_app.admin.pages.usage import usage_page
from limits_app.models import Denial, Exemption, Explain, Live, Overview, UsageSnapshot
from limits_app.services.rights import Action, may


class PagesAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in its type stubs
    """Pages in place of the list and forms of a model, so that the menu of the admin has an entry for them."""

    pages: tuple[tuple[str, str, PageView], ...]
    """The route, the name of the URL and the view of each."""
    action: Action = Action.VIEW_USAGE
    """What viewing them is in the table of rights; rejections are a part of usage."""

    def get_urls(self) -> list[URLPattern]:
        """The pages; the rows of the model cannot be edited."""
        view, site = self.admin_site.admin_view, self.admin_site
        return [path(route, view(partial(page, site)), name=f"limits_app_{name}") for route, name, page in self.pages]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may view the pages."""
        return may(request.user, self.action)


_OVERVIEW: Final = (("", "overview_changelist", overview_page), ("limit/", "limit", limit_page))
_USAGE: Final = (("", "usagesnapshot_changelist", usage_page), ("preview/", "preview", preview_page))
_LIVE: Final = (("", "live_changelist", live_page), ("state/", "live_state", live_state))

admin.site.register(Overview, PagesAdmin, pages=_OVERVIEW)
admin.site.register(Denial, PagesAdmin, pages=(("", "denial_changelist", rejections_page),))
admin.site.register(UsageSnapshot, PagesAdmin, pages=_USAGE)
admin.site.register(Live, PagesAdmin, pages=_LIVE)
_EXEMPTIONS: Final = (("", "exemption_changelist", exemptions_page),)

admin.site.register(Exemption, PagesAdmin, pages=_EXEMPTIONS, action=Action.VIEW_LIMITS)
admin.site.register(Explain, PagesAdmin, pages=(("", "explain_changelist", explain_page),), action=Action.VIEW_LIMITS)
