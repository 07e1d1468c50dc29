"""Filters of the list of policies: by scope, by time, and by the kind of their limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from limits_app.models import Limit, Policy, PolicyScope, in_scope
from limits_app.models.policy_rules import not_ended
from limits_app.services.limit_fields import LimitKind, of_kind

_HOLDS: Final[Mapping[str, tuple[Any, Callable[[datetime], Q]]]] = {
    "always": (_("always"), lambda now: Q(valid_from=None, weekly_hours="")),
    "dates": (_("between dates"), lambda now: Q(valid_from__isnull=False)),
    "now": (
        _("between dates, now"),
        lambda now: Q(valid_from__lte=now) & not_ended(now),
    ),
    "to_come": (_("between dates, later"), lambda now: Q(valid_from__gt=now)),
    "ended": (_("between dates, ended"), lambda now: ~not_ended(now)),
    "hours": (_("at weekly hours"), lambda now: ~Q(weekly_hours="")),
}


class ScopeFilter(admin.SimpleListFilter):
    """By the scope of policies."""

    title = _("scope")
    parameter_name = "scope"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Any]:
        """Return the scopes."""
        return list(PolicyScope.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        """Keep the policies of the chosen scope."""
        scope = self.value()
        return queryset.filter(in_scope(scope)) if scope in PolicyScope.values else queryset


class HoldsFilter(admin.SimpleListFilter):
    """By when policies apply; those between dates are boosts and freezes."""

    title = _("time of validity")
    parameter_name = "holds"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Any]:
        """Return the times."""
        return [(value, label) for value, (label, _condition) in _HOLDS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        """Keep the policies that hold so, and show those that hold now in the order in which they end."""
        chosen = self.value() or ""
        if chosen not in _HOLDS:
            return queryset
        policies = queryset.filter(_HOLDS[chosen][1](timezone.now()))
        return policies.order_by("valid_until") if chosen == "now" else policies


class KindFilter(admin.SimpleListFilter):
    """By the kind of limits that policies have."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Any]:
        """Return the kinds."""
        return list(LimitKind.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        """Keep the policies with a limit of the chosen kind."""
        kind = self.value()
        if kind not in LimitKind.values:
            return queryset
        return queryset.filter(Exists(Limit.objects.filter(of_kind(kind), policy=OuterRef("pk"))))
