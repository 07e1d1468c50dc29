"""The page “Limit something”: one form for the limits of a URL, a resource, or everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.formatting import percent
from limits_app.admin.forms import is_primary_key
from limits_app.admin.pages.common import check, page
from limits_app.admin.resources import warn_of_rule
from limits_app.engine.amounts import MILLI
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.notation import Noted, parse_limit
from limits_app.engine.periods import UNITS, QuotaPeriod
from limits_app.models import Endpoint, Entity, Plan, Policy, Resource, UsageSnapshot
from limits_app.models.patterns import is_pattern
from limits_app.services import simple_limits
from limits_app.services.definitions import InvalidDefinition
from limits_app.services.limit_words import limit_name
from limits_app.services.rights import Action, to_create_entity, to_replace_row
from limits_app.services.simple_limits import SimpleAmount, SimpleLimit, What, Who
from limits_app.services.simulation.forecast import DAYS, forecast
from limits_app.services.site_urls import SiteUrls
from limits_app.usage.reading import never_used

_ROWS: Final = (1, 2, 3)
_ROW_FIELDS: Final = ("number", "unit", "periods", "period")
_MOST_SUGGESTED: Final = 200
_MOST_ROWS: Final = 10
_PERIODS: Final = (
    *((unit.symbol, _(unit.name)) for unit in reversed(UNITS) if unit.milliseconds >= MILLI),
    (QuotaPeriod.MONTH, _(QuotaPeriod.MONTH)),
    ("", _("at the same time")),
)
_REQUESTS: Final = "requests"
_TEMPLATES: Final[Mapping[str, tuple[Any, Mapping[str, object]]]] = {
    "api": (_("API"), {"what": What.URL, "path": "/api/*", "who": Who.CLIENT, "number_1": "60"}),
    "login": (
        _("Log-in"),
        {"what": What.URL, "path": "/login/", "who": Who.ADDRESS, "number_1": "10", "period_1": "h"},
    ),
    "llm": (
        _("LLM tokens"),
        {
            "what": What.RESOURCE,
            "resource": "llm",
            "who": Who.USER,
            "number_1": "20",
            "number_2": "100k",
            "unit_2": "tokens",
            "period_2": "d",
        },
    ),
    "export": (
        _("Export"),
        {"what": What.URL, "path": "/export/", "who": Who.USER, "number_1": "5", "period_1": "h"},
    ),
    "webhook": (
        _("Webhook"),
        {"what": What.URL, "path": "/webhooks/*", "who": Who.TOGETHER, "number_1": "50", "period_1": "s"},
    ),
}
"""Examples to start from."""


class SimpleLimitForm(forms.Form):
    """What is limited, who is counted, how much, and what happens to requests beyond it."""

    what = forms.ChoiceField(label=_("What"), choices=What.choices, initial=What.URL, widget=forms.RadioSelect)
    path = forms.CharField(
        label=_("URL"),
        max_length=255,
        required=False,
        help_text=_("A path such as /api/search/, or /api/* for everything below /api/."),
        widget=forms.TextInput(attrs={"list": "limits-paths", "placeholder": "/api/search/"}),
    )
    resource = forms.CharField(
        label=_("Resource"),
        max_length=64,
        required=False,
        help_text=_("The name that your code uses, such as “reports.export”; a new one is created."),
        widget=forms.TextInput(attrs={"list": "limits-resources"}),
    )
    who = forms.ChoiceField(label=_("Who"), choices=Who.choices, initial=Who.USER)
    entity = forms.CharField(
        label=_("User, key, tenant or IP address"),
        max_length=255,
        required=False,
        help_text=_("As your code names it, such as “user:42” or “tenant:acme”."),
        widget=forms.TextInput(attrs={"list": "limits-entities"}),
    )
    plan = forms.ModelChoiceField(label=_("Plan"), queryset=Plan.objects.all(), required=False, to_field_name="name")
    shadow = forms.TypedChoiceField(
        label=_("Requests beyond the limit"),
        choices=[("", _("are rejected")), ("1", _("are only reported (shadow mode)"))],
        coerce=bool,
        required=False,
        widget=forms.RadioSelect,
        initial="",
    )
    text = forms.CharField(
        label=_("Limits as text"),
        max_length=500,
        required=False,
        help_text=_("Instead of the rows above, for example “100/min tokens=1M/day”."),
    )
    reason = forms.CharField(label=_("Reason"), required=False, help_text=_("For the audit log."))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for row in _ROWS:
            self.fields[f"number_{row}"] = forms.CharField(
                label=_("Number"), max_length=20, required=False, widget=forms.TextInput(attrs={"size": 8})
            )
            self.fields[f"unit_{row}"] = forms.CharField(
                label=_("Unit"),
                max_length=64,
                required=False,
                initial=_REQUESTS,
                widget=forms.TextInput(attrs={"list": "limits-units", "size": 14}),
            )
            self.fields[f"periods_{row}"] = forms.IntegerField(
                label=_("Number of periods"), min_value=1, max_value=366, required=False, initial=1
            )
            self.fields[f"period_{row}"] = forms.ChoiceField(
                label=_("Period"), choices=_PERIODS, required=False, initial="min"
            )

    @property
    def rows(self) -> Iterator[list[forms.BoundField]]:
        """The fields of each row: number, unit, number of periods, period."""
        for row in _ROWS:
            yield [self[f"{name}_{row}"] for name in _ROW_FIELDS]

    def clean(self) -> dict[str, Any]:
        """Require what the choices need, and read the limits."""
        cleaned: dict[str, Any] = super().clean() or {}
        needed = {What.URL: "path", What.RESOURCE: "resource"}.get(cleaned.get("what", ""))
        required = {needed, {Who.ENTITY: "entity", Who.PLAN: "plan"}.get(cleaned.get("who", ""))}
        for name in filter(None, required):
            if not cleaned.get(name) and name not in self.errors:
                self.add_error(name, gettext("This field is required."))
        if cleaned.get("what") == What.URL and cleaned.get("who") in {Who.ENTITY, Who.PLAN}:
            self.add_error("who", gettext("For one client or a plan, choose the resource of the URL, or everything."))
        texts = [text if "=" in text else f"calls={text}" for text in cleaned.get("text", "").split()]
        try:
            cleaned["limits"] = tuple(texts or [amount.text for amount in self._amounts()])
            if any(parse_limit(text).shared for text in cleaned["limits"]):
                self.add_error("text", gettext("Leave “shared” out, and choose “everyone together” instead."))
        except InvalidLimit as error:
            self.add_error("text" if texts else "number_1", str(error))
        if not cleaned.get("limits") and not self.errors:
            self.add_error("number_1", gettext("Enter how much, such as 100."))
        return cleaned

    def _amounts(self) -> Iterator[SimpleAmount]:
        for row in _ROWS:
            number, unit, periods, period = (self.cleaned_data.get(f"{name}_{row}") for name in _ROW_FIELDS)
            if number:
                yield SimpleAmount(number, unit or _REQUESTS, periods or 1, period or "")

    @property
    def limit(self) -> SimpleLimit:
        """The limit of a valid form."""
        values = {field.name: self.cleaned_data[field.name] for field in fields(SimpleLimit)}
        plan = values["plan"]
        choices = {"what": What(values["what"]), "who": Who(values["who"]), "shadow": bool(values["shadow"])}
        return SimpleLimit(**values | choices | {"plan": "" if plan is None else plan.name})


def limit_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the form; preview or save the limit."""
    instance = _instance(request)
    check(request, Action.LIMIT_SOMETHING, *to_replace_row(instance))
    if request.method == "POST":
        form = SimpleLimitForm(request.POST)
        if form.is_valid() and "_preview" not in request.POST and _save(site, request, form, instance):
            return HttpResponseRedirect(reverse(f"{site.name}:app_list", args=["limits_app"]))
    else:
        form = SimpleLimitForm(initial=_initial(request, instance))
    preview = _preview(form.limit) if request.method == "POST" and form.is_valid() else None
    context = {
        "form": form,
        "instance": instance,
        "preview": preview,
        "templates": {name: label for name, (label, _example) in _TEMPLATES.items()} if instance is None else {},
        "paths": sorted(path for path in SiteUrls().routes if not path.startswith(reverse(f"{site.name}:index"))),
        "resources": Resource.objects.values_list("name", flat=True)[:_MOST_SUGGESTED],
        "entities": _entities(),
        "units": [_REQUESTS, "tokens", "connections", "bytes"],
    }
    title = gettext("Change a limit") if instance is not None else gettext("Limit something")
    return page(site, request, "limit", title=title, context=context)


