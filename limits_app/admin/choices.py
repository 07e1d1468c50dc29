"""The rows that pickers offer, in the words of the lists: URLs for resources of URL rules, sentences for policies."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin.views.autocomplete import AutocompleteJsonView
from django.db.models import Model, QuerySet

from limits_app.services.policy_words import row_in_words


class RowsView(AutocompleteJsonView):
    """What a picker finds."""

    def get_queryset(self) -> QuerySet[Any]:
        """Read what names of rows need at once."""
        rows: QuerySet[Any] = super().get_queryset()
        related = self.model_admin.list_select_related
        return rows.select_related(*related) if isinstance(related, list | tuple) else rows

    def serialize_result(self, obj: Any, to_field_name: str) -> dict[str, str]:
        """A row that can be chosen."""
        return {"id": str(getattr(obj, to_field_name)), "text": row_in_words(obj)}


class RowField(forms.ModelChoiceField):  # type: ignore[type-arg]  # generic only in its type stubs
    """A row that was chosen."""

    def label_from_instance(self, obj: Model) -> str:
        """The name of the row."""
        return row_in_words(obj)
