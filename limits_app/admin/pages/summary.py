"""What the overview, and the first page of the admin where a site wants it, say in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext

from limits_app.acquiring import BreakerState
from limits_app.admin.audit_log import events_in_words
from limits_app.admin.menu import menu
from limits_app.admin.pages.common import bring_up_to_date
from limits_app.admin.pages.live import tightest_limits
from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent, Policy
from limits_app.models.fields import aware, in_site_time
from limits_app.services.boosts import boosted_together
from limits_app.services.display import amount, percent
from limits_app.services.rights import Action, may
from limits_app.services.status import store_health
from limits_app.services.usage import usage_by_unit
from limits_app.usage.reading import Use

MOST_ROWS: Final = 5
_MOST_CHANGES: Final = 30
_EVENTS_EACH: Final = 5
"""How many events are read for each change that is shown, since one save may have several."""
_SOON: Final = timedelta(days=7)
_MOST_ENDING: Final = 20


def menu_of(request: HttpRequest) -> dict[str, Any]:
    """What the template of the menu shows on a page of the site of the admin that serves a request."""
    match = request.resolver_match
    site: AdminSite = getattr(None if match is None else match.func, "admin_site", admin.site)
    return menu(site, request)


def summary(request: HttpRequest) -> dict[str, Any]:
    """What the first page of the admin shows: the menu with its banner, and numbers of today for who may see them."""
    context: dict[str, Any] = {"request": request, "menu": menu_of(request)}
    if may(request.user, Action.VIEW_USAGE):
        bring_up_to_date()
        midnight = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0)
        uses = usage_by_unit(unit=CallLimit.key, by="period", period="hour", since=midnight)
        ending = ending_soon() if may(request.user, Action.VIEW_LIMITS) else None
        context |= {"stores": state_of_stores(), "totals": [*totals(uses, tightest_limits(MOST_ROWS)[0], ending)]}
    return context


def state_of_stores() -> tuple[bool, str]:
    """Whether all stores are available, and that in words."""
    health = store_health()
    if down := [alias for alias, store in health.items() if store.state == BreakerState.OPEN]:
        return False, gettext("Unavailable: %(stores)s") % {"stores": ", ".join(down)}
    return True, gettext("Stores are available") if len(health) > 1 else gettext("The store is available")


def totals(
    uses: list[Use], tightest: list[dict[str, Any]], ending: list[list[Policy]] | None
) -> Iterator[tuple[str, str, str]]:
    """What happened today in numbers: label, number, and the part of the overview that has the details, if any."""
    allowed, rejected = sum(use.admitted for use in uses), sum(use.refused for use in uses)
    yield gettext("Allowed today"), amount(allowed), ""
    share = f" ({percent(rejected / (allowed + rejected))})" if rejected else ""
    yield gettext("Rejected today"), f"{amount(rejected)}{share}", ""
    full = {limit["entity"] for limit in tightest if limit["bar"].level == "full"}
    yield gettext("Clients at a limit"), amount(len(full)), "limits-tightest"
    if ending is not None:
        yield gettext("Exceptions ending soon"), amount(len(ending)), "limits-ending"


def recent_events() -> list[AuditEvent]:
    """The changes since yesterday, and without such the last ones: one of a colleague is undone from here."""
    midnight = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday = midnight - timedelta(days=1)
    events = [*AuditEvent.objects.order_by("-number")[: _MOST_CHANGES * _EVENTS_EACH]]
    return [event for number, event in enumerate(events) if number < MOST_ROWS or aware(event.when) >= yesterday]


def recent_changes(
    site: AdminSite, events: list[AuditEvent], names: Mapping[str, str] | None = None
) -> list[dict[str, str]]:
    """These events save by save, for the template `changes.html`; names of clients are read unless they were."""
    return [*islice(events_in_words(site, events, names), _MOST_CHANGES)]


def ending_soon() -> list[list[Policy]]:
    """Boosts and other temporary policies that end soon, the earliest first; a boost is one, of several policies."""
    now = datetime.now(UTC)
    soon = Policy.objects.filter(valid_until__gt=in_site_time(now), valid_until__lte=in_site_time(now + _SOON))
    rows = soon.select_related("resource", "entity", "plan").prefetch_related("limits")
    return boosted_together(rows.order_by("valid_until")[:_MOST_ENDING])
