"""Where the chain of the audit log ends, and whose turn it is to write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from django.apps import apps
from django.db import IntegrityError, models, transaction

__all__ = ["CONTENT", "AuditHead", "digest_of"]

CONTENT: Final = (
    "when",
    "actor",
    "source",
    "verb",
    "object_type",
    "object_id",
    "object_label",
    "before",
    "after",
    "reason",
    "idempotency_key",
)
"""What the digest of an event is taken of, in this order, after the digest of the event before it."""


def digest_of(previous: str, content: Sequence[Any]) -> str:
    """Give the digest of an event from that of the one before it and the values of `CONTENT`.

    It is the SHA-256 of JSON in one form, whatever the database made of numbers, keys and time zones on the way.
    """
    when, *rest = content
    text = json.dumps([previous, _moment(when), *map(_canonical, rest)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _moment(when: datetime) -> str:
    return (when if when.tzinfo is None else when.astimezone(UTC)).isoformat()


def _canonical(value: Any) -> Any:
    """A value of JSON with whole numbers as int, because databases give 1e22 and 1.0 back as they like."""
    match value:
        case float() if value.is_integer():
            return int(Decimal(repr(value)))
        case dict():
            return {key: _canonical(one) for key, one in value.items()}
        case list() | tuple():
            return [_canonical(one) for one in value]
        case _:
            return value


class AuditHead(models.Model):
    """One row: the number and digest of the last event, and of the last one that was pruned.

    Who holds its lock writes configuration, one transaction at a time, so that what events say was before is what was.
    The database lets go of events up to `pruned_number`, and of no others.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    number = models.BigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True, default="")
    pruned_number = models.BigIntegerField(default=0)
    pruned_digest = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"event {self.number}"

    @classmethod
    def locked(cls, using: str) -> AuditHead:
        """Wait for the turn to write, and give the row, which stays locked until the transaction ends.

        The lock is an update, because SQLite has no other, and because a transaction there that reads before its first
        write can find that it came too late.
        """
        heads = cls._default_manager.using(using)
        if not heads.filter(pk=1).update(id=1):
            cls._begin(using)
        return heads.get(pk=1)

    @classmethod
    def _begin(cls, using: str) -> None:
        """Put the row where there is none: after the last event, if there are any."""
        last = apps.get_model("limits_app", "AuditEvent")._default_manager.using(using).order_by("-number").first()
        found = {} if last is None else {"number": last.number, "digest": last.digest}
        try:
            with transaction.atomic(using=using):
                cls._default_manager.using(using).create(pk=1, **found)
        except IntegrityError:  # somebody else was faster, and has committed
            cls._default_manager.using(using).filter(pk=1).update(id=1)
