"""Resources, entities, plans and endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.views.main import ORDER_VAR, SEARCH_VAR, ChangeList
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db import router
from django.db.models import Case, Q, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse
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
from limits_app.admin.changelists import LargeListAdmin, UsageListAdmin, fullest, limit_line, shown_limits
from limits_app.admin.forms import ResourceForm
from limits_app.admin.limit_links import LimitsChangeList
from limits_app.admin.own_blocks import BlockForm, ConfirmedBlocks
from limits_app.models import BucketKind, Endpoint, Entity, Plan, PlanGroup, Policy, PolicyEffect, Resource
from limits_app.models.plan import groups_have_plans
from limits_app.policies import Pair
from limits_app.services import RowState
from limits_app.services.clients import client_names, lately_used, user_names, with_name, with_names
from limits_app.services.limit_sentences import has_total
from limits_app.services.limit_words import limits_in_words
from limits_app.services.rights import Action, may, to_replace_row
from limits_app.services.rule_labels import resource_labels, resources_of_urls
from limits_app.services.site_urls import MOST_SHOWN_URLS, SiteUrls
from limits_app.usage.reading import most_rejected, never_used

_MOST_RESOURCES: Final = 3
"""Of how many resources a list shows what an entity uses."""
_MOST_POLICIES: Final = 1000
_LATELY: Final = timedelta(hours=2)
_MOST_USES: Final = 500
_IN_NEED: Final = timedelta(hours=1)
_MOST_IN_NEED: Final = 50
_MOST_LATELY: Final = 20
_REJECTED: Final = "limits_rejected_lately"
"""The attribute of a request with the clients that were rejected."""


@admin.register(Resource)
class ResourceAdmin(StatePermissions, UsageListAdmin):
    """Resources; the list shows the usage of the site itself and of shared limits."""

    list_display = ["label", "in_use", "source", "pool", "description"]
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

    def prepare(self, rows: Sequence[Any]) -> None:
        """Show the busiest entity first, and what the site itself uses only where it uses something."""
        names = client_names(state.entity for row in rows for state in row.states or () if state.entity)
        urls = resource_labels(row.name for row in rows if row.made_for_rule)
        for row in rows:
            row.in_words = urls.get(row.name, row.name)
            row.names = names
            states = sorted(row.states or (), key=lambda state: state.entity is None)
            useful = [state for state in states if state.entity is not None or _says_something(state)]
            row.states = row.states and (useful or states)

    @admin.display(description=_("name"), ordering="name")
    def label(self, resource: Any) -> str:
        """The name, or the path or view of the URL rule for which it was made."""
        return str(resource.in_words)

    def state_in_words(self, row: Any, state: RowState) -> SafeString | str:
        """Show one state of a resource, and the entity that it is about."""
        if state.entity is None and _says_something(state):
            return super().state_in_words(row, state)
        if state.entity is None:
            return gettext("nothing in use")
        shown = shown_limits(state, state.limits, named=False)
        busiest = gettext("Busiest: %(entity)s") % {"entity": with_name(state.entity, row.names)}
        return format_html("<div>{}{}</div>", busiest, shown)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search, also for the URLs of the rules that resources were made for."""
        rows, is_repeating = super().get_search_results(request, queryset, search_term)
        names = resources_of_urls(search_term)
        return (rows | queryset.filter(name__in=names) if names else rows), is_repeating

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Show in which store each is counted, where there are several."""
        shown = super().get_list_display(request)
        return [*shown, "store"] if _has_several_stores() else [*shown]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Ask for a store where there is a choice, or something to correct."""
        fields = super().get_fields(request, obj)
        is_useful = _has_several_stores() or (obj is not None and obj.store)
        return [field for field in fields if is_useful or field != "store"]


def _says_something(state: RowState) -> bool:
    """Whether the state of the site itself is more than limits of others that it does not use."""
    return state.effect != PolicyEffect.LIMITS or any(limit.used != 0 or limit.shared for limit in state.limits)


