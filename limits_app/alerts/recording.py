"""Records events of this process for the alert rules, and writes them to the outbox in a background thread.

The request only adds an event to a list. The unique key of an alert, made of its rule, what it is about and the window,
prevents a second one where several processes record the same event.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from time import time
from typing import Any, Final, NamedTuple

from django.db import router, transaction
from django.dispatch import Signal

from limits_app import conf, signals
from limits_app.engine import KEYS_OF_REQUESTS, NAMES, Clock, is_currency
from limits_app.engine.outcome import LimitStatus, plain_text
from limits_app.models import Alert, AlertKind, AlertRule, Emergency, Enforcement
from limits_app.models.fields import in_site_time
from limits_app.models.patterns import Patterns
from limits_app.usage.reading import counted_for, storable
from limits_app.usage.writer import BackgroundWriter, Origin

logger = logging.getLogger("limits_app")

_MOST_KEPT: Final = 1_000
_MOST_CHARACTERS: Final = 400
_OUTAGE_HOURS: Final = 1
_UID: Final = "limits_app.alerts"


class AlertEvent(NamedTuple):
    """Something that rules of a kind send an alert for.

    `about` and `window` are the same in every process that records the same event. `at` is in seconds since 1970.
    A rule sends one alert for all events about the same in the same window, until that is deleted after 62 days: let it
    name the period that one alert is sent for, or the time of an event that is sent each time. None is for a store: its
    alert is sent when its condition, the last word of `about`, differs from that of the alert before.
    Until they are written, events are kept once only where all their fields are equal: of a frequent signal, note one
    event for each window, or give them the same `at` and `text`.
    """

    kind: AlertKind
    about: str
    text: str
    at: float
    window: str | None
    resource: str = ""
    entity: str = ""
    percent: int = 0

    def is_for(self, rule: AlertRule) -> bool:
        """Whether a rule sends an alert for it."""
        return (
            rule.kind == self.kind
            and rule.resource in {"", self.resource}
            and (not rule.entity or self.entity in Patterns([rule.entity]))
            and (rule.percent or 0) <= self.percent
        )

    def payload(self, rule: AlertRule) -> dict[str, Any]:
        """The content of the alert, without secrets."""
        return {
            "event": self.kind.value,
            "rule": rule.name,
            "about": self.about,
            "text": self.text,
            "resource": self.resource or None,
            "entity": self.entity or None,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds"),
        }


class AlertRecorder(BackgroundWriter[AlertEvent, None]):
    """Keeps up to `most` events until they are written; further ones are dropped with a warning."""

    what = "alerts"
    model = Alert

    def __init__(self, *, most: int = _MOST_KEPT, clock: Clock | None = None, now: Callable[[], float] = time) -> None:
        self._most = most
        super().__init__(clock=clock, now=now)

    def note(self, event: AlertEvent) -> None:
        """Keep an event until it is written; neither waits for the database nor fails."""
        origin = self._origin()
        with self._lock:
            if len(self._kept[origin]) >= self._most:
                logger.warning("too many events for alerts; dropped: %s", event.about)
                return
            self._keep(origin, event, None)
        self._schedule_writing(origin)

    def _write(self, taken: Mapping[AlertEvent, None], using: str) -> int:
        add_alerts(taken, using=using)
        return len(taken)

    def _keep(self, origin: Origin, key: AlertEvent, value: None) -> None:
        self._kept[origin][key] = value


def add_alerts(
    events: Iterable[AlertEvent], rules: Iterable[AlertRule] | None = None, *, using: str | None = None
) -> None:
    """Add the alerts for some events to the outbox, each once; `rules` defaults to all enabled ones."""
    events = list(events)
    if not events:
        return
    using = router.db_for_write(Alert) if using is None else using
    if rules is None:
        rules = list(AlertRule.objects.using(using).filter(enabled=True))
    with transaction.atomic(using=using):
        # One at a time, since that of an outage depends on the one before.
        for alert in _alerts(events, list(rules), using):
            Alert.objects.using(using).bulk_create([alert], ignore_conflicts=True)


def _alerts(events: Iterable[AlertEvent], rules: Iterable[AlertRule], using: str) -> Iterator[Alert]:
    for event in events:
        for rule in filter(event.is_for, rules):
            window = _outage(rule, event, using) if event.window is None else event.window
            if window is not None:
                at = in_site_time(datetime.fromtimestamp(event.at, UTC))
                key = json.dumps([rule.pk, event.kind, event.about, window])
                yield Alert(
                    rule=rule,
                    about=event.about[:_MOST_CHARACTERS],
                    payload=event.payload(rule),
                    dedupe_key=sha256(key.encode()).hexdigest(),
                    created_at=at,
                    next_attempt_at=at,
                )


def _outage(rule: AlertRule, event: AlertEvent, using: str) -> str | None:
    """Return a window for the alert of an outage or of its end; None if the same was recorded in the last hour.

    Each process notices an outage by itself; their events get the same window, since they follow the same alert.
    """
    store = f"{event.about.rpartition(' ')[0]} "  # without the last word, "available" or "unavailable"
    last = Alert.objects.using(using).filter(rule=rule, about__startswith=store).order_by("pk").last()
    since = in_site_time(datetime.fromtimestamp(event.at, UTC) - timedelta(hours=_OUTAGE_HOURS))
    if last is not None and last.about == event.about and last.created_at > since:
        return None
    return f"after {last.pk if last else 0}"


def limit_in_text(key: str, resource: str) -> str:
    """A limit in the text of an alert, such as “the limit of requests on api”."""
    return f"the limit of {_unit(key)} {_scope(resource)}"


def _use_in_text(status: LimitStatus, client: str) -> str:
    """How much of a limit is used, such as “user:7 has used 16 of 20 requests per minute on api (80 %)”."""
    capacity, used = status.capacity, status.capacity - status.remaining
    is_whole = not is_currency(status.key) and capacity == int(capacity)
    period = NAMES.get(status.window_seconds or 0, "") if status.limit == capacity else ""
    limit = f"{plain_text(capacity)} {_unit(status.key)}{period and f' per {period}'} {_scope(status.resource or '')}"
    share = int(100 * used / capacity) if capacity else 100
    shown = plain_text(int(used) if is_whole else used)
    return f"{client or 'the site'} has used {shown} of {limit} ({share} %)"


def _unit(key: str) -> str:
    return "requests" if key in KEYS_OF_REQUESTS else key


def _scope(resource: str) -> str:
    return f"on {resource}" if resource else "over all resources"


def _limit_near(status: LimitStatus, threshold: float, window: str, **_: object) -> None:
    who, percent = storable(counted_for(entity=status.entity, member=status.member)), round(threshold * 100)
    scope = f"of {status.resource}" if status.resource else "over all resources"
    name = f"{status.key} {scope}" + (f" for {who}" if who else "")
    text = _use_in_text(status, who)
    event = AlertEvent(AlertKind.THRESHOLD, name, text, recorder.now(), window, status.resource or "", who, percent)
    recorder.note(event)


def _store_degraded(alias: str, **_: object) -> None:
    text = f"the store {alias} is unavailable: policies decide without it"
    recorder.note(AlertEvent(AlertKind.STORE, f"store {alias} unavailable", text, recorder.now(), None))


def _store_restored(alias: str, **_: object) -> None:
    text = f"the store {alias} is available again"
    recorder.note(AlertEvent(AlertKind.STORE, f"store {alias} available", text, recorder.now(), None))


_SWITCHED: Final[Mapping[Enforcement, str]] = {
    Enforcement.OFF: "all limits are switched off",
    Enforcement.SHADOW: "all limits are only reported and reject nothing",
    Enforcement.ENFORCE: "all limits are enforced again",
}


def _emergency_switched(emergency: Emergency, **_: object) -> None:
    until = f" until {emergency.until.isoformat(' ', 'minutes')}" if emergency.until else ""
    text = _SWITCHED[emergency.mode] + until + (emergency.reason and f": {emergency.reason}")
    now = recorder.now()
    recorder.note(AlertEvent(AlertKind.EMERGENCY, "emergency switch", text, now, str(now)))


def _candidate_reverted(policy: str, reason: str, **_: object) -> None:
    now = recorder.now()
    text = f"the candidate of the policy {policy} was reverted: {reason}"
    recorder.note(AlertEvent(AlertKind.CANDIDATE, policy, text, now, str(now)))


_RECEIVERS: Final[tuple[tuple[Signal, Callable[..., None]], ...]] = (
    (signals.limit_near, _limit_near),
    (signals.store_degraded, _store_degraded),
    (signals.store_restored, _store_restored),
    (signals.emergency_switched, _emergency_switched),
    (signals.candidate_reverted, _candidate_reverted),
)


def connect() -> None:
    """Record events if ALERTS is set, and no events otherwise: then requests do not check thresholds."""
    is_on = not conf.problems() and conf.get(conf.ALERTS)
    for signal, receiver in _RECEIVERS:
        if is_on:
            signal.connect(receiver, dispatch_uid=_UID)
        else:
            signal.disconnect(dispatch_uid=_UID)


recorder: Final = AlertRecorder()
"""The recorder of this process."""
