"""Alerts by e-mail and webhook: events are recorded in an outbox, and sent by a task or command, not by requests."""

from __future__ import annotations

from limits_app.alerts.delivery import NotDelivered, send_test
from limits_app.alerts.outbox import Sent, send
from limits_app.alerts.recording import connect, recorder
