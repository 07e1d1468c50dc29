"""Sends one alert: an e-mail, a signed webhook, or a message to a Slack-compatible webhook."""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from smtplib import SMTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request

from django.core.mail import EmailMessage, get_connection
from django.utils.dateparse import parse_datetime
from django.utils.timezone import localtime
from django.utils.translation import gettext

from limits_app.alerts.targets import Deadline, PrivateTarget, opener
from limits_app.models import AlertChannel, AlertRule

logger = logging.getLogger("limits_app")

TIMEOUT_SECONDS: Final = 10

_NOT_ACCEPTED: Final = "the receiver did not accept it within 10 seconds; the log of the server has the cause"
_PRIVATE: Final = "the target is in a private network: set LIMITS['ALERT_PRIVATE_TARGETS'] = True to allow that"
_MENTION: Final = re.compile(r"@(?=(?:all|channel|everyone|here)\b)", re.IGNORECASE)


class NotDelivered(Exception):
    """An alert could not be sent; neither the message nor the cause has secrets.

    The message is for users of the admin, who could otherwise find out which ports of other machines are open. The
    `cause` is for the log and for commands.
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


def deliver(rule: AlertRule, payload: Mapping[str, Any], *, now: datetime) -> None:
    """Send an alert to the target of a rule, in 10 seconds; raises NotDelivered."""
    try:
        if rule.channel == AlertChannel.EMAIL:
            _send_mail(rule.addresses, payload)
        elif rule.channel == AlertChannel.SLACK:
            _post(rule.target, {"text": _without_markup(str(payload["text"]))}, {})
        else:
            _post_signed(rule, payload, now)
    except (OSError, HTTPException, SMTPException, ValueError) as error:
        raise _not_delivered(error) from None


def send_test(rule: AlertRule) -> None:
    """Send a test alert to the target of a rule now; raises NotDelivered, and logs the cause."""
    now = datetime.now(UTC)
    text = f"this is a test of the alert rule {rule.name}"
    content = {"event": "test", "rule": rule.name, "text": text, "at": now.isoformat(timespec="seconds")}
    try:
        deliver(rule, content, now=now)
    except NotDelivered as error:
        logger.warning("a test alert of the rule %r could not be sent: %s", rule.name, error.cause)
        raise


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The header that proves who has sent a webhook: the HMAC of timestamp, a dot and the body, with SHA-256."""
    return "sha256=" + hmac.digest(secret.encode(), f"{timestamp}.".encode() + body, "sha256").hex()


def _send_mail(addresses: list[str], payload: Mapping[str, Any]) -> None:
    text = str(payload["text"])
    subject = gettext("Limits: %(text)s") % {"text": text}
    sentences = [f"{text.rstrip('.')}."]
    if at := parse_datetime(str(payload.get("at", ""))):
        sentences.append(gettext("Time: %(time)s") % {"time": f"{localtime(at):%Y-%m-%d %H:%M (%Z)}"})
    connection = get_connection(timeout=TIMEOUT_SECONDS)
    message = EmailMessage(" ".join(subject.split()), "\n\n".join(sentences), None, addresses, connection=connection)
    Deadline(TIMEOUT_SECONDS).run(lambda _: message.send())


def _post_signed(rule: AlertRule, payload: Mapping[str, Any], now: datetime) -> None:
    timestamp = str(int(now.timestamp()))
    headers = {"X-Limits-Timestamp": timestamp}
    if rule.secret:
        headers["X-Limits-Signature"] = signature(rule.secret, timestamp, _body(payload))
    _post(rule.target, payload, headers)


def _post(url: str, payload: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    request = Request(url, _body(payload), {"Content-Type": "application/json", **headers})  # noqa: S310 - see opener

    def send(deadline: Deadline) -> None:
        with opener(deadline).open(request, timeout=deadline.left()):
            pass

    Deadline(TIMEOUT_SECONDS).run(send)


def _without_markup(text: str) -> str:
    """Escape text for Slack and the services that imitate it: no links, no mentions that notify a whole channel."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MENTION.sub("@\N{ZERO WIDTH SPACE}", escaped)


def _body(payload: Mapping[str, Any]) -> bytes:
    return json.dumps(payload).encode()


def _not_delivered(error: Exception) -> NotDelivered:
    """What went wrong, without the URL, which may be a secret."""
    cause = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    if isinstance(cause, PrivateTarget):
        return NotDelivered(_PRIVATE, _PRIVATE)
    if isinstance(cause, HTTPError):
        cause.close()
        return NotDelivered(_NOT_ACCEPTED, f"the receiver answered with status {cause.code}")
    if isinstance(cause, OSError):
        return NotDelivered(_NOT_ACCEPTED, f"the receiver cannot be reached: {cause.strerror or type(cause).__name__}")
    return NotDelivered(_NOT_ACCEPTED, f"sending failed: {type(error).__name__}")
