"""Sends the alerts of the outbox, each by one sender, and again later where that fails."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import router
from django.db.models import QuerySet

from limits_app.acquiring import delay
from limits_app.alerts.delivery import NotDelivered, deliver
from limits_app.alerts.recording import AlertEvent, add_alerts, limit_in_text
from limits_app.engine import HOUR
from limits_app.models import Alert, AlertKind, AlertRule, BucketKind, Denial
from limits_app.models.fields import in_site_time
from limits_app.usage.reading import of_entity

logger = logging.getLogger("limits_app")

_FIRST_DELAY_SECONDS: Final = 60
_MAX_DELAY_SECONDS: Final = HOUR
_MAX_ATTEMPTS: Final = 30
"""The last attempt is about a day after the first one."""
_ALERTS_AT_A_TIME: Final = 100
_DAYS_KEPT: Final = 62
"""Longer than the longest window, a month: until then the row prevents a second alert."""


@dataclass(frozen=True, slots=True)
class Sent:
    """How many alerts were sent, and how many could not be sent and are tried again later."""

    sent: int = 0
    failed: int = 0

    def as_dict(self) -> dict[str, int]:
        """The same as plain data, for JSON."""
        return asdict(self)


def send(*, now: datetime | None = None) -> Sent:
    """Add alerts for rejections, send up to 100 alerts that are due, and delete those that are older than 62 days.

    Several senders may run at the same time: each attempt is made by one of them. The next attempt after a failure is
    made a minute later, then after two minutes, four and so on, at most an hour. After 30 attempts an alert is given
    up. A sender that is killed while it sends makes no difference to that: such an alert may arrive twice.
    """
    moment = datetime.now(UTC) if now is None else now
    _add_rejections(moment)
    sent = failed = 0
    due = _outbox().filter(next_attempt_at__lte=in_site_time(moment)).order_by("next_attempt_at", "pk")
    for alert in due.select_related("rule")[:_ALERTS_AT_A_TIME]:
        if _claim(alert, moment):
            is_sent = _attempt(alert, moment)
            sent, failed = sent + is_sent, failed + (not is_sent)
    _outbox().filter(created_at__lt=in_site_time(moment - timedelta(days=_DAYS_KEPT))).delete()
    return Sent(sent, failed)


def _outbox() -> QuerySet[Alert]:
    return Alert.objects.using(router.db_for_write(Alert))


def _claim(alert: Alert, now: datetime) -> bool:
    """Schedule the next attempt before this one; returns False if another sender has done so first."""
    attempts = alert.attempts + 1
    later = timedelta(seconds=delay(attempts, first=_FIRST_DELAY_SECONDS, cap=_MAX_DELAY_SECONDS))
    following = None if attempts >= _MAX_ATTEMPTS else in_site_time(now + later)
    same = _outbox().filter(pk=alert.pk, attempts=alert.attempts, sent_at=None)
    return same.update(attempts=attempts, next_attempt_at=following) == 1


def _attempt(alert: Alert, now: datetime) -> bool:
    """Send an alert; returns whether that was successful."""
    try:
        deliver(alert.rule, alert.payload, now=now)
    except NotDelivered as error:
        logger.warning("alert %s of the rule %r could not be sent: %s", alert.pk, alert.rule.name, error.cause)
        _outbox().filter(pk=alert.pk).update(last_error=str(error)[:500])
        return False
    _outbox().filter(pk=alert.pk).update(sent_at=in_site_time(now), next_attempt_at=None, last_error="")
    return True


def _add_rejections(now: datetime) -> None:
    """Add alerts for the rejections of the last hour, the latest first, which no earlier call has seen."""
    for rule in AlertRule.objects.filter(enabled=True, kind=AlertKind.REJECTIONS):
        since = max(in_site_time(now - timedelta(hours=1)), rule.created_at.replace(second=0, microsecond=0))
        denials = Denial.objects.filter(minute__gte=since, count__gt=rule.rejections, bucket=BucketKind.ENTITY)
        denials = denials.filter(resource=rule.resource) if rule.resource else denials
        denials = of_entity(denials, rule.entity) if rule.entity else denials
        add_alerts((_rejections(denial) for denial in denials.order_by("-minute")[:_ALERTS_AT_A_TIME]), [rule])


def _rejections(denial: Denial) -> AlertEvent:
    limit = limit_in_text(denial.key, denial.resource)
    text = f"{denial.count} requests of {denial.entity} were rejected within a minute, by {limit}"
    at = denial.last.timestamp()
    window = str(int(at // HOUR))
    return AlertEvent(AlertKind.REJECTIONS, denial.whose, text, at, window, denial.resource, denial.entity)
