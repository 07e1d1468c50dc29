"""Telling the site that configuration changed, once per transaction and only after it was committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db import connections, models, transaction
from django.db.models.signals import post_delete, post_save

from limits_app import signals

__all__ = ["announce", "pending", "watch"]


@dataclass(frozen=True, slots=True)
class _Announcement:
    """What runs after the commit; its type tells it from other callbacks of the transaction."""

    using: str

    def __call__(self) -> None:
        signals.limits_changed.send_robust(sender=None, using=self.using)


def announce(using: str) -> None:
    """Send `limits_changed` when the current transaction on `using` is committed, or at once where there is none.

    A transaction is announced once, however much it changes, and not at all when it is rolled back.
    A receiver that fails is logged and stops nobody else.
    """
    if not pending(using):
        transaction.on_commit(_Announcement(using), using=using)


def pending(using: str) -> bool:
    """Whether the current transaction on `using` has announced a change that is not committed yet."""
    return any(isinstance(hook[1], _Announcement) for hook in connections[using].run_on_commit)


def watch(watched: Iterable[type[models.Model]]) -> None:
    """Announce whenever a row of these models is saved or deleted."""
    for model in watched:
        for signal in (post_save, post_delete):
            signal.connect(_announce_row, sender=model, dispatch_uid=f"limits_app.changes.{model.__name__}")


def _announce_row(sender: type[models.Model], *, using: str, **details: object) -> None:
    announce(using)
