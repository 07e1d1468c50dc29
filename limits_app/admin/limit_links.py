"""Where limits are changed: in words where a sentence says all of them, else in the full form."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.urls import reverse

from limits_app.models import Endpoint, Policy
from limits_app.services.limit_sentences import is_sentence, rule_of


def limit_address(site: str, row: Endpoint | Policy, **query: str) -> str:
    """The form in words of a rule or a policy; of a policy that was made for a rule, that of the rule."""
    rule = rule_of(row) if isinstance(row, Policy) else row
    name = "policy" if rule is None else "rule"
    return reverse(f"{site}:limits_app_limit", query={name: str((rule or row).pk), **query})


def full_form_address(site: str, row: Endpoint | Policy) -> str:
    """The form with all fields of a rule or a policy."""
    return reverse(f"{site}:limits_app_{row._meta.model_name}_change", args=[row.pk])


class LimitsChangeList(ChangeList):
    """A list whose rows lead to the form in words, as far as it can say what they are."""

    def url_for_result(self, result: Any) -> str:
        """The address of a row."""
        if self.is_popup or not is_sentence(result):
            return super().url_for_result(result)
        name = "rule" if isinstance(result, Endpoint) else "policy"
        return reverse(f"{self.model_admin.admin_site.name}:limits_app_limit", query={name: str(result.pk)})
