"""What all pages have: permissions, the menu, and usage snapshots that are up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.core.cache.backends.locmem import LocMemCache
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from limits_app.admin.base import site_page
from limits_app.admin.menu import menu
from limits_app.models import BucketKind, Emergency
from limits_app.models.validators import validate_client, validate_identifier, validate_text
from limits_app.services.clients import with_name
from limits_app.services.rights import Action, may
from limits_app.services.usage import add_counts

PageView = Callable[[AdminSite, HttpRequest], HttpResponse]


def check(request: HttpRequest, action: Action, *more: Action | str) -> None:
    """Raise PermissionDenied unless the user may do this; see `rights.may`."""
    if not may(request.user, action, *more):
        raise PermissionDenied


def page(
    site: AdminSite,
    request: HttpRequest,
    template: str,
    *,
    title: str,
    context: Mapping[str, Any],
    switch: Emergency | None = None,
) -> TemplateResponse:
    """Render one of the pages, below the menu; `switch` is the emergency switch, where it was just read."""
    return site_page(site, request, f"pages/{template}", title=title, menu=menu(site, request, switch), **context)


def entity_or_none(request: HttpRequest) -> str | None:
    """The entity of the request; the site itself without one."""
    return request.GET.get("entity") or None


def client_name(bucket: BucketKind, entity: str, names: Mapping[str, str]) -> str:
    """Name the entity or the member of a pool that a bucket is about, and the kind of a bucket of others."""
    if bucket == BucketKind.ENTITY:
        return with_name(entity, names) if entity else gettext("No user (whole site)")
    return f"{entity} ({bucket.label})" if entity else str(bucket.label)


def problem_with(*asked: str | None, entity: str | None, allows_patterns: bool = True) -> str:
    """Say why no database can be asked for one of these, or for an entity or a pattern; nothing where it can."""
    try:
        if entity:
            (validate_identifier if allows_patterns else validate_client)(entity)
        for text in filter(None, asked):
            validate_text(text)
    except ValidationError as error:
        return " ".join(error.messages)
    return ""


_RECENT: Final = LocMemCache("limits_app.admin", {})
"""Has a key for a second after each roll-up of this process."""


_MOST_SECONDS: Final = 0.2
"""For how long a page rolls up each store, where more has waited than the background job has done."""


def bring_up_to_date() -> bool:
    """Roll up what the stores have counted, at most once a second; says whether a store could not be asked."""
    if transaction.get_connection().in_atomic_block or not _RECENT.add("rolled_up", True, timeout=1):
        return False  # rolling up requires a separate transaction
    return bool(add_counts(seconds=_MOST_SECONDS).failed)
