"""Lists that answer whatever is asked of them, also what no database could."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin import ModelAdmin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
    from django.db.models import QuerySet
    from django.http import HttpRequest

    Admin = ModelAdmin[Any]
else:
    Admin = ModelAdmin  # it takes no parameter when the code runs

__all__ = ["SoundListAdmin"]

_NUL = "\0"


class SoundListAdmin(Admin):
    """A list that answers what nobody can filter by as it answers other filters that cannot be."""

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Filter; Django itself fails on NUL, and where the next year, or the same moment in UTC, is no date."""
        filters = ((name, value) for name, values in request.GET.lists() for value in values if name != SEARCH_VAR)
        if any(_NUL in name + value for name, value in filters):
            raise IncorrectLookupParameters
        try:
            return super().get_changelist_instance(request)
        except (OverflowError, ValueError) as error:
            raise IncorrectLookupParameters from error

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search; where one types to find a related row, Django itself fails on NUL, which is in no text."""
        if _NUL in search_term:
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)
