"""The page “Usage”: allowed amounts and rejections of a limit, over time and by consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.db.models import Max
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.formatting import Bar, amount, bar, moment, percent
from limits_app.admin.pages.common import USAGE, bring_up_to_date, check, entity_or_none, page, problem_with
from limits_app.models import Bucket, CollectedBatch, Denial, Period
from limits_app.models.fields import in_site_time
from limits_app.services.usage import usage

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest, HttpResponse
    from django.utils.functional import _StrPromise

    from limits_app.usage import Use

__all__ = ["usage_page"]

_MOST_RESOURCES: Final = 50
_MOST_CONSUMERS: Final = 15
_MOST_DENIALS: Final = 10


@dataclass(frozen=True, slots=True)
class Span:
    """A time to look at, in periods that are short enough to see something and few enough to draw."""

    label: _StrPromise
    period: Period
    lapse: timedelta

    @property
    def step(self) -> timedelta:
        """How long a period is."""
        return timedelta(hours=1) if self.period == Period.HOUR else timedelta(days=1)

    def starts(self, now: datetime) -> list[datetime]:
        """When its periods begin; the last of them goes on."""
        last = now.replace(minute=0, second=0, microsecond=0)
        if self.period == Period.DAY:
            last = last.replace(hour=0)
        count = self.lapse // self.step
        return [last - number * self.step for number in reversed(range(count))]


_SPANS: Final = {
    "day": Span(_("24 hours"), Period.HOUR, timedelta(hours=24)),
    "week": Span(_("7 days"), Period.DAY, timedelta(days=7)),
    "month": Span(_("30 days"), Period.DAY, timedelta(days=30)),
    "year": Span(_("12 months"), Period.DAY, timedelta(days=365)),
}


def usage_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show one limit at a time, because limits have different units."""
    check(request, USAGE)
    name = request.GET.get("span", "")
    span = _SPANS.get(name, _SPANS["day"])
    resource, entity, key = request.GET.get("resource") or None, entity_or_none(request), request.GET.get("key", "")
    context: dict[str, Any] = {
        "resource": resource or "",
        "entity": entity or "",
        "key": key,
        "span": name,
        "spans": [{"name": one, "label": value.label, "here": value is span} for one, value in _SPANS.items()],
        "problem": problem_with(resource, entity, key),
    }
    if not context["problem"]:
        bring_up_to_date()  # rejections are written immediately; allowed amounts only by a roll-up
        context |= _used(resource, entity, key, span=span, name=name)
    return page(site, request, "usage", title=gettext("Usage"), context=context)


def _used(resource: str | None, entity: str | None, key: str, *, span: Span, name: str) -> dict[str, Any]:
    """The usage of a limit, by default of the one with the most rejections."""
    starts = span.starts(datetime.now(UTC))
    ask: dict[str, Any] = {"entity": entity, "period": span.period, "since": starts[0]}
    of_resources = usage(by="resource", **ask)
    keys = _keys(use for use in of_resources if resource in (None, use.resource))
    key = key or next(iter(keys), "")
    chosen = {"resource": resource, "key": key, **ask}
    here = {"resource": resource or "", "entity": entity or "", "key": key, "span": name}
    uses = usage(by=("resource", "entity"), most=_MOST_CONSUMERS, **chosen)
    of_limit = [use for use in of_resources if use.key == key]
    return {
        "key": key,
        "keys": keys,
        "resources": sorted(
            {use.resource for use in of_resources if use.resource} | ({resource} if resource else set())
        ),
        "chart": _chart(starts, usage(by="period", **chosen), span, key),
        "totals": _totals(use for use in of_limit if resource in (None, use.resource)),
        "consumers": _rows(uses, lambda use: _whose(use, here)),
        "by_resource": _rows(_by_resource(of_limit), lambda use: _of_resource(use, here))[:_MOST_RESOURCES],
        "denials": [_denied(one) for one in _denials(resource, entity, starts[0])],
        "rolled_up_at": moment(CollectedBatch.objects.aggregate(at=Max("collected_at"))["at"]),
    }


