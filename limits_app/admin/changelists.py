"""Lists of many rows, and lists that show current usage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.base import AuditedAdmin
from limits_app.admin.formatting import LEVELS, bar_of
from limits_app.engine.errors import LimitsError
from limits_app.models import Entity, PolicyEffect
from limits_app.models.patterns import begins
from limits_app.policies import Pair
from limits_app.services import LimitState, RowState
from limits_app.services.clients import users_named
from limits_app.services.display import amount
from limits_app.services.limit_words import limit_name

MOST_COUNTED: Final = 10_000
"""The maximum number of rows that a list counts and pages through; users filter or search for others."""


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # generic only in its type stubs
    """Pages over the first rows of a list."""

    long_ordering: tuple[Any, ...] = ()
    listed_first: Q | None = None

    @cached_property
    def count(self) -> int:
        """Count the rows, up to one more than can be shown."""
        return min(self.found, MOST_COUNTED)

    @cached_property
    def found(self) -> int:
        """Count one row more, to know that there are more."""
        rows: Any = self.object_list
        return int(rows.order_by()[: MOST_COUNTED + 1].count())

    def page(self, number: int | str) -> Page[Any]:
        """Return a page; with more rows than are counted, in an order that an index supports."""
        rows: Any = self.object_list
        if self.long_ordering and isinstance(rows, QuerySet) and self.found > MOST_COUNTED:
            rows = rows.order_by(*self.long_ordering, "-pk")
            self.object_list = rows if self.listed_first is None else _SomeFirst(rows, self.listed_first)
        return super().page(number)


class _SomeFirst(Sequence[Any]):
    """Ordered rows, those that meet a condition before all others: no index has such an order."""

    def __init__(self, rows: QuerySet[Any], condition: Q) -> None:
        self._first = rows.filter(condition)
        self._others = rows.exclude(condition)

    def __len__(self) -> int:
        return self._first.count() + self._others.count()

    def __getitem__(self, part: Any) -> Any:
        first = [*self._first[:MOST_COUNTED]]
        start, stop = (max(index - len(first), 0) for index in (part.start, part.stop))
        return first[part] + [*self._others[start:stop]]


if TYPE_CHECKING or not apps.is_installed("import_export"):
    _Files = AuditedAdmin
else:
    from limits_app.admin.imports_exports import ImportExportAdmin as _Files


class LargeChangeList(ChangeList):
    """Orders equal rows in the direction of the first column, so that one index supports both directions."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order of the rows."""
        ordering: list[Any] = list(super().get_ordering(request, queryset))
        if isinstance(ordering[0], str) and not ordering[0].startswith("-") and ordering[-1] == "-pk":
            ordering[-1] = "pk"
        return ordering


