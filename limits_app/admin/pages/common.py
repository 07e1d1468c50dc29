"""What all pages have: permissions, tabs, and usage snapshots that are up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from time import monotonic
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from limits_app.models.validators import validate_text
from limits_app.services.usage import roll_up

View = Callable[["AdminSite", "HttpRequest"], "HttpResponse"]

EXPLAIN: Final = ("limits_app.view_policy", "limits_app.change_policy")
USAGE: Final = ("limits_app.view_usagesnapshot",)
PREVIEW: Final = USAGE

_TABS: Final = (
    ("limits_app_overview_changelist", _("Overview"), USAGE),
    ("limits_app_denial_changelist", _("Rejections"), USAGE),
    ("limits_app_usagesnapshot_changelist", _("Usage"), USAGE),
    ("limits_app_live_changelist", _("Live"), USAGE),
    ("limits_app_explain_changelist", _("Effective limits"), EXPLAIN),
)


def may(request: HttpRequest, permissions: tuple[str, ...]) -> bool:
    """Whether one of these permissions is there."""
    return any(map(request.user.has_perm, permissions))


def check(request: HttpRequest, permissions: tuple[str, ...]) -> None:
    """Raise PermissionDenied without any of these permissions."""
    if not may(request, permissions):
        raise PermissionDenied


def page(
    site: AdminSite, request: HttpRequest, template: str, *, title: str, context: Mapping[str, Any]
) -> TemplateResponse:
    """Render one of the pages, with tabs for the other pages that the user may view."""
    request.current_app = site.name  # what Django's own admin does
    here = request.resolver_match.url_name if request.resolver_match else ""
    tabs = [
        {"url": reverse(f"{site.name}:{name}"), "label": label, "here": name == here}
        for name, label, permissions in _TABS
        if may(request, permissions)
    ]
    known = {**site.each_context(request), "title": title, "tabs": tabs, **context}
    return TemplateResponse(request, f"admin/limits_app/pages/{template}.html", known)


def entity_or_none(request: HttpRequest) -> str | None:
    """The entity of the request; the site itself without one."""
    return request.GET.get("entity") or None


def problem_with(*asked: str | None) -> str:
    """Say why no database can be asked for one of these; nothing where it can."""
    try:
        for text in filter(None, asked):
            validate_text(text)
    except ValidationError as error:
        return str(error.message)
    return ""


_EVERY_SECONDS: Final = 1.0


class _Gate:
    """Passes once a second in this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._opens_at = 0.0

    def passes(self) -> bool:
        """Whether it is time."""
        with self._lock:
            if monotonic() < self._opens_at:
                return False
            self._opens_at = monotonic() + _EVERY_SECONDS
            return True


_GATE: Final = _Gate()


def bring_up_to_date() -> bool:
    """Roll up what the stores have counted, at most once a second; says whether a store could not be asked."""
    if transaction.get_connection().in_atomic_block or not _GATE.passes():
        return False  # rolling up requires a separate transaction
    return bool(roll_up().failed)
