"""The page “Exemptions”: who is charged nothing, and why; with a form that exempts a client, a network or a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.admin.changelists import CappedPaginator
from limits_app.admin.client_fields import ClientInput, client_in
from limits_app.admin.formatting import STANDINGS
from limits_app.admin.pages.common import check, page
from limits_app.integrations.request import EXEMPT
from limits_app.models import Endpoint, Entity, Plan, Policy
from limits_app.models.endpoint import lines_of
from limits_app.models.prefixes import ADDRESS
from limits_app.models.validators import validate_requester, validate_text
from limits_app.policies import Access, PolicyStatus, standings, verdict_on
from limits_app.services import exempt_clients
from limits_app.services.clients import client_names, with_name
from limits_app.services.definitions import InvalidDefinition
from limits_app.services.display import moment
from limits_app.services.rights import Action, may, may_change_rows, to_create_entity
from limits_app.services.site_urls import SiteUrls

_PER_PAGE: Final = 50
_MOST_LINES: Final = 10
"""How many groups, networks and entities of one rule or setting are listed."""


@dataclass(frozen=True, slots=True)
class ExemptionRow:
    """A row of a table: what is exempt, why or when, whether that is in force now, and where it is changed."""

    name: str
    details: Sequence[str] = ()
    chip: str = ""
    is_on: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExemptionTable:
    """A table of exemptions of one kind.

    `parameter` has the number of its page, `rows` makes rows of the objects of a page, and `all_url` is a list in which
    to search for others.
    """

    title: str
    note: str
    parameter: str
    paginator: Paginator[Any]
    rows: Callable[[AdminSite, list[Any]], Iterator[ExemptionRow]]
    all_url: str = ""


class ExemptForm(forms.Form):
    """Whom to exempt, and why."""

    entity = forms.CharField(
        label=_("Client, pattern or network"),
        max_length=255,
        required=False,
        strip=False,
        widget=ClientInput(
            attrs={"placeholder": _("203.0.113.0/24, user:7 or a name"), "autocomplete": "off", "spellcheck": "false"}
        ),
    )
    plan = forms.ModelChoiceField(label=_("Or a plan"), queryset=Plan.objects.all(), required=False)
    reason = forms.CharField(
        label=_("Reason"),
        max_length=1000,
        required=False,
        validators=[validate_text],
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )

    def clean_entity(self) -> str:
        """The identifier of a client, or a pattern; also where a name, an address or a network was entered."""
        text = client_in(self, "entity")
        if text:
            validate_requester(text)
        return text

    def clean(self) -> dict[str, Any]:
        """Require either a client or a plan."""
        cleaned: dict[str, Any] = super().clean() or {}
        if not self.errors and bool(cleaned.get("entity")) is (cleaned.get("plan") is not None):
            raise ValidationError(gettext("Enter a client, a pattern or a network, or choose a plan; not both."))
        return cleaned


def exemptions_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show who is exempt, and add an exemption."""
    check(request, Action.VIEW_LIMITS)
    form = None
    if may(request.user, Action.EXEMPT):
        form = ExemptForm(
            request.POST if request.method == "POST" else None, auto_id="limits-exempt-%s", label_suffix=""
        )
        if form.is_valid() and _add(site, request, form):
            return HttpResponseRedirect(request.path)
    sections = [
        section for section in (_shown(site, request, table) for table in _tables(site, request)) if section["rows"]
    ]
    context = {"form": form, "settings": [*_of_settings()], "sections": sections}
    return page(site, request, "exemptions", title=gettext("Exemptions"), context=context)


