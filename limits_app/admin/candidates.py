"""The list of candidates, with actions that promote, discard and revert them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.action_forms import ReasonForm
from limits_app.admin.actions import Ask, ConfirmedAction
from limits_app.admin.base import AuditedAdmin
from limits_app.models import Candidate
from limits_app.services.candidates import reports

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["CandidateAdmin"]


def _promote(candidate: Candidate, ask: Ask) -> None:
    services.promote_candidate(candidate.policy, reason=ask.reason, actor=ask.actor)


def _revert(candidate: Candidate, ask: Ask) -> None:
    services.revert_candidate(candidate.policy, reason=ask.reason, actor=ask.actor)


def _discard(candidate: Candidate, ask: Ask) -> None:
    services.discard_candidate(candidate.policy, reason=ask.reason, actor=ask.actor)


class CandidateAdmin(AuditedAdmin):
    """Candidates with what they would reject; the permission to change policies covers the actions."""

    list_display = ["policy", "limits", "state", "percent", "evaluated", "rejected", "rejected_percent"]
    list_filter = ["state"]
    list_select_related = ["policy__resource", "policy__entity", "policy__plan"]
    search_fields = ["policy__resource__name", "policy__entity__identifier", "limits"]
    autocomplete_fields = ["policy"]
    fields = ["policy", "limits", "percent", ("revert_percent", "revert_minutes"), "reason"]
    actions = [
        ConfirmedAction("promote", _("Promote candidates"), allowed="promote", form=ReasonForm, do=_promote),
        ConfirmedAction("revert", _("Revert promoted candidates"), allowed="promote", form=ReasonForm, do=_revert),
        ConfirmedAction("discard", _("Discard candidates"), allowed="promote", form=ReasonForm, do=_discard),
    ]

    def has_promote_permission(self, request: HttpRequest) -> bool:
        """Whether the user may change candidates and policies."""
        return request.user.has_perms(["limits_app.change_candidate", "limits_app.change_policy"])

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether a candidate may be changed: one whose counts would be of other limits may not."""
        return obj is None and super().has_change_permission(request, obj)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the counts of all rows at once."""
        found = super().get_changelist_instance(request)
        rows = list(found.result_list)
        for row, report in zip(rows, reports(rows), strict=True):
            row.report = report
        found.result_list = rows
        return found

    @admin.display(description=_("evaluated"))
    def evaluated(self, candidate: Any) -> int:
        """Show how many requests it evaluated."""
        return int(candidate.report.evaluated)

    @admin.display(description=_("would reject"))
    def rejected(self, candidate: Any) -> int:
        """Show how many of them it would have rejected; once promoted, has rejected."""
        return int(candidate.report.rejected)

    @admin.display(description=_("%"))
    def rejected_percent(self, candidate: Any) -> float:
        """Show the same in percent."""
        return float(candidate.report.rejected_percent)
