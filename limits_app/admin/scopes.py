"""Resources, entities and endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.audited import AuditedAdmin

if TYPE_CHECKING:
    from django.http import HttpRequest

    from limits_app.models import Endpoint

__all__ = ["EndpointAdmin", "EntityAdmin", "ResourceAdmin"]


class ResourceAdmin(AuditedAdmin):
    """What is consumed."""

    list_display = ["name", "pool", "description"]
    list_select_related = ["pool"]
    search_fields = ["name", "description"]
    autocomplete_fields = ["pool"]


class EntityAdmin(AuditedAdmin):
    """Who consumes."""

    list_display = ["identifier", "name", "parent", "cascade", "unlimited", "blocked"]
    list_filter = ["cascade", "unlimited", "blocked"]
    list_select_related = ["parent"]
    search_fields = ["identifier", "name"]
    autocomplete_fields = ["parent"]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the entity, and point at spaces that nobody sees."""
        super().save_model(request, obj, form, change)
        if obj.identifier != obj.identifier.strip():
            warning = gettext("The identifier begins or ends with a space, which counts. Remove it unless it is meant.")
            self.message_user(request, warning, messages.WARNING)


class EndpointAdmin(AuditedAdmin):
    """Which requests use what."""

    list_display = ["name", "order", "where", "methods", "resource", "enabled"]
    list_filter = ["enabled", "resource"]
    list_select_related = ["resource"]
    search_fields = ["name", "description", "path", "view_name", "resource__name"]
    autocomplete_fields = ["resource"]

    @admin.display(description=_("path or view"))
    def where(self, endpoint: Endpoint) -> str:
        """Say which requests it is about."""
        return endpoint.path or endpoint.view_name