def _add(site: AdminSite, request: HttpRequest, form: ExemptForm) -> bool:
    """Add the exemption, and show messages about it; False where errors are shown in the form."""
    data = form.cleaned_data
    entity, plan = data["entity"] or None, None if data["plan"] is None else data["plan"].name
    check(request, Action.EXEMPT, *to_create_entity(entity))
    try:
        policy = exempt_clients.exempt(entity, plan, actor=request.user.get_username(), reason=data["reason"])
    except InvalidDefinition as error:
        conflict = exempt_clients.conflicting(entity, plan)
        if conflict is None:
            form.add_error(None, str(error))
        else:
            link = reverse(f"{site.name}:limits_app_policy_change", args=[conflict.pk])
            text = gettext("There is a policy already: change its effect to “unlimited”, or delete it.")
            form.add_error(None, format_html('{} <a href="{}">{}</a>', text, link, conflict))
        return False
    messages.success(request, _exempt_in_words(entity, plan))
    if policy.entity is not None and not policy.entity.is_pattern:
        verdict = verdict_on(policy.entity.identifier)
        if verdict.access is Access.BLOCKED and verdict.reason is not None:
            text = gettext("It is still blocked by %(subject)s: unblock that first.")
            messages.warning(request, text % {"subject": verdict.reason.subject or gettext("a block of everything")})
        elif verdict.access is Access.LIMITED:
            text = gettext(
                "It is not exempt yet: it counts for a parent that is not exempt, or another policy takes precedence."
            )
            messages.warning(request, text)
    return True


def _exempt_in_words(entity: str | None, plan: str | None) -> str:
    """Say what an exemption of a client, a network or a plan does."""
    text = gettext("“%(name)s” is exempt: requests are charged nothing.")
    if entity is None:
        return text % {"name": plan}
    if entity.startswith(ADDRESS):
        text = gettext("“%(name)s” is exempt: requests from there are charged nothing, also those of logged-in users.")
    return text % {"name": with_name(entity, client_names([entity]))}


def _of_settings() -> Iterator[ExemptionRow]:
    """What LIMITS["EXEMPT"] has."""
    setting = conf.get(conf.EXEMPT)
    if setting.staff:
        yield ExemptionRow(gettext("Staff"), [gettext("users with the staff status")])
    if setting.superusers:
        yield ExemptionRow(gettext("Superusers"), [gettext("users with the superuser status")])
    for label, values in (
        (gettext("Groups"), setting.groups),
        (gettext("Networks"), setting.networks),
        (gettext("Entities"), setting.entities),
    ):
        if values:
            yield ExemptionRow(label, [*map(str, values)])


def _tables(site: AdminSite, request: HttpRequest) -> Iterator[ExemptionTable]:
    """The tables that the user may see."""
    yield ExemptionTable(
        title=gettext("Clients, patterns, networks and plans"),
        note=gettext("By policies “unlimited” over all resources."),
        parameter="policies",
        paginator=CappedPaginator(exempt_clients.exempting_policies(), _PER_PAGE),
        rows=_of_policies,
        all_url=reverse(f"{site.name}:limits_app_policy_changelist", query={"effect__exact": "unlimited"}),
    )
    if may_change_rows(request.user, "view", Entity):
        yield ExemptionTable(
            title=gettext("Unlimited entities"),
            note=gettext("By the flag “unlimited” of the entity."),
            parameter="entities",
            paginator=CappedPaginator(exempt_clients.exempt_entities(), _PER_PAGE),
            rows=_of_entities,
            all_url=reverse(f"{site.name}:limits_app_entity_changelist", query={"unlimited__exact": "1"}),
        )
    if may_change_rows(request.user, "view", Endpoint):
        yield ExemptionTable(
            title=gettext("Exemptions of URL rules"),
            note=gettext("Not charged by these rules; other limits still apply."),
            parameter="rules",
            paginator=CappedPaginator(exempt_clients.exempting_rules(), _PER_PAGE),
            rows=_of_rules,
            all_url=reverse(f"{site.name}:limits_app_endpoint_changelist"),
        )
    yield ExemptionTable(
        title=gettext("Views with @exempt"),
        note=gettext(
            "Not charged by URL rules, and reachable for blocked clients. Views of other URLconfs are not known."
        ),
        parameter="views",
        paginator=Paginator(sorted({*SiteUrls().marked(EXEMPT)}), _PER_PAGE),
        rows=_of_views,
    )


