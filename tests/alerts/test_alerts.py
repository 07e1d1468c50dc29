"""Alerts: which events, once for all processes, sent outside of requests, signed, and again after a failure."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core import mail
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import Settings

from limits_app import CallLimit, RateLimitAlgorithm, alerts, limits, signals, tasks
from limits_app.alerts import recorder
from limits_app.alerts.recording import AlertEvent, AlertRecorder
from limits_app.engine.outcome import LimitStatus
from limits_app.models import Alert, AlertKind, AlertRule, AuditEvent, BucketKind, Denial, EmergencySwitch
from limits_app.services.near_limits import thresholds
from limits_app.testing import FakeClock, freeze_limits
from tests.alerts.conftest import Receiver, rule
from tests.commands.running import run
from tests.docs.pages import DOCS, ROOT, rows
from tests.servers.mail import mail_server

pytestmark = pytest.mark.django_db

NOT_ACCEPTED = "the receiver did not accept it within 10 seconds; the log of the server has the cause"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def is_on(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "ALERTS": True, "NEAR_THRESHOLDS": (0.5, 0.8)}


@pytest.fixture
def site(is_on: None) -> Iterator[FakeClock]:
    """A resource with 10 calls an hour for each entity."""
    thresholds.clear()
    with freeze_limits(at=NOON.timestamp()) as clock:
        limits.set_resource_limits("api", [CallLimit(10, 3600, RateLimitAlgorithm.FIXED_WINDOW)])
        yield clock


def use(times: int, entity: str = "user:1") -> None:
    for _ in range(times):
        assert limits.try_acquire("api", entity=entity)


def about() -> list[str]:
    recorder.flush()
    return list(Alert.objects.order_by("pk").values_list("about", flat=True))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 2),
        ({"percent": 80}, 1),
        ({"entity": "user:2"}, 1),
        ({"resource": "api"}, 2),
        ({"resource": "other"}, 0),
        ({"enabled": False}, 0),
    ],
)
@pytest.mark.usefixtures("site")
def test_a_threshold_alerts_once_for_each_limit_and_window(
    fields: dict[str, Any], expected: int, receiver: Receiver
) -> None:
    rule("threshold", receiver, **{"percent": 50, **fields})
    use(9)
    use(5, "user:2")
    assert len(about()) == expected


def test_total_is_named_by_its_subject(site: FakeClock, receiver: Receiver) -> None:
    rule("threshold", receiver, percent=50)
    limits.set_entity_limits("user:7", "8/h", counted="total")
    use(5, "user:7")
    assert about() == ["call_count over all resources for user:7", "call_count of api for user:7"]
    texts = [alert.payload["text"] for alert in Alert.objects.order_by("pk")]
    assert texts[0] == "user:7 has used 4 of 8 requests per hour over all resources (50 %)"
    assert re.fullmatch(r"user:7 has used \d of \d+ requests per \w+ on api \(5\d %\)", texts[1])
    assert Denial(key="call_count", entity="user:7").whose == "call_count over all resources for user:7"


def test_the_next_window_alerts_again(site: FakeClock, receiver: Receiver) -> None:
    rule("threshold", receiver, percent=50)
    use(9)
    site.advance(3600)
    use(9)
    assert about() == ["call_count of api for user:1"] * 2
    assert "s3cr3t" not in str(list(Alert.objects.values_list("payload", flat=True)))


@pytest.mark.usefixtures("site")
def test_a_request_neither_sends_nor_writes(receiver: Receiver) -> None:
    rule("threshold", receiver, percent=50)
    receiver.hangs = True
    use(4)
    with CaptureQueriesContext(connection) as queries:
        use(5)
    assert not [one["sql"] for one in queries if "alert" in one["sql"]]
    assert (receiver.received, Alert.objects.exists()) == ([], False)
    assert recorder.flush() == 2


def test_without_the_setting_no_thresholds_are_checked(settings: Settings, is_on: None) -> None:
    assert signals.limit_near.receivers
    settings.LIMITS = {}
    assert not signals.limit_near.receivers


# Each kind of event that one call makes happen alone, how it happens, and a part of its text. Others, such as those
# about limits, have tests of their own in this module, and the next test names them.
EVENTS: list[tuple[str, Callable[[], object], str]] = [
    ("emergency", lambda: limits.set_emergency("off", reason="incident"), "all limits are switched off: incident"),
    (
        "emergency",
        lambda: EmergencySwitch.objects.create(mode="shadow", reason="incident"),
        "all limits are only reported and reject nothing: incident",
    ),
    (
        "candidate",
        lambda: signals.candidate_reverted.send(None, policy="api", reason="5 % were rejected"),
        "api was reverted: 5 % were rejected",
    ),
    ("store", lambda: signals.store_degraded.send(None, alias="shared", error=OSError("pass")), "unavailable"),
    ("store", lambda: signals.store_restored.send(None, alias="shared"), "is available again"),
]


def test_each_kind_of_event_is_tested_here() -> None:
    assert {kind for kind, *_ in EVENTS} | {AlertKind.REJECTIONS, AlertKind.THRESHOLD} == {*AlertKind}


def test_each_kind_of_event_has_a_line_and_a_key_in_the_guide() -> None:
    guide = DOCS / "howto" / "alerts.md"
    documented = [event for event, _ in rows(guide, "Alerts")]
    assert documented == [str(kind.label) for kind in AlertKind]
    [keys] = re.findall(r"The body has the keys `event` \((.+?)\)", guide.read_text())
    assert re.findall(r"`(\w+)`", keys) == [*AlertKind.values, "test"]


@pytest.mark.parametrize("kind", AlertKind)
def test_only_rules_about_limits_choose_a_resource_and_an_entity(kind: AlertKind) -> None:
    fields = {"name": "a", "target": "a@example.com", "percent": 80, "rejections": 1}
    errors: dict[str, Any] = {}
    try:
        AlertRule(**fields, kind=kind, resource="api", entity="user:1").full_clean()
    except ValidationError as error:
        errors = error.message_dict
    assert set(errors) == (set() if kind.is_about_limits else {"resource", "entity"})


@pytest.mark.parametrize(("kind", "happens", "text"), EVENTS)
@pytest.mark.usefixtures("is_on")
def test_each_kind_of_event_is_sent(
    kind: str,
    happens: Callable[[], object],
    text: str,
    receiver: Receiver,
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    for one in AlertKind.values:
        rule(one, receiver, rejections=1)
    with django_capture_on_commit_callbacks(execute=True):
        happens()
    recorder.flush()
    assert alerts.send().as_dict() == {"sent": 1, "failed": 0}
    [(_, body)] = receiver.received
    assert json.loads(body)["event"] == kind
    assert text in json.loads(body)["text"]
    assert alerts.send().sent == 0


def test_an_outage_is_one_alert_for_all_processes(receiver: Receiver) -> None:
    rule("store", receiver)
    start = NOON.timestamp()
    timeline = [("a", 0, "down"), ("b", 1, "down"), ("a", 60, "up"), ("b", 61, "up"), ("a", 90, "down")]
    timeline += [("b", 4000, "down"), ("a", 4001, "down")]  # whose processes ended without noticing the end
    recorders = {name: AlertRecorder() for name in "ab"}
    for name, seconds, state in timeline:
        recorders[name].note(AlertEvent(AlertKind.STORE, f"store shared {state}", "text", start + seconds, None))
        recorders[name].flush()
    assert [one.rpartition(" ")[2] for one in about()] == ["down", "up", "down", "down"]


def test_two_processes_with_the_same_event_write_one_alert(receiver: Receiver) -> None:
    rule("threshold", receiver, percent=50)
    event = AlertEvent(AlertKind.THRESHOLD, "calls of api", "text", NOON.timestamp(), "window 1", "api", "user:1", 50)
    for one in (AlertRecorder(), AlertRecorder()):
        one.note(event)
        one.flush()
    assert about() == ["calls of api"]


def test_events_that_cannot_be_written_are_kept(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rule("candidate", receiver)
    kept = AlertRecorder(most=2)
    for number in range(3):
        kept.note(AlertEvent(AlertKind.CANDIDATE, f"policy {number}", "text", NOON.timestamp(), ""))
    assert "dropped: policy 2" in caplog.text
    with monkeypatch.context() as broken:
        broken.setattr(AlertRule.objects, "using", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            kept.flush()
    assert kept.flush() == 2
    assert about() == ["policy 0", "policy 1"]


@pytest.mark.parametrize(
    ("count", "fields", "expected"),
    [
        (11, {}, 1),
        (10, {}, 0),
        (11, {"entity": "user:1"}, 1),
        (11, {"entity": "user:2"}, 0),
        (11, {"resource": "x"}, 0),
    ],
)
def test_rejections_above_a_rate_alert_once_an_hour(
    count: int, fields: dict[str, Any], expected: int, receiver: Receiver
) -> None:
    AlertRule.objects.filter(pk=rule("rejections", receiver, rejections=10, **fields).pk).update(created_at=NOON)
    for minute in (1, 2):
        at = NOON + timedelta(minutes=minute)
        Denial.objects.create(
            minute=at,
            first=at,
            last=at,
            resource="api",
            entity="user:1",
            key="rpm",
            count=count,
            bucket=BucketKind.ENTITY,
        )
    assert alerts.send(now=NOON + timedelta(minutes=5)).sent == expected
    assert alerts.send(now=NOON + timedelta(minutes=6)).sent == 0
    for alert in Alert.objects.all():
        assert (
            f"{count} requests of user:1 were rejected within a minute, by the limit of rpm on api"
            in alert.payload["text"]
        )


def test_of_many_rejections_the_latest_alert_first(receiver: Receiver) -> None:
    AlertRule.objects.filter(pk=rule("rejections", receiver, rejections=10).pk).update(created_at=NOON)
    earlier = [(minute, entity) for minute in range(50) for entity in ("user:1", "user:2")]
    for minute, entity in [*earlier, (55, "user:3")]:
        at = NOON + timedelta(minutes=minute)
        Denial.objects.create(minute=at, first=at, last=at, resource="api", entity=entity, key="rpm", count=11)
    assert alerts.send(now=NOON + timedelta(minutes=56)).sent == 3


def waiting(**fields: object) -> Alert:
    """An alert that is due at noon."""
    defaults = {"about": "a", "payload": {"text": "a limit"}, "created_at": NOON, "next_attempt_at": NOON}
    return Alert.objects.create(**{**defaults, "dedupe_key": f"{fields}", **fields})


def test_a_webhook_is_signed(receiver: Receiver) -> None:
    waiting(rule=rule("store", receiver))
    alerts.send(now=NOON)
    [(headers, body)] = receiver.received
    signed = f"{NOON.timestamp():.0f}.".encode() + body
    assert headers["X-Limits-Timestamp"] == f"{NOON.timestamp():.0f}"
    expected = hmac.new(b"signing-key", signed, hashlib.sha256).hexdigest()
    assert headers["X-Limits-Signature"] == f"sha256={expected}"
    assert json.loads(body) == {"text": "a limit"}


@pytest.mark.parametrize("fields", [{"channel": "slack"}, {"secret": ""}])
def test_others_are_not_signed(fields: dict[str, Any], receiver: Receiver) -> None:
    waiting(rule=rule("store", receiver, **fields))
    alerts.send(now=NOON)
    [(headers, body)] = receiver.received
    assert "X-Limits-Signature" not in headers
    assert json.loads(body) == {"text": "a limit"}


def test_a_mail_is_sent_and_a_refused_one_again(receiver: Receiver, settings: Settings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST = "127.0.0.1"
    waiting(rule=rule("store", receiver, channel="email", target="a@example.com\nb@example.com"))
    with mail_server() as server:
        settings.EMAIL_PORT = server.port
        server.refuses = True
        assert alerts.send(now=NOON).failed == 1
        server.refuses = False
        assert alerts.send(now=NOON + timedelta(minutes=1)).sent == 1
    [message] = server.messages
    assert (message["subject"], message["to"]) == ("Limits: a limit", "a@example.com, b@example.com")
    assert message.get_payload().strip() == "a limit."


def test_mail_is_a_sentence_with_the_time_of_its_event(receiver: Receiver, settings: Settings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    text = "user:4 has used 16 of 20 requests per minute on api (80 %)"
    waiting(
        rule=rule("store", receiver, channel="email", target="a@example.com"),
        payload={"text": text, "at": NOON.isoformat()},
    )
    assert alerts.send(now=NOON).sent == 1
    [message] = mail.outbox
    assert message.subject == f"Limits: {text}"
    assert message.body == f"{text}.\n\nTime: {NOON:%Y-%m-%d %H:%M} (UTC)"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"remaining": 3.111, "limit": 10}, "user:1 has used 16 of 20 requests on api (84 %)"),
        ({"remaining": 3.111, "limit": 20}, "user:1 has used 16 of 20 requests per minute on api (84 %)"),
        ({"remaining": 4, "limit": 20, "window_seconds": 90}, "user:1 has used 16 of 20 requests on api (80 %)"),
        ({"key": "usd", "remaining": 3.5, "limit": 20}, "user:1 has used 16.5 of 20 usd per minute on api (82 %)"),
        ({"key": "tokens", "entity": None, "remaining": 0, "resource": None}, "the site has used 20 of 20 tokens over"),
    ],
)
@pytest.mark.usefixtures("site")
def test_text_says_how_much_is_used_in_whole_units(status: dict[str, Any], text: str, receiver: Receiver) -> None:
    rule("threshold", receiver, percent=50)
    fields = {"key": "call_count", "resource": "api", "entity": "user:1", "level": "resource", "capacity": 20}
    amounts = {"requested": 1, "retry_after": 0, "reset_after": 60, "window_seconds": 60}
    signals.limit_near.send(None, status=LimitStatus(**{**fields, **amounts, **status}), threshold=0.8, window="1")
    recorder.flush()
    assert Alert.objects.get().payload["text"].startswith(text)


def test_failed_attempts_are_repeated_with_back_off_and_given_up(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    alert = waiting(rule=rule("store", receiver))
    receiver.status = 500
    now, delays = NOON, []
    for _ in range(30):
        assert alerts.send(now=now - timedelta(seconds=1)).failed == 0
        assert alerts.send(now=now).failed == 1
        alert.refresh_from_db()
        delays.append(alert.next_attempt_at and (alert.next_attempt_at - now).total_seconds())
        now = alert.next_attempt_at or now
    assert delays == [60, 120, 240, 480, 960, 1920, *[3600] * 23, None]
    assert "answered with status 500" in caplog.text
    assert "s3cr3t" not in caplog.text
    receiver.status = 200
    assert alerts.send(now=now + timedelta(days=1)).as_dict() == {"sent": 0, "failed": 0}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("hangs", "cannot be reached: TimeoutError"),
        ("redirects", "status 302"),
        ("is_gone", "cannot be reached: Connection refused"),
        ("bad_name", "sending failed: Unicode|cannot be reached"),
    ],
)
def test_the_cause_of_a_failure_is_only_in_the_log(
    fault: str, said: str, receiver: Receiver, wait_at_most: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    wait_at_most(0.1)
    receiver.hangs, receiver.status = fault == "hangs", 302 if fault == "redirects" else 200
    targets = {"is_gone": "http://127.0.0.1:1/s3cr3t", "bad_name": f"http://{'a' * 64}.example/s3cr3t"}
    alert = waiting(rule=rule("store", receiver, target=targets.get(fault, receiver.url)))
    assert alerts.send(now=NOON).failed == 1
    alert.refresh_from_db()
    assert any(one in caplog.text for one in said.split("|"))
    assert "s3cr3t" not in caplog.text
    assert alert.last_error == NOT_ACCEPTED
    assert len(receiver.received) <= 1


def test_an_alert_that_another_sender_has_claimed_is_not_sent(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = waiting(rule=rule("store", receiver)), waiting(rule=AlertRule.objects.get(), about="b")

    def deliver(*args: object, **options: object) -> None:
        Alert.objects.filter(pk=second.pk).update(attempts=1)  # while this sender is sending the first one

    monkeypatch.setattr("limits_app.alerts.outbox.deliver", deliver)
    assert alerts.send(now=NOON).as_dict() == {"sent": 1, "failed": 0}
    first.refresh_from_db()
    assert (first.sent_at, first.next_attempt_at) == (NOON, None)


def test_old_alerts_are_deleted(receiver: Receiver) -> None:
    waiting(rule=rule("store", receiver), next_attempt_at=None)
    for days, left in ((62, 1), (63, 0)):
        alerts.send(now=NOON + timedelta(days=days))
        assert Alert.objects.count() == left


def test_the_task_sends(receiver: Receiver) -> None:
    waiting(rule=rule("store", receiver))
    assert tasks.send_alerts() == {"sent": 1, "failed": 0}


def test_the_commands_send_and_test(receiver: Receiver) -> None:
    waiting(rule=rule("store", receiver))
    assert (json.loads(run("alerts send --format json").out)["sent"], len(receiver.received)) == (1, 1)
    assert (run("alerts test store").code, len(receiver.received)) == (0, 2)
    receiver.status = 404
    assert "not sent: the receiver answered with status 404" in run("alerts test store").err
    waiting(rule=AlertRule.objects.get(), about="b")
    assert run("alerts send").code == 1


VALID = {"name": "a", "kind": "store", "channel": "email", "target": "a@example.com"}
INVALID = [
    ({"kind": "threshold", "percent": 70}, "percent", "Enter one of 80"),
    ({"kind": "rejections"}, "rejections", "1 or more"),
    ({"resource": "api"}, "resource", "Leave this empty"),
    ({"entity": "user:1"}, "entity", "Leave this empty"),
    ({"target": "a@example.com, b"}, "target", "valid email"),
    ({"target": " , "}, "target", "at least one"),
    ({"channel": "webhook", "target": "file:///etc/passwd"}, "target", "valid URL"),
]


@pytest.mark.parametrize(("fields", "name", "said"), INVALID)
def test_an_invalid_rule_is_an_error_of_its_field(fields: dict[str, Any], name: str, said: str) -> None:
    AlertRule(**VALID).full_clean()
    with pytest.raises(ValidationError) as raised:
        AlertRule(**{**VALID, **fields}).full_clean()
    assert said in str(raised.value.message_dict[name])


def test_the_admin_keeps_the_secret_and_never_shows_it(admin_client: Client, receiver: Receiver) -> None:
    made = rule("store", receiver)
    page = reverse("admin:limits_app_alertrule_change", args=[made.pk])
    shown = admin_client.get(page).content.decode()
    assert "signing-key" not in shown
    assert "Send a test alert" in shown
    form = {"name": "renamed", "kind": "store", "channel": "webhook", "target": made.target, "enabled": "on"}
    for secret, expected in (("", "signing-key"), ("new", "new")):
        answer = admin_client.post(page, {**form, "secret": secret}, follow=True)
        assert "Alerts are switched off on this site" in answer.content.decode()
        assert AlertRule.objects.get().secret == expected
    assert not AuditEvent.objects.exists()
    assert not LogEntry.objects.filter(change_message__contains="s3cr3t").exists()


@pytest.mark.usefixtures("is_on")
def test_the_test_button_sends_an_alert_and_shows_errors(admin_client: Client, receiver: Receiver) -> None:
    page = reverse("admin:limits_app_alertrule_test", args=[rule("store", receiver).pk])
    assert "The test alert was sent." in admin_client.post(page, follow=True).content.decode()
    assert json.loads(receiver.received[0][1])["event"] == "test"
    receiver.status = 410
    assert NOT_ACCEPTED in admin_client.post(page, follow=True).content.decode()
    AlertRule.objects.all().delete()
    assert admin_client.post(page).headers["location"] == reverse("admin:limits_app_alertrule_changelist")


def test_alerts_are_listed_and_read_only(admin_client: Client, receiver: Receiver) -> None:
    alert = waiting(rule=rule("store", receiver))
    assert "store: a" in str(alert)
    listed = admin_client.get(reverse("admin:limits_app_alert_changelist"))
    shown = admin_client.get(reverse("admin:limits_app_alert_change", args=[alert.pk]))
    assert "a limit" in shown.content.decode()
    for page in (listed, shown):
        assert "s3cr3t" not in page.content.decode()


def test_four_processes_send_one_alert(tmp_path: Path, receiver: Receiver) -> None:
    environment = os.environ | {
        "LIMITS_DEMO_DATABASE": str(tmp_path / "db.sqlite3"),
        "LIMITS_DEMO_STATE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.alerts.process", receiver.url]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert sorted(done.stdout.split()) == ["0", "0", "0", "1"]
    assert [json.loads(body)["about"] for _, body in receiver.received] == ["call_count of api for user:1"]