class LargeListAdmin(_Files):
    """A list that counts, searches and sorts only as many rows as a database can handle quickly.

    With the app import_export, its rows can be imported and exported.
    Short tables are searched for `search_fields`; long ones for rows in which one of `begins_with` starts so.
    Users are found by their names, which are in another table.
    Where more rows are found than are counted, they are sorted by `long_ordering`, if there is one.
    """

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    begins_with: tuple[str, ...] = ()
    long_ordering: tuple[Any, ...] = ()
    identifier = ""
    """The field with the identifier of a client, for a search by the name of a user."""
    search_help_text = _("Long lists are searched by prefix, short lists by any part of the name.")

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        """Return the class of the list."""
        return LargeChangeList

    def get_paginator(self, request: HttpRequest, *args: Any, **options: Any) -> Paginator[Any]:
        """Return the paginator; long lists have no default order."""
        paginator = super().get_paginator(request, *args, **options)
        if ORDER_VAR not in request.GET and isinstance(paginator, CappedPaginator):
            paginator.long_ordering, paginator.listed_first = self.long_ordering, self.listed_first(request)
        return paginator

    def listed_first(self, request: HttpRequest) -> Q | None:
        """Return which rows are first in a long list that is not sorted by a column; None for those of its order."""
        return None

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search, with an index if the table is long."""
        users = users_named(search_term) if self.identifier else []
        named = queryset.filter(**{f"{self.identifier}__in": users}) if users else queryset.none()
        if "\0" in search_term or not search_term or not self._is_long():
            rows, is_repeating = super().get_search_results(request, queryset, search_term)
            return (rows | named if users else rows), is_repeating
        condition = Q()
        for field in self.begins_with:
            condition |= self._begins(field, search_term, queryset.db)
        return queryset.filter(condition) | named, False

    def changelist_view(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        """Show the list, with a message if it is truncated."""
        response: HttpResponse = super().changelist_view(request, *args, **options)
        context = getattr(response, "context_data", None) or {}
        if "cl" in context and context["cl"].paginator.found > MOST_COUNTED:
            context["subtitle"] = gettext("the first %(count)s: search or filter for others") % {"count": MOST_COUNTED}
        return response

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **options: Any
    ) -> HttpResponse | None:
        """Run the chosen action; rejects “select all” on a truncated list."""
        if request.POST.get("select_across", "0") != "0" and CappedPaginator(queryset, 1).found > MOST_COUNTED:
            problem = gettext("This list is truncated: filter it before you select all rows.")
            self.message_user(request, problem, messages.ERROR)
            return None
        return super().response_action(request, queryset, *args, **options)

    def _is_long(self) -> bool:
        rows = self.model._default_manager.order_by().values("pk")
        return bool(rows[MOST_COUNTED : MOST_COUNTED + 1].exists())

    def _begins(self, field: str, text: str, using: str) -> Q:
        """Rows of which a field begins with a text; those of a related table come first, since a join looks at all."""
        relation, _dunder, name = field.rpartition("__")
        model: Any = self.model._meta.get_field(relation).related_model if relation else self.model
        is_label = model is Entity and name == "name"  # is compared in any case, and by no index
        condition = Q(name__istartswith=text) if is_label else begins(name, text, using)
        if not relation:
            return condition
        return Q(**{f"{relation}__in": model._base_manager.using(using).filter(condition).values("pk")})


_EFFECTS: Final = {PolicyEffect.BLOCKED: _("blocked"), PolicyEffect.UNLIMITED: _("unlimited")}


class UsageListAdmin(LargeListAdmin):
    """A list with a column of current usage, and one of where the limits were set."""

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Read the rows of a page and set the states that each shows, None if they cannot be read."""
        changelist = super().get_changelist_instance(request)
        changelist.result_list = rows = list(changelist.result_list)
        pairs = {row.pk: list(pairs) for row, pairs in zip(rows, self.pairs(rows), strict=True)}
        try:
            states = iter(services.overview([pair for some in pairs.values() for pair in some]))
        except LimitsError:
            states = None
        for row in rows:
            row.states = None if states is None else [next(states) for _pair in pairs[row.pk]]
        self.prepare(rows)
        if ORDER_VAR not in request.GET:
            rows.sort(key=self.need)  # keeps the order of those with the same need
        return changelist

    def prepare(self, rows: Sequence[Any]) -> None:
        """Read what else the rows of a page show, at once for all of them."""

    def need(self, row: Any) -> int:
        """The urgency of a row of a page: the smallest number is shown first."""
        return 0

    @abstractmethod
    def pairs(self, rows: Sequence[Any]) -> Iterable[Iterable[Pair]]:
        """Return which resources and entities each row is about."""

    @admin.display(description=_("in use now"))
    def in_use(self, row: Any) -> str:
        """Show the usage of each limit."""
        if row.states is None:
            return gettext("unknown")
        return format_html_join("", "{}", ((self.state_in_words(row, state),) for state in row.states)) or "-"

    @admin.display(description=_("limits from"))
    def source(self, row: Any) -> str:
        """Show where the limits were set, and whether there are others in shadow mode."""
        if row.states is None:
            return gettext("unknown")
        return ", ".join(dict.fromkeys(word for state in row.states for word in _source(state))) or "-"

    def state_in_words(self, row: Any, state: RowState) -> SafeString | str:
        """Show one state of a row."""
        return shown_limits(state, state.limits, named=False)


def shown_limits(state: RowState, limits: Iterable[LimitState], *, named: bool) -> SafeString | str:
    """Show limits with bars, under the name of their resource where there are several."""
    label = format_html("<strong>{}</strong> ", state.resource) if named else ""
    if state.effect != PolicyEffect.LIMITS:
        return format_html("<div>{}{}</div>", label, _EFFECTS[state.effect])
    lines = format_html_join("", "<li>{}</li>", ((limit_line(limit),) for limit in limits))
    return format_html('<div>{}<ul class="limits-state">{}</ul></div>', label, lines) if lines else ""


def limit_line(limit: LimitState) -> SafeString:
    """Show one limit: its key, a bar, and the numbers for screen readers."""
    key = limit_name(limit.key)
    if limit.shared:
        key = gettext("%(key)s (shared)") % {"key": key}
    if limit.used is None or limit.available is None:
        return format_html("{}: {}", key, gettext("unknown of %(capacity)s") % {"capacity": amount(limit.capacity)})
    drawn = bar_of(limit)
    numbers = {"used": drawn.used, "capacity": drawn.capacity, "left": drawn.remaining}
    words = gettext("%(used)s of %(capacity)s used, %(left)s left") % numbers
    words = f"{words}, {drawn.in_slices}" if drawn.in_slices else words
    share = f"{min(max(limit.share, 0.0), 1.0):.3f}"
    meter = '<meter min="0" max="1" low="0.8" high="0.95" optimum="0" value="{}" aria-label="{}"></meter>'
    figures = '<span class="limits-figures">{}</span>'
    short = gettext("%(used)s of %(capacity)s") % numbers
    return format_html("{}: " + meter + " " + figures, key, share, f"{key}: {words}", short)


def fullest(states: Iterable[RowState]) -> tuple[RowState, LimitState] | None:
    """The limit with the largest share in use, and the state that it is of; None where nothing is limited."""
    limits = [(state, limit) for state in states for limit in state.limits]
    return max(limits, key=lambda pair: pair[1].share, default=None)


def _source(state: RowState) -> Iterable[str]:
    for level in state.levels:
        yield str(LEVELS[level])
    for level in state.shadow_levels:
        yield gettext("%(level)s (shadow mode)") % {"level": LEVELS[level]}
    if not state.levels:
        yield gettext("no limits")