def _shown(site: AdminSite, request: HttpRequest, table: ExemptionTable) -> dict[str, Any]:
    """A page of a table, with the queries of the pages before and after it."""
    rows = table.paginator.get_page(request.GET.get(table.parameter))
    return {
        "table": table,
        "page": rows,
        "rows": [*table.rows(site, list(rows))],
        "previous": _with_page(request, table, rows.previous_page_number() if rows.has_previous() else None),
        "next": _with_page(request, table, rows.next_page_number() if rows.has_next() else None),
    }


def _with_page(request: HttpRequest, table: ExemptionTable, number: int | None) -> str:
    """The query of this page with another page of a table; empty without one."""
    if number is None:
        return ""
    query = request.GET.copy()
    query[table.parameter] = str(number)
    return f"?{query.urlencode()}"


def _of_views(_site: AdminSite, rows: Sequence[tuple[str, str]]) -> Iterator[ExemptionRow]:
    for route, name in rows:
        yield ExemptionRow(route or name, [name] if route else [])


def _of_policies(site: AdminSite, rows: Sequence[Policy]) -> Iterator[ExemptionRow]:
    for policy, (status, is_exempt) in zip(rows, standings(rows), strict=True):
        entity = policy.entity
        name = gettext("plan %(name)s") % {"name": policy.plan} if entity is None else entity.identifier
        when = policy.when(moment) if policy.valid_from or policy.weekly_hours else ""
        share = gettext("%(percent)s %% of them") % {"percent": policy.rollout_percent}
        details = [
            "" if entity is None else entity.name,
            when,
            share if policy.rollout_percent < 100 else "",
            _of_parent(entity),
            policy.reason,
        ]
        yield _row(site, policy, name, details=details, chip=_chip(status, is_exempt=is_exempt), is_on=is_exempt)


def _of_entities(site: AdminSite, rows: Sequence[Entity]) -> Iterator[ExemptionRow]:
    for entity, (status, is_exempt) in zip(rows, standings(rows), strict=True):
        details = [entity.name, _of_parent(entity)]
        chip = _chip(status, is_exempt=is_exempt)
        yield _row(site, entity, entity.identifier, details=details, chip=chip, is_on=is_exempt)


def _of_parent(entity: Entity | None) -> str:
    if entity is None or not entity.cascade or entity.parent is None:
        return ""
    return gettext("only while %(parent)s is exempt too") % {"parent": entity.parent}


def _of_rules(site: AdminSite, rows: Sequence[Endpoint]) -> Iterator[ExemptionRow]:
    for rule in rows:
        texts = (rule.exempt_groups, rule.exempt_networks, rule.exempt_entities)
        names = [name for text in texts for name in lines_of(text)]
        details = [
            gettext("staff") if rule.exempt_staff else "",
            gettext("superusers") if rule.exempt_superusers else "",
            ", ".join(names[:_MOST_LINES]) + (", …" if len(names) > _MOST_LINES else ""),
        ]
        chip = _chip(PolicyStatus.COUNTS if rule.enabled else PolicyStatus.OFF, is_exempt=rule.enabled)
        yield _row(site, rule, rule.name, details=details, chip=chip, is_on=rule.enabled)


def _chip(status: PolicyStatus, *, is_exempt: bool) -> str:
    if status is PolicyStatus.COUNTS and not is_exempt:
        return gettext("not exempt now")
    return str(STANDINGS[status])


def _row(site: AdminSite, row: Any, name: str, *, details: Iterable[str], chip: str, is_on: bool) -> ExemptionRow:
    url = reverse(f"{site.name}:limits_app_{row._meta.model_name}_change", args=[row.pk])
    return ExemptionRow(name, [*filter(None, details)], chip, is_on, url)
