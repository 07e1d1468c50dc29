"""Sends one alert: an e-mail, a signed webhook, or a message to a Slack-compatible webhook."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from smtplib import SMTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from django.core.mail import EmailMessage, get_connection
from django.utils.translation import gettext

from limits_app.models import AlertChannel, AlertRule

TIMEOUT_SECONDS: Final = 10


class NotDelivered(Exception):
    """An alert could not be sent; the message has no secrets."""


def deliver(rule: AlertRule, payload: Mapping[str, Any], *, now: datetime) -> None:
    """Send an alert to the target of a rule; raises NotDelivered."""
    try:
        if rule.channel == AlertChannel.EMAIL:
            _send_mail(rule.addresses, str(payload["text"]))
        elif rule.channel == AlertChannel.SLACK:
            _post(rule.target, {"text": str(payload["text"])}, {})
        else:
            _post_signed(rule, payload, now)
    except HTTPError as error:
        raise NotDelivered(f"the receiver answered with status {error.code}") from None
    except (OSError, HTTPException, SMTPException, ValueError) as error:
        raise NotDelivered(_problem(error)) from None


def send_test(rule: AlertRule) -> None:
    """Send a test alert to the target of a rule now; raises NotDelivered."""
    now = datetime.now(UTC)
    text = f"this is a test of the alert rule {rule.name}"
    content = {"event": "test", "rule": rule.name, "text": text, "at": now.isoformat(timespec="seconds")}
    deliver(rule, content, now=now)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The header that proves who has sent a webhook: the HMAC of timestamp, a dot and the body, with SHA-256."""
    return "sha256=" + hmac.digest(secret.encode(), f"{timestamp}.".encode() + body, "sha256").hex()


def _send_mail(addresses: list[str], text: str) -> None:
    subject = gettext("Limits: %(text)s") % {"text": text}
    connection = get_connection(timeout=TIMEOUT_SECONDS)
    EmailMessage(" ".join(subject.split()), text, None, addresses, connection=connection).send()


def _post_signed(rule: AlertRule, payload: Mapping[str, Any], now: datetime) -> None:
    timestamp = str(int(now.timestamp()))
    headers = {"X-Limits-Timestamp": timestamp}
    if rule.secret:
        headers["X-Limits-Signature"] = signature(rule.secret, timestamp, _body(payload))
    _post(rule.target, payload, headers)


def _post(url: str, payload: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    request = Request(url, _body(payload), {"Content-Type": "application/json", **headers})  # noqa: S310 - see _opener
    with _opener().open(request, timeout=TIMEOUT_SECONDS):
        pass


def _opener() -> OpenerDirector:
    """An opener for HTTP and HTTPS only, which follows no redirects: they could lead anywhere."""
    opener = OpenerDirector()
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler(), HTTPErrorProcessor(), HTTPDefaultErrorHandler()):
        opener.add_handler(handler)
    return opener


def _body(payload: Mapping[str, Any]) -> bytes:
    return json.dumps(payload).encode()


def _problem(error: Exception) -> str:
    """What went wrong, without the URL, which may be a secret."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, OSError):
        return f"the receiver cannot be reached: {cause.strerror or type(cause).__name__}"
    return f"sending failed: {type(error).__name__}"