def _keys(uses: Iterable[Use]) -> list[str]:
    """The used limits, the one with the most rejections first; limits without allowed amounts, such as blocks, last."""
    totals: dict[str, tuple[float, int]] = {}
    for use in uses:
        admitted, refused = totals.get(use.key, (0.0, 0))
        totals[use.key] = (admitted + use.admitted, refused + use.refused)
    return sorted(totals, key=lambda key: (totals[key][0] <= 0, -totals[key][1], key))


def _chart(starts: list[datetime], uses: Iterable[Use], span: Span, key: str) -> dict[str, Any]:
    """What the chart draws: a period where nothing happened is one with nothing."""
    admitted = dict.fromkeys(starts, 0.0)
    refused = dict.fromkeys(starts, 0)
    for use in uses:
        start = _in_utc(use.start)
        admitted[start] = admitted.get(start, 0) + use.admitted
        refused[start] = refused.get(start, 0) + use.refused
    return {
        "starts": [start.isoformat() for start in admitted],
        "moments": "hours" if span.period == Period.HOUR else "days",
        "admitted": list(admitted.values()),
        "refused": list(refused.values()),
        "labels": {
            "admitted": gettext("allowed %(key)s") % {"key": key},
            "refused": gettext("rejections"),
        },
    }


def _in_utc(start: datetime | None) -> datetime:
    moment = start or datetime.min.replace(tzinfo=UTC)
    return (timezone.make_aware(moment) if timezone.is_naive(moment) else moment).astimezone(UTC)


def _totals(uses: Iterable[Use]) -> dict[str, str]:
    found = list(uses)
    admitted, refused = sum(use.admitted for use in found), sum(use.refused for use in found)
    is_told = any(use.refused_share is not None for use in found)
    share = refused / (admitted + refused) if is_told else None
    return {"admitted": amount(admitted), "refused": amount(refused), "share": percent(share)}


def _by_resource(uses: Iterable[Use]) -> list[Use]:
    """Buckets of one resource are separate rows only among consumers."""
    return sorted(uses, key=lambda use: (-use.admitted, -use.refused, use.resource or ""))


def _rows(uses: list[Use], told: Callable[[Use], dict[str, Any]]) -> list[dict[str, Any]]:
    most = max((use.admitted for use in uses), default=0)
    return [told(use) | _figures(use, most) for use in uses]


def _figures(use: Use, most: float) -> dict[str, Any]:
    drawn: Bar = bar("", use.admitted, most or 1)
    return {
        "admitted": amount(use.admitted),
        "refused": amount(use.refused),
        "share": percent(use.refused_share),
        "width": drawn.width,
    }


def _whose(use: Use, here: dict[str, str]) -> dict[str, Any]:
    """A consumer, with the way to a page about it."""
    resource, entity = use.resource or "", use.entity or ""
    link = {**here, "resource": resource, "entity": entity}
    may_explain = use.bucket in {Bucket.ENTITY, Bucket.SHARED}
    return {
        "name": _name(use.bucket, entity),
        "resource": resource,
        "query": urlencode(link),
        "explain": urlencode({"resource": resource, "entity": entity}) if may_explain else "",
    }


def _name(bucket: Bucket, entity: str) -> str:
    """The label of a bucket."""
    if bucket == Bucket.ENTITY:
        return entity or gettext("the site itself")
    return f"{entity} ({bucket.label})" if entity else str(bucket.label)


def _of_resource(use: Use, here: dict[str, str]) -> dict[str, Any]:
    name = use.resource or ""
    if use.bucket in {Bucket.SHARED, Bucket.MEMBER, Bucket.OTHERS}:
        name = f"{name} ({use.bucket.label})"
    return {"name": name, "query": urlencode({**here, "resource": use.resource or ""})}


def _denials(resource: str | None, entity: str | None, since: datetime) -> Iterator[Denial]:
    wanted = {"resource": resource, "entity": entity}
    found = Denial.objects.filter(**{name: value for name, value in wanted.items() if value is not None})
    yield from found.filter(minute__gte=in_site_time(since)).order_by("-minute", "-count")[:_MOST_DENIALS]


def _denied(denial: Denial) -> dict[str, Any]:
    """The number of rejections by a limit in a minute."""
    return {
        "minute": moment(denial.minute, "SHORT_DATETIME_FORMAT"),
        "key": denial.key,
        "resource": denial.resource,
        "name": _name(Bucket(denial.bucket), denial.entity),
        "count": amount(denial.count),
    }
