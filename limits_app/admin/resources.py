"""Resources, entities, plans and endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db import router
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf, services
from limits_app.admin.actions import ENTITY_ACTIONS, RESOURCE_ACTIONS, StatePermissions
from limits_app.admin.base import AuditedAdmin, PartOf
from limits_app.admin.blocking import BlockingAdmin
from limits_app.admin.changelists import LargeListAdmin, UsageListAdmin, shown_limits
from limits_app.admin.forms import ResourceForm
from limits_app.admin.own_blocks import BlockForm, ConfirmedBlocks
from limits_app.models import Bucket, Endpoint, Entity, Plan, PlanGroup, Policy, PolicyEffect, Resource
from limits_app.models.plan import groups_have_plans
from limits_app.policies import Pair
from limits_app.services import RowState
from limits_app.services.site_urls import SiteUrls
from limits_app.usage.reading import never_used

_MOST_RESOURCES: Final = 3
"""Of how many resources a list shows what an entity uses."""
_MOST_POLICIES: Final = 1000
_LATELY: Final = timedelta(hours=2)
_MOST_USES: Final = 500


@admin.register(Resource)
class ResourceAdmin(StatePermissions, UsageListAdmin):
    """Resources; the list shows the usage of the site itself and of shared limits."""

    list_display = ["name", "in_use", "source", "pool", "description"]
    list_select_related = ["pool"]
    search_fields = ["name", "description"]
    begins_with = ("name",)
    autocomplete_fields = ["pool"]
    form = ResourceForm
    actions = RESOURCE_ACTIONS

    def pairs(self, rows: Sequence[Any]) -> Iterable[Iterable[Pair]]:
        """Each resource as the site itself uses it, and as the entity that used most of it lately."""
        busiest = _busiest(rows)
        return [
            [(resource, None), *((resource, Entity(identifier=name)) for name in busiest.get(resource.name, ()))]
            for resource in rows
        ]

    def state_in_words(self, row: Any, state: RowState) -> SafeString | str:
        """Show one state of a resource, and the entity that it is about."""
        if state.entity is None:
            return super().state_in_words(row, state)
        shown = shown_limits(state, state.limits, named=False)
        return format_html("<div>{}{}</div>", gettext("Busiest: %(entity)s") % {"entity": state.entity}, shown)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Show in which store each is counted, where there are several."""
        shown = super().get_list_display(request)
        return [*shown, "store"] if _has_several_stores() else [*shown]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Ask for a store where there is a choice, or something to correct."""
        fields = super().get_fields(request, obj)
        is_useful = _has_several_stores() or (obj is not None and obj.store)
        return [field for field in fields if is_useful or field != "store"]


def _busiest(resources: Sequence[Resource]) -> dict[str, list[str]]:
    """The entity that used most of each resource in this hour and the last one, as of the last roll-up."""
    uses = services.usage(by=("resource", "entity"), period="hour", since=timezone.now() - _LATELY, most=_MOST_USES)
    names, busiest = {resource.name for resource in resources}, dict[str, list[str]]()
    for use in uses:
        if use.bucket == Bucket.ENTITY and use.entity and use.resource in names:
            busiest.setdefault(use.resource, [use.entity])
    return busiest


def _has_several_stores() -> bool:
    return len(conf.get(conf.STORES)) > 1


class PlanGroupInline(PartOf, admin.TabularInline):  # type: ignore[type-arg]  # generic only in its type stubs
    """The Django groups whose users are on a plan."""

    whole = Plan
    model = PlanGroup
    fields = ["group"]
    extra = 1


@admin.register(Plan)
class PlanAdmin(AuditedAdmin):
    """Plans."""

    list_display = ["name", "description", "priority"]
    search_fields = ["name", "description"]
    inlines = [PlanGroupInline]

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Offer groups only where users have groups, in the same database."""
        return [*super().get_inlines(request, obj)] if groups_have_plans(router.db_for_write(Plan)) else []


