"""Whom a limit in words would have rejected in the last days, by the usage that was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from django.utils import timezone
from django.utils.translation import gettext, ngettext

from limits_app.engine import CALLS, HOUR, Noted
from limits_app.engine.limits import CallLimit, QuotaLimit
from limits_app.models import Resource, UsagePeriod, UsageSnapshot
from limits_app.models.fields import in_site_time
from limits_app.services.display import amount
from limits_app.services.limit_form.proposed import proposed_policy
from limits_app.services.limit_form.saving import entity_of, resource_of
from limits_app.services.limit_sentences import SimpleLimit, What, Who, uncounted_members
from limits_app.services.simulation.forecast import DAYS, Forecast, can_be_replayed, forecast


def outlook(limit: SimpleLimit) -> str:
    """Whom it would have rejected in the last days, as far as usage is recorded."""
    resource, entity = resource_of(limit), entity_of(limit)
    unknown = gettext("Last %(days)s days: nothing was recorded, so “Try first” shows what it would reject.")
    unknown %= {"days": DAYS}
    if limit.what == What.URL and resource is None:
        return unknown
    if limit.who == Who.TEAM and (limit.new_members or uncounted_members(entity).exists()):
        return gettext("What its members used together is not recorded so far.")
    since = in_site_time(timezone.now() - timedelta(days=DAYS))
    rows = UsageSnapshot.objects.filter(period=UsagePeriod.HOUR, start__gte=since)
    if not rows.filter(**({} if resource is None else {"resource": resource})).exists():
        return unknown
    proposed = [*_replayable(limit)]
    if not proposed:
        return gettext("What is used at a time is not recorded.")
    policy = proposed_policy(limit)
    policy.resource = None if resource is None else Resource(name=resource)
    foreseen = forecast(policy, proposed, now=timezone.now())
    if not foreseen.is_recorded:
        return unknown
    has_short = any(getattr(noted.limit, "window_seconds", HOUR) < HOUR for noted in proposed)
    text = _of_all(foreseen) if limit.who == Who.TOGETHER else _of_each(foreseen, has_short=has_short)
    return f"{text} {gettext('What the block would have rejected then is not included.')}" if limit.block_for else text


def _of_all(foreseen: Forecast) -> str:
    used, lost = sum(use.used for use in foreseen.consumers), sum(use.lost for use in foreseen.consumers)
    share = amount(round(100 * lost / used, 1) if used else 0)
    text = gettext("Last %(days)s days: %(share)s %% of the use would have been rejected.")
    return text % {"days": DAYS, "share": share}


def _of_each(foreseen: Forecast, *, has_short: bool) -> str:
    """The clients; `has_short` is of limits whose windows are shorter than the hours by which usage is recorded."""
    count = len({consumer.entity for consumer in foreseen.consumers})
    if not count and has_short:
        text = gettext("Last %(days)s days: no hour was above it. Short bursts are not seen: use “Try first”.")
        return text % {"days": DAYS}
    if not count:
        return gettext("Last %(days)s days: no client would have been rejected.") % {"days": DAYS}
    text = ngettext(
        "Last %(days)s days: %(count)s client would have been rejected.",
        "Last %(days)s days: %(count)s clients would have been rejected.",
        count,
    )
    if foreseen.is_cut:
        text = gettext("Last %(days)s days: at least %(count)s clients would have been rejected.")
    return text % {"days": DAYS, "count": amount(count)}


def _replayable(limit: SimpleLimit) -> Iterator[Noted]:
    """Its limits that hourly usage is enough for; requests are recorded by the key of calls or that of a quota."""
    for noted in limit.noted:
        if not can_be_replayed(noted.limit):
            continue
        yield noted
        if isinstance(noted.limit, QuotaLimit) and noted.limit.key == CALLS:
            yield Noted(replace(noted.limit, key=CallLimit.key), noted.shared)
