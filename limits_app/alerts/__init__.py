"""Alerts by e-mail and webhook: events are recorded in an outbox, and sent by a task or command, not by requests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from limits_app.alerts.recording import connect, recorder

if TYPE_CHECKING:
    from limits_app.alerts.delivery import NotDelivered, send_test
    from limits_app.alerts.outbox import Sent, send
else:
    # The clients for e-mail and webhooks are imported by the first process that sends alerts.
    _HOMES: Final = {"NotDelivered": "delivery", "Sent": "outbox", "send": "outbox", "send_test": "delivery"}

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