@admin.register(Entity)
class EntityAdmin(ConfirmedBlocks, StatePermissions, BlockingAdmin):
    """Entities; the list shows the usage on resources with specific policies, otherwise on the first resource."""

    list_display = ["client", "name", "status", "in_use", "source", "parent", "plan"]
    list_display_links = None
    list_filter = ["cascade", "unlimited", "blocked", "plan"]
    list_select_related = ["parent", "plan"]
    search_fields = ["identifier", "name"]
    begins_with = ("identifier", "name")
    autocomplete_fields = ["parent", "plan"]
    actions = ENTITY_ACTIONS
    form = BlockForm

    @admin.display(description=_("identifier"), ordering="identifier")
    def client(self, entity: Any) -> SafeString:
        """Lead to the page of a client; of a pattern, to its form."""
        site = self.admin_site.name
        url = reverse(f"{site}:limits_app_client", query={"entity": entity.identifier})
        if entity.is_pattern:
            url = reverse(f"{site}:limits_app_entity_change", args=[entity.pk])
        return format_html('<a href="{}">{}</a>', url, entity.identifier)

    @admin.display(description=_("status"), ordering="blocked")
    def status(self, entity: Any) -> str:
        """Say whether it is blocked or unlimited, by itself or by a policy; a dash for neither."""
        if entity.blocked:
            return gettext("Blocked")
        if any(state.effect == PolicyEffect.BLOCKED for state in entity.states or ()):
            return gettext("Blocked (policy)")
        return gettext("Unlimited") if entity.unlimited else "-"

    def pairs(self, rows: Sequence[Any]) -> Iterable[Iterable[Pair]]:
        """Each entity on a few resources."""
        first = list(Resource.objects.order_by("name")[:_MOST_RESOURCES])
        own: dict[int | None, list[Resource]] = {}
        policies = Policy.objects.filter(entity__in=[entity.pk for entity in rows], resource__isnull=False)
        for policy in policies.select_related("resource").order_by("resource__name")[:_MOST_POLICIES]:
            resources = own.setdefault(policy.entity_id, [])
            if policy.resource is not None and policy.resource not in resources:
                resources.append(policy.resource)
        return [[(resource, entity) for resource in own.get(entity.pk, first)[:_MOST_RESOURCES]] for entity in rows]

    def state_in_words(self, row: Any, state: RowState) -> SafeString | str:
        """Show one state of an entity, and the resource that it is about."""
        return shown_limits(state, state.limits, named=True)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the entity, and warn about spaces that are invisible."""
        super().save_model(request, obj, form, change)
        if obj.identifier != obj.identifier.strip():
            warning = gettext(
                "The identifier begins or ends with a space, which is significant. Remove it unless it is intended."
            )
            self.message_user(request, warning, messages.WARNING)
        elif not change and never_used([obj.identifier]):
            hint = gettext("No request has used the identifier “%(name)s” so far: check the spelling.")
            self.message_user(request, hint % {"name": obj.identifier}, messages.WARNING)


class SuggestingInput(AdminTextInputWidget):
    """A text field that suggests values."""

    def __init__(self, values: Iterable[str]) -> None:
        super().__init__()
        self._values = sorted(values)

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """The field with its list of values."""
        identifier = f"limits-{name}-values"
        field = super().render(name, value, {**(attrs or {}), "list": identifier}, renderer)
        options = format_html_join("", '<option value="{}"></option>', [(value,) for value in self._values])
        return format_html('{}<datalist id="{}">{}</datalist>', field, identifier, options)


@admin.register(Endpoint)
class EndpointAdmin(LargeListAdmin):
    """Rules for URLs; the form suggests the paths and views of the site."""

    fieldsets = [
        (None, {"fields": ["name", "description", "enabled"]}),
        (_("Requests"), {"fields": ["path", "view_name", "methods"]}),
        (_("Limits"), {"fields": ["counted_by", "header", "limits", "resource", "amounts"]}),
        (_("Other rules"), {"fields": ["order", "stop"]}),
        (
            _("Exemptions"),
            {"fields": ["exempt_staff", "exempt_superusers", "exempt_groups", "exempt_networks", "exempt_entities"]},
        ),
    ]

    list_display = ["name", "order", "where", "methods", "counted_by", "charged", "stop", "enabled"]
    list_filter = ["enabled"]
    list_select_related = ["resource"]
    search_fields = ["name", "description", "path", "view_name", "resource__name"]
    begins_with = ("name", "path", "view_name", "resource__name")
    autocomplete_fields = ["resource"]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Suggest the paths and the views of the site."""
        if db_field.name in {"path", "view_name"}:
            urls = SiteUrls()
            options["widget"] = SuggestingInput(urls.routes if db_field.name == "path" else urls.views)
        return super().formfield_for_dbfield(db_field, request, **options)

    @admin.display(description=_("path or view"))
    def where(self, endpoint: Endpoint) -> str:
        """Say which requests it is about."""
        return endpoint.path or endpoint.view_name

    @admin.display(description=_("limits or resource"))
    def charged(self, endpoint: Endpoint) -> str:
        """Show the limits of the rule, or else the resource that it charges."""
        return endpoint.limits or endpoint.resource_name

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the endpoint, and warn if it has no effect."""
        super().save_model(request, obj, form, change)
        warn_of_rule(request, obj)


def warn_of_rule(request: HttpRequest, rule: Endpoint) -> None:
    """Add a message for each reason why a rule may not limit all that is expected.

    The site has no such view or path, the view answers other methods too, or another rule stops before this one.
    """
    urls = SiteUrls()
    if rule.enabled and not urls.have(rule.path, rule.view_name):
        warning = gettext("No URL pattern matches “%(where)s”. Names and paths are case-sensitive.")
        messages.warning(request, warning % {"where": rule.path or rule.view_name})
    others = urls.other_methods(rule.path, rule.view_name, rule.method_set) if rule.enabled else []
    if others is None:
        warning = gettext(
            "The view answers every method, and this rule counts %(methods)s only: leave the methods empty, or "
            "decorate the view with require_http_methods."
        )
        messages.warning(request, warning % {"methods": rule.methods})
    elif others:
        note = gettext("This rule counts %(methods)s only. The view answers %(others)s too.")
        messages.info(request, note % {"methods": rule.methods, "others": ", ".join(others)})
    if (first := rule.hidden_by()) is not None:
        warning = gettext(
            "The rule “%(first)s” comes first and stops there, so this one never applies: "
            "give this one a lower order, other methods, or delete one of them."
        )
        messages.warning(request, warning % {"first": first})
