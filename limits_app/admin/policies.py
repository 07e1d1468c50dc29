"""Policies with their limits, and the page that grants boosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import F, QuerySet
from django.forms.formsets import DELETION_FIELD_NAME
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.action_forms import Boosted, GrantForm
from limits_app.admin.actions import (
    MOST_ROWS,
    POLICY_ACTIONS,
    StatePermissions,
    boost_client,
    dropped_limits_warning,
)
from limits_app.admin.base import PartOf, confirmation, moment_column
from limits_app.admin.changelists import UsageListAdmin, shown_limits
from limits_app.admin.formatting import STANDINGS, boost_in_words, written_limits
from limits_app.admin.forms import LIMIT_FIELDS, READABLE, LimitForm, PolicyForm, readable
from limits_app.admin.limit_links import LimitsChangeList, full_form_address, limit_address
from limits_app.admin.own_blocks import ConfirmedBlocks
from limits_app.admin.policy_filters import HoldsFilter, KindFilter, ScopeFilter
from limits_app.engine.errors import LimitsError
from limits_app.models import Counted, Endpoint, Enforcement, Limit, Policy, PolicyEffect, PolicyScope
from limits_app.policies import Pair
from limits_app.services import PlannedBoost, PolicyStatus, RowState
from limits_app.services.boosts import is_boost
from limits_app.services.clients import client_names
from limits_app.services.display import moment
from limits_app.services.limit_sentences import rule_of
from limits_app.services.policy_warnings import overriding_block
from limits_app.services.policy_words import policies_in_words, row_in_words
from limits_app.services.rights import Action, may, may_change_rows, to_create_entity, to_replace_row

_OF_PATTERNS: Final = (PolicyScope.PATTERN_ON_RESOURCE, PolicyScope.PATTERN, PolicyScope.PATTERN_TOTAL)

_READ: Final = {"resource": "resource_in_words"}
"""What a page shows instead of fields to users who may not change them."""
_COUNTING: Final = (PolicyStatus.COUNTS, PolicyStatus.EXTENDED)
_NOT_ENFORCED: Final[Mapping[str, PolicyStatus]] = {
    Enforcement.SHADOW: PolicyStatus.SHADOW,
    Enforcement.OFF: PolicyStatus.OFF,
}
"""States that do not depend on the store."""


class LimitFormSet(BaseInlineFormSet):  # type: ignore[type-arg]  # generic only in its type stubs
    """The limits of one policy, or of a member of a pool."""

    def clean(self) -> None:
        """Show errors of the hidden primary key field, beside which the page shows none."""
        super().clean()
        if any("id" in form.errors for form in self.forms):
            raise ValidationError(
                gettext("One of these limits has been deleted: reload this page and repeat the change.")
            )


class PolicyLimitFormSet(LimitFormSet):
    """The limits of one policy."""

    def clean(self) -> None:
        """Reject a policy that would replace broader limits without having limits."""
        super().clean()
        kept = [form for form in self.forms if _is_kept(form)]
        if self.instance.effect == PolicyEffect.LIMITS and not kept:
            raise ValidationError(gettext("Add at least one limit, or choose the effect “unlimited” or “blocked”."))


def _is_kept(form: Any) -> bool:
    deleted = form.cleaned_data.get(DELETION_FIELD_NAME, False)
    return not deleted and (form.instance.pk is not None or form.has_changed())


class LimitInline(PartOf, admin.StackedInline):  # type: ignore[type-arg]  # generic only in its type stubs
    """Limits belong to their policy: the permission to change the policy covers them."""

    whole: type[Any] = Policy
    model = Limit
    form = LimitForm
    formset = PolicyLimitFormSet
    fields = LIMIT_FIELDS
    classes = ["limits-lines"]
    extra = 1

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show the values of the fields on read-only pages."""
        return self.fields if self.has_change_permission(request, obj) else readable(self.fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the values of the fields on read-only pages, and nothing elsewhere."""
        return () if self.has_change_permission(request, obj) else tuple(READABLE.values())


@admin.register(Policy)
class PolicyAdmin(ConfirmedBlocks, StatePermissions, UsageListAdmin):
    """Policies with their limits, and the page that grants boosts."""

    list_display = ["whom", "limits_in_words", "status", "in_use", "reason"]
    list_filter = [ScopeFilter, "effect", "enforcement", HoldsFilter, KindFilter]
    list_select_related = ["resource", "entity", "plan"]
    search_fields = ["resource__name", "entity__identifier", "entity__name", "plan__name", "limits__key", "reason"]
    begins_with = ("resource__name", "entity__identifier", "entity__name", "plan__name")
    identifier = "entity__identifier"
    # Ordering by names would join the resource and the entity of every policy.
    long_ordering = (F("resource_id").asc(nulls_first=True), F("entity_id").asc(nulls_first=True))
    actions = POLICY_ACTIONS
    autocomplete_fields = ["resource", "entity", "plan"]
    radio_fields = {"counted": admin.VERTICAL}
    readonly_fields = ["created", "updated", *_READ.values()]
    created = moment_column("created_at", _("created at"))
    updated = moment_column("updated_at", _("updated at"))
    fieldsets = [
        (None, {"fields": ["resource", "entity", "plan", "counted", "effect", "extends", "reason"]}),
        (_("Validity"), {"fields": [("valid_from", "valid_until"), ("weekly_hours", "time_zone")]}),
        (_("Enforcement"), {"fields": [("enforcement", "rollout_percent"), "on_unavailable"]}),
        (_("Advanced"), {"fields": ["slice_seconds", "created", "updated"], "classes": ["collapse"]}),
    ]
    inlines = [LimitInline]
    form = PolicyForm

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Ask for the confirmation where a policy in force may be changed; name its resource where it may not."""
        fieldsets = super().get_fieldsets(request, obj)
        in_force = obj is not None and obj.enforcement == Enforcement.ENFORCE and obj.rollout_percent
        if not self.has_change_permission(request, obj):
            return [
                (title, {**options, "fields": [_READ.get(field, field) for field in options["fields"]]})
                for title, options in fieldsets
            ]
        if not in_force:
            return fieldsets
        return [
            (
                title,
                {**options, "fields": [*options["fields"], "confirm_weaker"]}
                if "on_unavailable" in options["fields"]
                else options,
            )
            for title, options in fieldsets
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Fetch the limits of all rows at once."""
        policies: QuerySet[Any] = super().get_queryset(request)
        return policies.prefetch_related("limits")

    def prepare(self, rows: Sequence[Any]) -> None:
        """Find the names of the clients."""
        names = client_names(policy.entity.identifier for policy in rows if policy.entity is not None)
        for policy, words in zip(rows, policies_in_words(rows, names), strict=True):
            policy.in_words = words

    def need(self, row: Any) -> int:
        """Permanent policies first, then boosts."""
        return int(is_boost(row))

    @admin.display(description=_("resource"))
    def resource_in_words(self, policy: Policy) -> str:
        """The name of its resource, or the URL of the rule for which it was made."""
        return "-" if policy.resource is None else row_in_words(policy.resource)

    @admin.display(description=_("policy"))
    def whom(self, policy: Any) -> str:
        """Say whom it is about, and on what."""
        return str(policy.in_words)

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        """Lead to the form in words, with the permissions for it."""
        rights = to_replace_row(self.model())
        return LimitsChangeList if may(request.user, Action.LIMIT_SOMETHING, *rights) else ChangeList

    @admin.display(description=_("limits"))
    def limits_in_words(self, policy: Policy) -> str:
        """Show its limits or its effect."""
        return written_limits(policy.limits.all()) or str(PolicyEffect(policy.effect).label)

    @admin.display(description=_("status"), ordering="valid_until")
    def status(self, policy: Any) -> SafeString:
        """Show its current state, until when, and the rollout."""
        standing = self._standing(policy)
        is_on = standing in _COUNTING
        word = gettext("Unknown") if standing is None else capfirst(STANDINGS[standing])
        if is_on and policy.extends and policy.valid_until:
            word = gettext("Boost until %(date)s") % {"date": moment(policy.valid_until)}
        elif policy.valid_from or policy.weekly_hours:
            word = f"{word} ({policy.when(moment)})"
        if policy.rollout_percent != 100:
            word = f"{word}, {policy.rollout_percent} %"
        return format_html('<span class="limits-chip{}">{}</span>', " limits-chip--on" if is_on else "", word)

    def _standing(self, policy: Any) -> PolicyStatus | None:
        """Return its current status; None while the store is unavailable and nothing else decides it."""
        for_many = _NOT_ENFORCED.get(policy.enforcement, PolicyStatus.COUNTS)
        if policy.plan_id is not None or policy.scope in _OF_PATTERNS:
            return for_many  # a list does not say which entities are on a plan, or match a pattern
        if policy.states is None:
            return _NOT_ENFORCED.get(policy.enforcement)
        standing: PolicyStatus = policy.states[0].standing.get(policy.pk, PolicyStatus.NOT_NOW)
        if standing is PolicyStatus.NOT_ROLLED_OUT and policy.entity_id is None and policy.rollout_percent:
            return for_many  # the state is that of the site itself, and the policy is rolled out to other entities
        return standing

    def pairs(self, rows: Sequence[Any]) -> Iterable[Iterable[Pair]]:
        """Each policy is about its entity on its resource."""
        return [[(policy.resource, policy.entity)] for policy in rows]

    def state_in_words(self, row: Any, state: RowState) -> str:
        """Show the usage of its limits; for a policy of many entities, of shared limits only."""
        if state.standing.get(row.pk) not in _COUNTING:
            return "-"
        if row.counted == Counted.TOTAL and row.effect == PolicyEffect.LIMITS:
            return gettext("counted over all resources")
        own = [limit for limit in state.limits if limit.level == row.scope]
        if row.resource_id is None or row.entity_id is None:
            own = [limit for limit in own if limit.shared and row.resource_id is not None]
        return shown_limits(state, own, named=False) or gettext("counted for each")

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **options: Any) -> HttpResponse:
        """Show the form; the policy that was made for a URL rule is changed there."""
        policy = self.get_object(request, unquote(object_id))
        rule = None if policy is None else rule_of(policy)
        site = self.admin_site.name
        if rule is not None and may(request.user, Action.LIMIT_SOMETHING, *to_replace_row(rule)):
            return HttpResponseRedirect(limit_address(site, rule))
        if rule is not None and may_change_rows(request.user, "view", Endpoint):
            return HttpResponseRedirect(full_form_address(site, rule))
        return super().change_view(request, object_id, *args, **options)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether a policy may be changed here: one that was made for a URL rule may not."""
        may_change = super().has_change_permission(request, obj)
        return may_change and (obj is None or rule_of(obj) is None)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save and record the policy, and name the limits that it drops."""
        super().save_related(request, form, formsets, change)
        for warning in (dropped_limits_warning([form.instance.pk]), _replaced_block(form.instance)):
            if warning:
                self.message_user(request, warning, messages.WARNING)

    def get_urls(self) -> list[URLPattern]:
        """Add the URL of the page."""
        view = self.admin_site.admin_view(self.grant_view)
        return [path("boost/", view, name="limits_app_policy_boost"), *super().get_urls()]

    def grant_view(self, request: HttpRequest) -> HttpResponse:
        """Show the form, or grant the boost."""
        if not self.has_boost_permission(request):
            raise PermissionDenied
        initial = {name: request.GET[name] for name in ("whom", "entity") if name in request.GET}
        form = GrantForm(request.POST if request.method == "POST" else None, initial=initial)
        if not self.has_boost_policies_permission(request):
            form.fields["whom"].choices = [(Boosted.ENTITY.value, Boosted.ENTITY.label)]  # type: ignore[attr-defined]
        boosts: list[PlannedBoost] = []
        if form.is_valid() and form.cleaned_data["whom"] != Boosted.ENTITY:
            data, rows = form.cleaned_data, form.policies()[: MOST_ROWS + 1]
            boosts = services.planned_boosts(rows, data["factor"], data["until"])
        if form.is_valid() and (
            self._boost_listed(request, form, boosts) if boosts else self._boost_entity(request, form)
        ):
            return HttpResponseRedirect(self.list_or_index(request))
        title = gettext("Grant a boost")
        in_words = policies_in_words([boost.policy for boost in boosts], {})
        shown = [
            {"policy": words, "text": boost_in_words(boost), "problem": boost.problem}
            for boost, words in zip(boosts, in_words, strict=True)
        ]
        return confirmation(self, request, form, title=title, boosts=shown, back=self.list_or_index(request))

    def _boost_listed(self, request: HttpRequest, form: GrantForm, boosts: Sequence[PlannedBoost]) -> bool:
        """Boost the policies that can be boosted, once the list of changes was confirmed."""
        data, possible = form.cleaned_data, [boost.policy for boost in boosts if not boost.problem]
        if len(boosts) > MOST_ROWS:
            form.add_error(None, gettext("At most %(count)s policies can be boosted at once.") % {"count": MOST_ROWS})
        if "listed" not in request.POST or not possible or form.errors:
            return False
        try:
            with self.acting(request):
                services.boost_policies(possible, data["factor"], data["until"], data["reason"])
        except LimitsError as error:
            form.add_error(None, str(error))
            return False
        values = {"count": len(possible), "until": moment(data["until"])}
        message = ngettext(
            "%(count)s policy is boosted until %(until)s.",
            "%(count)s policies are boosted until %(until)s.",
            len(possible),
        )
        self.message_user(request, message % values, messages.SUCCESS)
        return True

    def _boost_entity(self, request: HttpRequest, form: GrantForm) -> bool:
        """Grant the boost of an entity; errors are shown in the form."""
        data = form.cleaned_data
        if data["whom"] != Boosted.ENTITY:
            form.add_error(None, gettext("There is no permanent policy with limits to boost."))
            return False
        try:
            with self.acting(request):
                if not may(request.user, Action.BOOST, *to_create_entity(data["entity"])):
                    form.add_error(
                        "entity", gettext("This entity has no row: you need the permission to add entities.")
                    )
                    return False
                boosted = boost_client(data["entity"], data)
        except LimitsError as error:
            form.add_error(None, str(error))
            return False
        values = {
            "policies": ", ".join(policies_in_words(boosted, {})),
            "when": boosted[0].when(moment),
        }
        message = gettext("Boosted %(when)s: %(policies)s.") % values
        self.message_user(request, message, messages.SUCCESS)
        # Pages are imported when they are opened.
        from limits_app.admin.pages.client_limits import kept_by_teams, limits_of_client

        names = {policy.resource.name for policy in boosted if policy.resource is not None}
        limits = limits_of_client(self.admin_site, data["entity"], names, None).get("limits", ())
        for kept in kept_by_teams(self.admin_site, data["entity"], limits):
            self.message_user(request, kept, messages.WARNING)
        return True


def _replaced_block(policy: Policy) -> str:
    """Return a warning that names the policies that override a saved block of the whole system; empty without any."""
    warning = gettext("Other policies override this block: %(others)s. Count usage together to block everything.")
    others = ", ".join(overriding_block(policy))
    return warning % {"others": others} if others else ""
