"""The list of candidates, with buttons that promote, discard and revert them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import prefetch_related_objects
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.base import AuditedAdmin, confirmation
from limits_app.engine.errors import LimitsError
from limits_app.models import Candidate, CandidateState, Policy
from limits_app.services.candidates import is_replaced, reports
from limits_app.services.display import amount, percent
from limits_app.services.limit_words import limits_in_words
from limits_app.services.policy_words import policies_in_words, policy_in_words
from limits_app.services.rights import Action, may

_DECISIONS: Final[Mapping[str, tuple[CandidateState, Any, Callable[[Policy], object]]]] = {
    "promote": (CandidateState.TESTING, _("Enforce now"), services.promote_candidate),
    "discard": (CandidateState.TESTING, _("Discard"), services.discard_candidate),
    "revert": (CandidateState.PROMOTED, _("Revert"), services.revert_candidate),
}
"""What can be done with a candidate: in which state, the label of the button, and the function."""

_LABELLED: Final = '<span class="limits-phone">{}: </span>{}'
_EVERY_CLIENT_PERCENT: Final = 100
_USUAL_REVERT_PERCENT: Final = 10
"""The share of rejected entities above which a promotion is reverted, unless another one is chosen."""


_BUTTON: Final = (
    '<button type="submit" class="button limits-decide" formaction="{}" formmethod="post" formnovalidate>'
    '{}<span class="visually-hidden"> {}</span></button>'
)


_SHOWN: Final = {"policy": "about", "limits": "limits_in_words"}
"""What the page of a trial shows instead of fields."""


class PromotionForm(ModelForm):  # type: ignore[type-arg]  # generic only in its type stubs
    """When a promotion is reverted by itself."""

    class Meta:
        model = Candidate
        fields = ["revert_percent", "revert_minutes"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance.revert_percent is None:
            self.initial["revert_percent"] = _USUAL_REVERT_PERCENT


def _effect(candidate: Candidate) -> str:
    """Say what the candidate would have rejected so far."""
    report = reports([candidate])[0]
    if not report.trial_evaluated:
        return gettext("No request was evaluated so far: what it would reject is unknown.")
    text = gettext("It would have rejected %(rejected)s of %(evaluated)s requests (%(share)s).")
    return text % _values(report.trial_rejected, report.trial_evaluated)


def _done(candidate: Candidate, decision: str) -> str:
    """Say what was done with a candidate."""
    message = gettext("%(action)s: done for “%(policy)s”.")
    if decision == "promote":
        message = gettext("Enforced for “%(policy)s”: %(limits)s.")
    _state, label, _do = _DECISIONS[decision]
    policy = policy_in_words(candidate.policy, {})
    return message % {"action": label, "policy": policy, "limits": limits_in_words(candidate.limits)}


def _figures(rejected: int, evaluated: int) -> str:
    """For example “31 of 40 (77.5 %)”; a dash before the first request."""
    text = gettext("%(rejected)s of %(evaluated)s (%(share)s)")
    return text % _values(rejected, evaluated) if evaluated else "-"


def _values(rejected: int, evaluated: int) -> dict[str, str]:
    return {"rejected": amount(rejected), "evaluated": amount(evaluated), "share": percent(rejected / evaluated)}


@admin.register(Candidate)
class CandidateAdmin(AuditedAdmin):
    """Candidates with what they would reject; the permission to change policies covers the actions."""

    list_display = ["about", "limits_in_words", "standing", "would_reject", "since_enforced"]
    list_filter = ["state"]
    search_help_text = _(
        "A trial evaluates other limits beside those of a policy, and rejects nothing. “Enforce now” puts them in "
        "force."
    )
    list_select_related = ["policy__resource", "policy__entity", "policy__plan"]
    search_fields = ["policy__resource__name", "policy__entity__identifier", "limits"]
    autocomplete_fields = ["policy"]
    fields = ["policy", "limits", "percent", ("revert_percent", "revert_minutes"), "reason"]

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of the buttons."""
        view = self.admin_site.admin_view(self.decide_view)
        buttons = [
            path(f"<int:object_id>/{decision}/", view, {"decision": decision}, name=f"limits_app_candidate_{decision}")
            for decision in _DECISIONS
        ]
        return [*buttons, *super().get_urls()]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Show the buttons with the permission for them."""
        shown = [*super().get_list_display(request)]
        return [*shown, "decide"] if self.has_promote_permission(request) else shown

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Show the results of a candidate that exists, and the buttons."""
        fields = [*super().get_fields(request, obj)]
        if obj is None:
            return fields
        fields = [_SHOWN.get(field, field) for field in fields]
        results = ["standing", "would_reject", "since_enforced"]
        return [*fields, *results, *(["decide"] if self.has_promote_permission(request) else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Results cannot be edited."""
        return [] if obj is None else [*_SHOWN.values(), "standing", "would_reject", "since_enforced", "decide"]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Read the counts of one candidate."""
        candidate: Any = super().get_object(request, object_id, from_field)
        if candidate is not None:
            candidate.report = reports([candidate])[0]
            candidate.in_words = policy_in_words(candidate.policy, {})
        return candidate

    def response_post_save_add(self, request: HttpRequest, obj: Any) -> HttpResponseRedirect:
        """Continue with the page of the new candidate."""
        if not self.has_view_permission(request, obj):
            return super().response_post_save_add(request, obj)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:limits_app_candidate_change", args=[obj.pk]))

    def decide_view(self, request: HttpRequest, object_id: int, decision: str) -> HttpResponse:
        """Promote, discard or revert one candidate; a promotion is confirmed, with what is known of its effect."""
        if not self.has_promote_permission(request):
            raise PermissionDenied
        if request.method != "POST" and decision != "promote":
            return HttpResponseNotAllowed(["POST"])
        candidate = get_object_or_404(Candidate.objects.select_related("policy"), pk=object_id)
        _state, label, do = _DECISIONS[decision]
        form = PromotionForm(request.POST if "confirmed" in request.POST else None, instance=candidate)
        if decision == "promote" and not form.is_valid():
            back = reverse(f"{self.admin_site.name}:limits_app_candidate_changelist")
            values = {"limits": limits_in_words(candidate.limits), "policy": policy_in_words(candidate.policy, {})}
            title = gettext("Trial of %(limits)s: %(policy)s") % values
            explained = gettext(
                "The limit in force stays until you enforce this one. The figures are updated every few seconds."
            )
            is_known = bool(reports([candidate])[0].trial_evaluated)
            texts = {"note" if is_known else "hint": _effect(candidate), "explained": explained, "reload": request.path}
            return confirmation(
                self, request, form, title=title, button=label, back=back, stay=gettext("Not now"), **texts
            )
        try:
            with self.acting(request, _effect(candidate) if decision == "promote" else ""):
                if decision == "promote":
                    form.save()
                do(candidate.policy)
        except LimitsError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.message_user(request, _done(candidate, decision), messages.SUCCESS)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:limits_app_candidate_changelist"))

    @admin.display(description=_("decision"))
    def decide(self, candidate: Any) -> SafeString | str:
        """Show the buttons for the state of the candidate."""
        name = f"{self.admin_site.name}:limits_app_candidate"
        buttons = (
            (reverse(f"{name}_{decision}", args=[candidate.pk]), label, candidate.in_words)
            for decision, (state, label, _do) in _DECISIONS.items()
            if state == candidate.state and not is_replaced(candidate)
        )
        return format_html_join(" ", _BUTTON, buttons) or "-"

    def has_promote_permission(self, request: HttpRequest) -> bool:
        """Whether the user may change candidates and policies."""
        return may(request.user, Action.DECIDE_CANDIDATE)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether a candidate may be changed: one whose counts would be of other limits may not."""
        return obj is None and super().has_change_permission(request, obj)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the counts of all rows at once."""
        changelist = super().get_changelist_instance(request)
        rows = list(changelist.result_list)
        prefetch_related_objects(rows, "policy__limits")
        in_words = policies_in_words([row.policy for row in rows], {})
        for row, report, words in zip(rows, reports(rows), in_words, strict=True):
            row.report, row.in_words = report, words
        changelist.result_list = rows
        return changelist

    @admin.display(description=_("policy"))
    def about(self, candidate: Any) -> str:
        """Say whom its policy is about, and on what."""
        return str(candidate.in_words)

    @admin.display(description=_("state"), ordering="state")
    def standing(self, candidate: Candidate) -> str:
        """Say whether it is tried or in force, or whether other limits have replaced it since."""
        return gettext("replaced") if is_replaced(candidate) else str(CandidateState(candidate.state).label)

    @admin.display(description=_("limits"))
    def limits_in_words(self, candidate: Candidate) -> str:
        """Show its limits."""
        return limits_in_words(candidate.limits)

    @admin.display(description=_("would reject"))
    def would_reject(self, candidate: Any) -> str:
        """Show what it would have rejected while it was tried, also afterwards, and for how many of the clients."""
        report = candidate.report
        figures = _figures(report.trial_rejected, report.trial_evaluated)
        if candidate.percent != _EVERY_CLIENT_PERCENT:
            figures = gettext("%(figures)s, tried on %(percent)s of the clients") % {
                "figures": figures,
                "percent": percent(candidate.percent / 100),
            }
        return format_html(_LABELLED, gettext("would reject"), figures)

    @admin.display(description=_("rejected since enforced"))
    def since_enforced(self, candidate: Any) -> str:
        """Show what it has rejected since its promotion, while that is watched."""
        report = candidate.report
        label = gettext("rejected since enforced")
        if candidate.state == CandidateState.TESTING:
            return format_html(_LABELLED, label, "-")
        return format_html(_LABELLED, label, _figures(report.rejected, report.evaluated))