def _save(site: AdminSite, request: HttpRequest, form: SimpleLimitForm, instance: Endpoint | Policy | None) -> bool:
    """Save the limit, and show messages about it; False where errors are shown in the form."""
    limit = form.limit
    check(request, Action.LIMIT_SOMETHING, *to_create_entity(simple_limits.entity_of(limit) or None))
    try:
        row = simple_limits.save(limit, instance, actor=request.user.get_username(), reason=form.cleaned_data["reason"])
    except InvalidDefinition as error:
        for path, texts in error.errors.items():
            name = "text" if path and path[0] == "limits" else str(path[0]) if path else None
            form.add_error(name if name in form.fields else None, texts)
        return False
    except ValidationError as error:
        form.add_error(None, error)
        if (conflict := simple_limits.conflict(limit)) is not None:
            url = reverse(f"{site.name}:limits_app_{conflict._meta.model_name}_change", args=[conflict.pk])
            form.add_error(None, format_html('<a href="{}">{}</a>', url, conflict))
        return False
    messages.success(request, gettext("Saved: %s") % simple_limits.sentence(limit))
    if limit.who == Who.ENTITY and not is_pattern(limit.entity) and never_used([limit.entity]):
        hint = gettext("No request has used the identifier “%(name)s” so far: check the spelling.")
        messages.warning(request, hint % {"name": limit.entity})
    if isinstance(row, Endpoint):
        warn_of_rule(request, row)
    return True


