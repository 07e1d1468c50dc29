"""What all pages have: who may see them, and the ways from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import PermissionDenied, ValidationError
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from limits_app.models.validators import validate_text

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest, HttpResponse

__all__ = ["EXPLAIN", "PREVIEW", "USAGE", "View", "check", "entity_or_none", "may", "page", "problem_with"]

View = Callable[["AdminSite", "HttpRequest"], "HttpResponse"]

EXPLAIN: Final = ("limits_app.view_policy", "limits_app.change_policy")
USAGE: Final = ("limits_app.view_usagesnapshot",)
PREVIEW: Final = USAGE

_TABS: Final = (
    ("limits_app_explain", _("Effective limits"), EXPLAIN),
    ("limits_app_usagesnapshot_changelist", _("Usage"), USAGE),
    ("limits_app_live", _("Live"), USAGE),
)


def may(request: HttpRequest, permissions: tuple[str, ...]) -> bool:
    """Whether one of these permissions is there."""
    return any(map(request.user.has_perm, permissions))


def check(request: HttpRequest, permissions: tuple[str, ...]) -> None:
    """Refuse whoever has none of these permissions."""
    if not may(request, permissions):
        raise PermissionDenied


def page(
    site: AdminSite, request: HttpRequest, template: str, *, title: str, context: Mapping[str, Any]
) -> TemplateResponse:
    """Show one of the pages, with the ways to those of the others that may be seen."""
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
    """The entity that is asked about; the site itself where none is named."""
    return request.GET.get("entity") or None


def problem_with(*asked: str | None) -> str:
    """Say why no database can be asked for one of these; nothing where it can."""
    try:
        for text in filter(None, asked):
            validate_text(text)
    except ValidationError as error:
        return str(error.message)
    return ""