def _busiest(resources: Sequence[Resource]) -> dict[str, list[str]]:
    """The entity that used most of each resource in this hour and the last one, as of the last roll-up."""
    uses = services.usage(by=("resource", "entity"), period="hour", since=timezone.now() - _LATELY, most=_MOST_USES)
    names, busiest = {resource.name for resource in resources}, dict[str, list[str]]()
    for use in uses:
        if use.bucket == BucketKind.ENTITY and use.entity and use.resource in names:
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
    """Entities, those first that reach their limits; one line each, with the limit that is used most.

    It is that of the resources with specific policies, otherwise of the first ones.
    """

    list_display = ["client", "status", "in_use", "plan", "parent"]
    list_display_links = None
    list_filter = ["cascade", "unlimited", "blocked", "plan"]
    list_select_related = ["parent", "plan"]
    search_fields = ["identifier", "name"]
    begins_with = ("identifier", "name")
    long_ordering = ("identifier",)
    identifier = "identifier"
    autocomplete_fields = ["parent", "plan"]
    actions = ENTITY_ACTIONS
    form = BlockForm

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list below a search for any client, and without rows the clients that used something lately."""
        context: dict[str, Any] = {"finds_clients": may(request.user, Action.VIEW_LIMITS)}
        context["text"] = request.GET.get(SEARCH_VAR, "")
        if may(request.user, Action.VIEW_USAGE) and not Entity.objects.exists():
            context["lately"] = with_names(lately_used(most=_MOST_LATELY))
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def get_ordering(self, request: HttpRequest) -> list[Any]:
        """Those that were rejected in the last hour come first, unless the list is sorted by a column."""
        condition = None if ORDER_VAR in request.GET else self.listed_first(request)
        return ["identifier"] if condition is None else [Case(When(condition, then=Value(0)), default=1), "identifier"]

    def listed_first(self, request: HttpRequest) -> Q | None:
        """Return which clients were rejected in the last hour."""
        names = vars(request).get(_REJECTED)  # Django asks twice
        if names is None:
            counts = most_rejected("entity", since=timezone.now() - _IN_NEED, most=_MOST_IN_NEED)
            names = [count["entity"] for count in counts if count["bucket"] == BucketKind.ENTITY]
            setattr(request, _REJECTED, names)
        return Q(identifier__in=names) if names else None

    def prepare(self, rows: Sequence[Any]) -> None:
        """Find the names of users, and of URL rules."""
        names = {row.identifier: row.name for row in rows if row.name}
        names |= user_names(row.identifier for row in rows if not row.name)
        urls = resource_labels({state.resource for row in rows for state in row.states or ()})
        for row in rows:
            row.urls = urls
            row.in_words = with_name(row.identifier, names)

    def need(self, row: Any) -> int:
        """Those at a limit come first."""
        return 0 if _is_at_limit(row) else 1

    @admin.display(description=_("client"), ordering="identifier")
    def client(self, entity: Any) -> SafeString:
        """Lead to the page of a client; of a pattern, to its form."""
        site = self.admin_site.name
        url = reverse(f"{site}:limits_app_client", query={"entity": entity.identifier})
        if entity.is_pattern:
            url = reverse(f"{site}:limits_app_entity_change", args=[entity.pk])
        return format_html('<a href="{}">{}</a>', url, entity.in_words)

    @admin.display(description=_("status"))
    def status(self, entity: Any) -> str:
        """Say whether it is blocked or unlimited, by itself or by a policy, or at a limit; a dash for neither."""
        if entity.blocked:
            return gettext("Blocked")
        if any(state.effect == PolicyEffect.BLOCKED for state in entity.states or ()):
            return gettext("Blocked (policy)")
        if entity.unlimited:
            return gettext("Unlimited")
        return gettext("At its limit") if _is_at_limit(entity) else "-"

    @admin.display(description=_("in use now"))
    def in_use(self, row: Any) -> str:
        """Show the limit that is used most."""
        if row.states is None:
            return gettext("unknown")
        tightest = fullest(row.states)
        if tightest is None or row.unlimited or row.blocked:
            return "-"
        state, limit = tightest
        resource = row.urls.get(state.resource, state.resource)
        return format_html('<span class="limits-state">{}</span> ({})', limit_line(limit), resource)

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
        if obj.parent is not None and not obj.cascade and has_total(obj.parent):
            warning = gettext(
                "“%(parent)s” has a limit over all resources, and the use of “%(name)s” does not count for it: tick "
                "“count for the parent too”."
            )
            values = {"parent": obj.parent, "name": obj.identifier}
            self.message_user(request, warning % values, messages.WARNING)


def _is_at_limit(entity: Any) -> bool:
    tightest = fullest(entity.states or ())
    return tightest is not None and tightest[1].share >= 1


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
        (_("Limits"), {"fields": ["counted_by", "header", "combined_with", "limits", "resource", "amounts", "cost"]}),
        (_("Priority"), {"fields": ["request_priority"]}),
        (_("Responses"), {"fields": ["responses"]}),
        (_("Rejections"), {"fields": ["block_for", "refusal_status", "refusal_body"]}),
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

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        """Lead to the form in words, with the permissions for it."""
        rights = to_replace_row(self.model())
        return LimitsChangeList if may(request.user, Action.LIMIT_SOMETHING, *rights) else ChangeList

    @admin.display(description=_("path or view"))
    def where(self, endpoint: Endpoint) -> str:
        """Say which requests it is about."""
        return endpoint.path or endpoint.view_name

    @admin.display(description=_("limits or resource"))
    def charged(self, endpoint: Endpoint) -> str:
        """Show the limits of the rule, or else the resource that it charges."""
        return limits_in_words(endpoint.limits) if endpoint.limits else endpoint.resource_name

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
    if rule.enabled and (other_urls := urls.other_urls(rule.path, rule.view_name)):
        note = gettext(
            "This rule counts %(path)s only. The view answers %(urls)s too: name the view in place of the path to "
            "count them all."
        )
        messages.info(request, note % {"path": rule.path, "urls": ", ".join(other_urls[:MOST_SHOWN_URLS])})
    if rule.enabled:
        _warn_of_counting(request, rule)
    if (first := rule.hidden_by()) is not None:
        warning = gettext(
            "The rule “%(first)s” comes first and skips later rules, so this one never applies: "
            "give this one a lower order, other methods, or delete one of them."
        )
        messages.warning(request, warning % {"first": first})


def _warn_of_counting(request: HttpRequest, rule: Endpoint) -> None:
    """Add a message for each reason why a client may have more, or less, than the limits of a rule."""
    if rule.is_escaped and not rule.is_bounded():
        warning = gettext(
            "A client can send other values of what this rule combines, and so has its limits up to 1,024 times: add a "
            "rule for the same path that counts by IP address or user alone."
        )
        messages.warning(request, warning)
    if rule.counts_by_choice and not rule.is_bounded():
        warning = gettext(
            "A client that sends a new header or starts a new session with each request has no limit: add a rule for "
            "the same path that counts by IP address or user, unless a proxy sets the header or a log-in protects the "
            "view."
        )
        messages.warning(request, warning)
    if rule.undoes_in_buckets:
        warning = gettext(
            "This rule counts certain responses in a bucket. Requests that run at the same time use up a part of it, "
            "also those that do not count: add “:sliding_window” to its limits."
        )
        messages.warning(request, warning)
