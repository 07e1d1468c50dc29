"""What lists can be filtered by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from limits_app.models import Limit, LimitKind, Policy, PolicyScope, in_scope

_HOLDS: Final[Mapping[str, tuple[Any, Callable[[datetime], Q]]]] = {
    "always": (_("always"), lambda now: Q(valid_from=None, weekly_hours="")),
    "dates": (_("between dates"), lambda now: Q(valid_from__isnull=False)),
    "boosts": (
        _("between dates, now"),
        lambda now: Q(valid_from__lte=now) & (Q(valid_until=None) | Q(valid_until__gt=now)),
    ),
    "to_come": (_("between dates, later"), lambda now: Q(valid_from__gt=now)),
    "ended": (_("between dates, ended"), lambda now: Q(valid_until__lte=now)),
    "hours": (_("at weekly hours"), lambda now: ~Q(weekly_hours="")),
}


class _ChoiceFilter(admin.SimpleListFilter):
    """Offers the `choices_offered` of a subclass, in their order."""

    choices_offered: Sequence[tuple[str, Any]]

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Any]:
        """Offer the choices."""
        return list(self.choices_offered)


class ScopeFilter(_ChoiceFilter):
    """For whom policies hold."""

    title = _("scope")
    parameter_name = "scope"
    choices_offered = PolicyScope.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        """Keep the policies of the chosen scope."""
        scope = self.value()
        return queryset.filter(in_scope(scope)) if scope in PolicyScope.values else queryset


class HoldsFilter(_ChoiceFilter):
    """When policies hold; those between dates are boosts and freezes."""

    title = _("time of validity")
    parameter_name = "holds"
    choices_offered = tuple((value, label) for value, (label, _condition) in _HOLDS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        """Keep the policies that hold so, and show boosts in the order in which they end."""
        chosen = self.value() or ""
        if chosen not in _HOLDS:
            return queryset
        found = queryset.filter(_HOLDS[chosen][1](timezone.now()))
        return found.order_by("valid_until") if chosen == "boosts" else found


class KindFilter(_ChoiceFilter):
    """What kinds of limits policies have."""

    title = _("kind of limit")
    parameter_name = "kind"
    choices_offered = LimitKind.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        """Keep the policies that have a limit of the chosen kind."""
        if self.value() is None:
            return queryset
        return queryset.filter(Exists(Limit.objects.filter(policy=OuterRef("pk"), kind=self.value())))
