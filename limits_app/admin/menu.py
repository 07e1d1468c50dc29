"""The menu: six entries, the pages of each, and the banner above all pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.models import (
    ActivityEntry,
    Alert,
    AlertRule,
    AlertsEntry,
    AuditEvent,
    Candidate,
    ClientsEntry,
    Denial,
    Emergency,
    EmergencySwitch,
    Endpoint,
    Enforcement,
    Entity,
    LimitsEntry,
    Overview,
    Plan,
    Policy,
    Pool,
    Price,
    Resource,
    SettingsEntry,
    UsageSnapshot,
)
from limits_app.services.display import moment
from limits_app.services.emergency import emergency
from limits_app.services.rights import Action, may


@dataclass(frozen=True, slots=True)
class Tab:
    """A page behind an entry: the name of its URL, its label, and whether the user of a request may view it."""

    name: str
    label: Any
    is_open: Callable[[AdminSite, HttpRequest], bool]


def _list(model: type[Model], label: Any = "") -> Tab:
    name = label or model._meta.verbose_name_plural
    return Tab(f"{model._meta.model_name}_changelist", name, partial(_may_list, model))


def _may_list(model: type[Model], site: AdminSite, request: HttpRequest) -> bool:
    return site.is_registered(model) and site.get_model_admin(model).has_view_permission(request)


def _page(name: str, label: Any, action: Action) -> Tab:
    return Tab(name, label, lambda _site, request: may(request.user, action))


MENU: Final[Mapping[type[Model], tuple[Tab, ...]]] = {
    Overview: (_page("overview_changelist", _("overview"), Action.VIEW_USAGE),),
    LimitsEntry: (
        _list(Policy),
        _list(Endpoint),
        _list(Plan),
        _list(Resource),
        _list(Price),
        _list(Candidate),
    ),
    ClientsEntry: (
        _list(Entity, _("all clients")),
        _page("explain", _("effective limits"), Action.VIEW_LIMITS),
    ),
    ActivityEntry: (
        _list(Denial),
        _list(UsageSnapshot),
        _page("live", _("live"), Action.VIEW_USAGE),
        _list(AuditEvent, _("audit log")),
    ),
    AlertsEntry: (_list(AlertRule), _list(Alert)),
    SettingsEntry: (_list(EmergencySwitch), _page("exemptions", _("exemptions"), Action.VIEW_LIMITS), _list(Pool)),
}
"""The entries in the order in which they are shown, each with its pages; the first one opens."""


def open_tabs(entry: type[Model], site: AdminSite, request: HttpRequest) -> Iterator[tuple[str, str]]:
    """The address and label of each page behind an entry that the user may view."""
    for tab in MENU[entry]:
        if tab.is_open(site, request):
            yield reverse(f"{site.name}:limits_app_{tab.name}"), str(capfirst(tab.label))


def menu(site: AdminSite, request: HttpRequest, switch: Emergency | None = None) -> dict[str, Any]:
    """What the template of the menu shows: the entries, the pages of the present one, and the emergency switch.

    `switch` is the emergency switch, where it was just read.
    """
    entries, tabs = [], list[dict[str, Any]]()
    for entry in MENU:
        pages = [*open_tabs(entry, site, request)] if site.is_registered(entry) else []
        above = reverse(f"{site.name}:limits_app_{entry._meta.model_name}_changelist") if pages else "-"
        is_here = request.path.startswith(above) or any(request.path.startswith(url) for url, _label in pages)
        if is_here and len(pages) > 1:
            tabs = [{"url": url, "label": label, "here": _here(request.path, url)} for url, label in pages]
        if pages:
            label = capfirst(entry._meta.verbose_name_plural)
            entries.append({"url": pages[0][0], "label": label, "is_here": is_here})
    return {"entries": entries, "tabs": tabs, "banner": banner(switch)}


def _here(address: str, url: str) -> str:
    """The value of `aria-current` for a page: of itself, and of the pages below it such as those of its rows."""
    return "page" if address == url else "true" if address.startswith(url) else ""


def banner(switch: Emergency | None = None) -> dict[str, str] | None:
    """What is switched off in an emergency, by whom, why and until when; None while all limits are enforced.

    `switch` is the emergency switch, where it was just read; its reason may be missing.
    """
    if switch is not None and switch.mode == Enforcement.ENFORCE:
        return None
    switch = emergency()
    if switch.mode == Enforcement.ENFORCE:
        return None
    last = AuditEvent.objects.filter(object_type=EmergencySwitch._meta.model_name).order_by("-number").first()
    modes = {
        Enforcement.SHADOW: gettext("All limits are in shadow mode: nothing is rejected."),
        Enforcement.OFF: gettext("All limits are off: nothing is limited."),
    }
    return {
        "what": modes[switch.mode],
        "who": "" if last is None else last.actor,
        "why": switch.reason,
        "until": moment(switch.until),
    }
