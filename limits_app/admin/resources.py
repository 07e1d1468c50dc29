"""Resources, entities and endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.admin.actions import ENTITY_ACTIONS, RESOURCE_ACTIONS, StatePermissions
from limits_app.admin.changelists import UsageListAdmin, shown_limits
from limits_app.admin.exchange import ExchangeAdmin
from limits_app.admin.forms import ResourceForm
from limits_app.models import Endpoint, Policy, Resource
from limits_app.services.doctor.endpoints import SiteUrls

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from limits_app.resolver import Pair
    from limits_app.services import RowState

__all__ = ["EndpointAdmin", "EntityAdmin", "ResourceAdmin"]


_MOST_RESOURCES: Final = 3
"""Of how many resources a list shows what an entity uses."""
_MOST_POLICIES: Final = 1000


class ResourceAdmin(StatePermissions, UsageListAdmin, ExchangeAdmin):
    """Resources; their state is that of the site itself, and of what all share."""

    list_display = ["name", "in_use", "source", "pool", "description"]
    list_select_related = ["pool"]
    search_fields = ["name", "description"]
    begins_with = ("name",)
    autocomplete_fields = ["pool"]
    form = ResourceForm
    actions = RESOURCE_ACTIONS

    def pairs(self, rows: Sequence[Any]) -> Iterable[Iterable[Pair]]:
        """Each resource as the site itself uses it."""
        return [[(resource, None)] for resource in rows]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Show in which store each is counted, where there are several."""
        shown = super().get_list_display(request)
        return [*shown, "store"] if _has_several_stores() else [*shown]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Ask for a store where there is a choice, or something to correct."""
        fields = super().get_fields(request, obj)
        is_useful = _has_several_stores() or (obj is not None and obj.store)
        return [field for field in fields if is_useful or field != "store"]


def _has_several_stores() -> bool:
    return len(conf.get(conf.STORES)) > 1


class EntityAdmin(StatePermissions, UsageListAdmin, ExchangeAdmin):
    """Who consumes; its state is that on the resources for which it has policies of its own, or else on the first."""

    list_display = ["identifier", "name", "in_use", "source", "parent", "cascade", "unlimited", "blocked"]
    list_filter = ["cascade", "unlimited", "blocked"]
    list_select_related = ["parent"]
    search_fields = ["identifier", "name"]
    begins_with = ("identifier", "name")
    autocomplete_fields = ["parent"]
    actions = ENTITY_ACTIONS

    def pairs(self, rows: Sequence[Any]) -> Iterable[Iterable[Pair]]:
        """Each entity on a few resources."""
        first = list(Resource.objects.order_by("name")[:_MOST_RESOURCES])
        own: dict[int | None, list[Resource]] = {}
        policies = Policy.objects.filter(entity__in=[entity.pk for entity in rows], resource__isnull=False)
        for policy in policies.select_related("resource").order_by("resource__name")[:_MOST_POLICIES]:
            found = own.setdefault(policy.entity_id, [])
            if policy.resource is not None and policy.resource not in found:
                found.append(policy.resource)
        return [[(one, entity) for one in own.get(entity.pk, first)[:_MOST_RESOURCES]] for entity in rows]

    def state_in_words(self, row: Any, state: RowState) -> SafeString | str:
        """Show one state of an entity, and the resource that it is about."""
        return shown_limits(state, state.limits, named=True)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the entity, and warn about spaces that are invisible."""
        super().save_model(request, obj, form, change)
        if obj.identifier != obj.identifier.strip():
            warning = gettext("The identifier begins or ends with a space, which counts. Remove it unless it is meant.")
            self.message_user(request, warning, messages.WARNING)


class EndpointAdmin(ExchangeAdmin):
    """Which requests use what."""

    list_display = ["name", "order", "where", "methods", "resource", "enabled"]
    list_filter = ["enabled"]
    list_select_related = ["resource"]
    search_fields = ["name", "description", "path", "view_name", "resource__name"]
    begins_with = ("name", "path", "view_name", "resource__name")
    autocomplete_fields = ["resource"]

    @admin.display(description=_("path or view"))
    def where(self, endpoint: Endpoint) -> str:
        """Say which requests it is about."""
        return endpoint.path or endpoint.view_name

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the endpoint, and say so where the site has nothing that it could be about."""
        super().save_model(request, obj, form, change)
        if obj.enabled and not SiteUrls().have(obj.path, obj.view_name):
            warning = gettext(
                "The URLs of the site have no view of this name, or at this path: “%(where)s”. "
                "Names and paths count as they are written, and have no wildcards."
            )
            self.message_user(request, warning % {"where": self.where(obj)}, messages.WARNING)
