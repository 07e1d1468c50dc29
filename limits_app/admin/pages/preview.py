"""The preview of a policy: the requests that it would have rejected, before it is saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext

from limits_app.admin.forms import is_primary_key
from limits_app.admin.pages.common import check, page
from limits_app.engine import HOUR, Noted, units_of_usage
from limits_app.models import Enforcement, Limit, Policy
from limits_app.services.display import amount, moment, percent
from limits_app.services.limit_words import limit_name
from limits_app.services.rights import Action
from limits_app.services.rule_labels import resource_labels
from limits_app.services.simulation.forecast import DAYS, MOST, STEP_SECONDS, Consumer, Forecast, forecast


def preview_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show whom the policy in the submitted form would have rejected; saves nothing."""
    check(request, Action.VIEW_USAGE)
    if request.method != "POST":
        return HttpResponseRedirect(_form_address(site, request))
    policies = site.get_model_admin(Policy)
    policy, proposed, problems = _edited(policies, request)
    context: dict[str, Any] = {"policy": policy, "problems": problems, "days": DAYS, "most": MOST}
    if policy is not None:
        context |= _shown(policy, proposed)
    return page(site, request, "preview", title=gettext("Who would be rejected?"), context=context)


def _form_address(site: AdminSite, request: HttpRequest) -> str:
    """The form whose preview was opened without its fields, as by a reload or a bookmark."""
    key = request.GET.get("policy", "")
    if is_primary_key(key):
        return reverse(f"{site.name}:limits_app_policy_change", args=[key])
    return reverse(f"{site.name}:limits_app_policy_add")


def _edited(
    policies: ModelAdmin[Any], request: HttpRequest
) -> tuple[Policy | None, list[Noted], list[tuple[str, str]]]:
    """The policy and its limits in the form, or their errors."""
    saved = _saved(policies, request)
    data = request.POST.copy()
    data["confirm_weaker"] = "on"  # nothing is saved, so there is nothing to confirm
    form = policies.get_form(request, saved, change=saved is not None)(data, request.FILES, instance=saved)
    is_valid = form.is_valid()
    limits = next(
        formset(**policies.get_formset_kwargs(request, form.instance, inline, formset.get_default_prefix()))
        for formset, inline in policies.get_formsets_with_inlines(request, saved)
        if inline.model is Limit
    )
    if not limits.is_valid() or not is_valid:
        return None, [], list(_problems(form, limits))
    kept = [
        form for form in limits.forms if form not in limits.deleted_forms and (form.instance.pk or form.has_changed())
    ]
    proposed = [form.instance.noted() for form in kept]
    return form.instance, proposed, []


def _saved(policies: ModelAdmin[Any], request: HttpRequest) -> Policy | None:
    """The edited policy, None for a new one; the preview requires the permission to save it."""
    key = request.GET.get("policy", "")
    saved = policies.get_object(request, key) if is_primary_key(key) else None
    allowed = policies.has_add_permission(request) if saved is None else policies.has_change_permission(request, saved)
    if not allowed:
        raise PermissionDenied
    return saved


def _problems(form: Any, limits: Any) -> Iterator[tuple[str, str]]:
    for part in (form, *limits.forms):
        for field, errors in part.errors.items():
            label = part.fields[field].label if field in part.fields else ""
            yield from ((str(label or ""), str(error)) for error in errors)
    yield from (("", str(error)) for error in limits.non_form_errors())


def _shown(policy: Policy, proposed: list[Noted]) -> dict[str, Any]:
    foreseen = forecast(policy, proposed, now=timezone.now())
    urls = resource_labels(consumer.resource for consumer in foreseen.consumers)
    return {
        "forecast": foreseen,
        "rows": [_row(consumer, urls) for consumer in foreseen.consumers],
        "chart": _chart(foreseen),
        "minutes": STEP_SECONDS // 60,
        "is_tried": policy.enforcement != Enforcement.ENFORCE,
    }


def _row(consumer: Consumer, urls: Mapping[str, str]) -> dict[str, Any]:
    nobody = gettext("all clients") if consumer.entity is None else gettext("the site itself")
    return {
        "resource": urls.get(consumer.resource, consumer.resource),
        "entity": consumer.entity or nobody,
        "key": limit_name(consumer.key),
        "used": amount(consumer.used),
        "lost": amount(consumer.lost),
        "share": percent(consumer.share),
        "hours": len(consumer.refused),
        "first": moment(consumer.first),
    }


def _chart(foreseen: Forecast) -> dict[str, Any] | None:
    """Allowed and rejected requests by hour, for the limit that rejects most."""
    keys = list(dict.fromkeys(consumer.key for consumer in foreseen.consumers))
    if not keys:
        return None
    key = max(keys, key=lambda key: sum(consumer.share for consumer in foreseen.consumers if consumer.key == key))
    hours = foreseen.by_hour(key)
    first = int(foreseen.since.timestamp()) // HOUR
    last = max(hours)
    drawn = [hours.get(hour, (0, 0)) for hour in range(first, last + 1)]
    return {
        "times": [moment(datetime.fromtimestamp(hour * HOUR, UTC)) for hour in range(first, last + 1)],
        "admitted": [units_of_usage(key, fits) for fits, _ in drawn],
        "refused": [units_of_usage(key, lost) for _, lost in drawn],
        "labels": {
            "admitted": gettext("fits into %(key)s") % {"key": limit_name(key)},
            "refused": gettext("would be rejected"),
        },
    }