def _instance(request: HttpRequest) -> Endpoint | Policy | None:
    """The rule or policy to change; 404 for one that does not exist or that the form cannot express."""
    for name, model in (("rule", Endpoint), ("policy", Policy)):
        if key := request.GET.get(name, ""):
            row: Any = model._default_manager.filter(pk=key).first() if is_primary_key(key) else None
            if row is None or simple_limits.read(row) is None:
                raise Http404
            return row  # type: ignore[no-any-return]
    return None


def _initial(request: HttpRequest, instance: Endpoint | Policy | None) -> dict[str, Any]:
    if instance is None:
        initial = {name: request.GET[name] for name in ("path", "resource", "entity", "plan") if name in request.GET}
        if "entity" in initial:
            initial |= {"who": Who.ENTITY, "what": What.RESOURCE if "resource" in initial else What.EVERYTHING}
        _label, example = _TEMPLATES.get(request.GET.get("template", ""), ("", {}))
        return {**example, **initial}
    limit = simple_limits.read(instance)
    if limit is None:
        raise Http404
    return asdict(limit) | {"shadow": "1" if limit.shadow else "", "text": " ".join(limit.limits), "number_1": ""}


def _preview(limit: SimpleLimit) -> dict[str, Any]:
    """The limit as a sentence, and whom it would have rejected in the last days, as far as usage is recorded."""
    preview: dict[str, Any] = {"sentence": simple_limits.sentence(limit), "days": DAYS}
    resource = Resource.objects.filter(name=limit.resource).first()
    entity = Entity.objects.filter(identifier=limit.entity).first()
    has_usage = limit.who in {Who.CLIENT, Who.TOGETHER} or (limit.who == Who.ENTITY and entity is not None)
    if limit.what != What.RESOURCE or resource is None or not has_usage:
        return preview
    proposed = [Noted(parse_limit(text).limit, limit.who == Who.TOGETHER) for text in limit.limits]
    policy = Policy(resource=resource, entity=entity if limit.who == Who.ENTITY else None)
    consumers = forecast(policy, proposed, now=timezone.now()).consumers
    rows = [
        {"who": consumer.entity or "", "key": limit_name(consumer.key), "share": percent(consumer.share)}
        for consumer in consumers[:_MOST_ROWS]
    ]
    return preview | {"rows": rows}


def _entities() -> list[str]:
    """Entities to suggest: those with a row, then those that used something last."""
    identifiers = list(Entity.objects.values_list("identifier", flat=True)[:_MOST_SUGGESTED])
    seen = UsageSnapshot.objects.filter(period="hour", bucket="entity").exclude(entity="").order_by("-start")
    return list(dict.fromkeys([*identifiers, *seen.values_list("entity", flat=True)[:_MOST_SUGGESTED]]))
