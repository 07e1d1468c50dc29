"""Policies with their limits, as one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.forms.formsets import DELETION_FIELD_NAME
from django.forms.models import BaseInlineFormSet
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.audited import AuditedAdmin
from limits_app.admin.limit_form import LimitForm
from limits_app.models import Limit, Policy, PolicyEffect, PolicyScope
from limits_app.services.dropped import dropped_keys

if TYPE_CHECKING:
    from django.contrib.admin.options import ModelAdmin
    from django.db.models import QuerySet
    from django.forms import ModelForm
    from django.http import HttpRequest

    LimitForms = BaseInlineFormSet[Limit, Policy, ModelForm[Limit]]
    Inline = admin.TabularInline[Limit, Policy]
else:
    LimitForms = BaseInlineFormSet  # they take no parameters when the code runs
    Inline = admin.TabularInline

__all__ = ["PolicyAdmin"]

_MOST_DROPPED: Final = 10
"""How many dropped keys a warning names."""

_SCOPES: Final[Mapping[str, Q]] = {
    PolicyScope.SYSTEM: Q(resource=None, entity=None),
    PolicyScope.RESOURCE: Q(resource__isnull=False, entity=None),
    PolicyScope.ENTITY: Q(resource=None, entity__isnull=False),
    PolicyScope.ENTITY_ON_RESOURCE: Q(resource__isnull=False, entity__isnull=False),
}


_HOLDS: Final[Mapping[str, Q]] = {
    "always": Q(valid_from=None, weekly_hours=""),
    "dates": Q(valid_from__isnull=False),
    "hours": ~Q(weekly_hours=""),
}


class LimitFormSet(LimitForms):
    """The limits of one policy."""

    def clean(self) -> None:
        """Refuse a policy that would replace broader limits by none at all."""
        super().clean()
        kept = [form for form in self.forms if _is_kept(form)]
        if self.instance.effect == PolicyEffect.LIMITS and not kept:
            raise ValidationError(gettext("Add at least one limit, or choose the effect “unlimited” or “blocked”."))


def _is_kept(form: Any) -> bool:
    deleted = form.cleaned_data.get(DELETION_FIELD_NAME, False)
    return not deleted and (form.instance.pk is not None or form.has_changed())


class LimitInline(Inline):
    """Limits are parts of their policy: who may change the policy may change them."""

    model = Limit
    form = LimitForm
    formset = LimitFormSet
    exclude = ["member"]
    extra = 1

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may look at the policy."""
        return self._may(request, "view") or self._may(request, "change")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may add this policy, or change it when it is there."""
        return self._may(request, "add" if obj is None else "change")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may add this policy, or change it when it is there."""
        return self.has_add_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may add this policy, or change it when it is there."""
        return self.has_add_permission(request, obj)

    def _may(self, request: HttpRequest, verb: str) -> bool:
        return request.user.has_perm(f"limits_app.{verb}_policy")


class ScopeFilter(admin.SimpleListFilter):
    """For whom policies hold."""

    title = _("scope")
    parameter_name = "scope"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Any]:
        """Offer the scopes, the most specific first."""
        return list(PolicyScope.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        """Keep the policies of the chosen scope."""
        return queryset.filter(_SCOPES.get(self.value() or "", Q()))


class HoldsFilter(admin.SimpleListFilter):
    """When policies hold."""

    title = _("holds")
    parameter_name = "holds"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Any]:
        """Offer what there is beside policies that always hold."""
        return [("always", _("always")), ("dates", _("between dates")), ("hours", _("at weekly hours"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        """Keep the policies that hold so."""
        return queryset.filter(_HOLDS.get(self.value() or "", Q()))


class PolicyAdmin(AuditedAdmin):
    """What holds for whom."""

    list_display = [
        "__str__",
        "scope_in_words",
        "effect",
        "limits_in_words",
        "holds",
        "enforcement_in_words",
        "reason",
        "updated_at",
    ]
    list_filter = [ScopeFilter, "effect", "enforcement", HoldsFilter, "limits__kind"]
    list_select_related = ["resource", "entity"]
    search_fields = ["resource__name", "entity__identifier", "entity__name", "limits__key", "reason"]
    autocomplete_fields = ["resource", "entity"]
    readonly_fields = ["created_at", "updated_at"]
    fieldsets = [
        (None, {"fields": ["resource", "entity", "effect", "extends", "reason"]}),
        (_("When it holds"), {"fields": [("valid_from", "valid_until"), ("weekly_hours", "time_zone")]}),
        (_("How it is obeyed"), {"fields": [("enforcement", "rollout_percent"), "on_unavailable"]}),
        (_("History"), {"fields": ["created_at", "updated_at"]}),
    ]
    inlines = [LimitInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Fetch the limits of all rows at once."""
        policies: QuerySet[Any] = super().get_queryset(request)
        return policies.prefetch_related("limits")

    @admin.display(description=_("scope"))
    def scope_in_words(self, policy: Policy) -> str:
        """Say for whom it holds."""
        return str(policy.scope.label)

    @admin.display(description=_("holds"), ordering="valid_from")
    def holds(self, policy: Policy) -> str:
        """Say when it holds."""
        return policy.when()

    @admin.display(description=_("enforcement"), ordering="enforcement")
    def enforcement_in_words(self, policy: Policy) -> str:
        """Say whether it is obeyed, and by how many."""
        if policy.rollout_percent == 100:
            return policy.enforcement
        return f"{policy.enforcement}, {policy.rollout_percent} %"

    @admin.display(description=_("limits"))
    def limits_in_words(self, policy: Policy) -> str:
        """Say what it limits."""
        return ", ".join(str(limit) for limit in policy.limits.all())

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save and record the policy, and name the limits that it drops."""
        super().save_related(request, form, formsets, change)
        dropped = [f"{key} ({level})" for key, level in dropped_keys(_as_saved(form.instance))]
        if not dropped:
            return
        named = ", ".join(dropped[:_MOST_DROPPED]) + (", …" if len(dropped) > _MOST_DROPPED else "")
        warning = gettext(
            "This policy replaces broader ones as a whole, and these limits of theirs hold no longer where it holds: "
            "%(dropped)s. Add them to it if they should."
        )
        self.message_user(request, warning % {"dropped": named}, messages.WARNING)


def _as_saved(policy: Policy) -> Policy:
    """The policy read again, because the form's own remembers the limits that it had before."""
    return Policy.objects.using(policy._state.db).get(pk=policy.pk)
