"""Lists that stay quick however many rows there are: counted up to a number, and searched by what an index knows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.contrib import messages
from django.contrib.admin.views.main import ORDER_VAR
from django.core.paginator import Page, Paginator
from django.db import connections
from django.db.models import Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.audited import AuditedAdmin

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse

    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator  # it takes no parameter when the code runs

__all__ = ["MOST_COUNTED", "CappedPaginator", "LargeListAdmin", "Link"]

MOST_COUNTED: Final = 10_000
"""How many rows a list counts and lets people turn the pages of; whoever looks for more of them filters or searches."""

_LAST: Final = "\U0010ffff"
"""No character comes after it."""


class Link(NamedTuple):
    """A page that a list points at."""

    address: str
    label: str


class CappedPaginator(AnyPaginator):
    """Pages over the first rows of a list."""

    long_ordering: tuple[Any, ...] = ()

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
        """Give a page, in an order that an index knows where there are more rows than are counted."""
        if self.long_ordering and self.found > MOST_COUNTED:
            rows: Any = self.object_list
            self.object_list = rows.order_by(*self.long_ordering, "-pk")
        return super().page(number)


class LargeListAdmin(AuditedAdmin):
    """A list of which nobody counts, searches or sorts more than a database does at once.

    Short tables are searched for `search_fields`; long ones for rows in which one of `begins_with` starts so.
    Where more rows are found than are counted, they are sorted by `long_ordering`, if there is one.
    """

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    begins_with: tuple[str, ...] = ()
    long_ordering: tuple[Any, ...] = ()
    search_help_text = _("Long lists are searched for names that begin so, short ones for any part of them.")

    def get_paginator(self, request: HttpRequest, *args: Any, **options: Any) -> AnyPaginator:
        """Give the pages of a list; nobody minds in which order a long one is, unless they ask for one."""
        paginator = super().get_paginator(request, *args, **options)
        if ORDER_VAR not in request.GET and isinstance(paginator, CappedPaginator):
            paginator.long_ordering = self.long_ordering
        return paginator

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search, by an index where the table is long."""
        if "\0" in search_term or not search_term or not self._is_long():
            return super().get_search_results(request, queryset, search_term)
        found = Q()
        for field in self.begins_with:
            found |= self._begins(field, search_term, queryset.db)
        return queryset.filter(found), False

    def changelist_view(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        """Show the list, and say so where it does not end where it seems to."""
        response: HttpResponse = super().changelist_view(request, *args, **options)
        context = getattr(response, "context_data", None) or {}
        if "cl" not in context:
            return response
        context["links"] = list(self.links(request))
        if context["cl"].paginator.found > MOST_COUNTED:
            context["subtitle"] = gettext("the first %(count)s: search or filter for others") % {"count": MOST_COUNTED}
        return response

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **options: Any
    ) -> HttpResponse | None:
        """Do the chosen action, but not to all rows of a list that shows only the first of them."""
        if request.POST.get("select_across", "0") != "0" and CappedPaginator(queryset, 1).found > MOST_COUNTED:
            problem = gettext("This list goes on beyond the rows that it counts: filter it, and select all then.")
            self.message_user(request, problem, messages.ERROR)
            return None
        return super().response_action(request, queryset, *args, **options)

    def links(self, request: HttpRequest) -> Iterable[Link]:
        """Give the pages that the list points at, beside the one that adds a row."""
        return ()

    def _is_long(self) -> bool:
        rows = self.model._default_manager.order_by().values("pk")
        return bool(rows[MOST_COUNTED : MOST_COUNTED + 1].exists())

    def _begins(self, field: str, text: str, using: str) -> Q:
        """Rows of which a field begins with a text; those of a related table come first, since a join looks at all."""
        relation, _dunder, name = field.rpartition("__")
        if not relation:
            return begins(name, text, using)
        related: Any = self.model._meta.get_field(relation).related_model
        return Q(
            **{f"{relation}__in": related._base_manager.using(using).filter(begins(name, text, using)).values("pk")}
        )


def begins(field: str, text: str, using: str) -> Q:
    """Rows whose field begins with a text, in words that the database looks up in an index."""
    if connections[using].vendor == "postgresql":
        return Q(**{f"{field}__startswith": text})
    return Q(**{f"{field}__gte": text, f"{field}__lt": text + _LAST})
