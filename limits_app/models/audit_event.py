"""Who changed what: rows that are written once and never change, each with the digest of the one before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from django.db import NotSupportedError, models, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from limits_app.models.audit_head import CONTENT, AuditHead, digest_of

__all__ = ["AuditEvent", "Verb"]

M_co = TypeVar("M_co", bound=models.Model, covariant=True)


class Verb(models.TextChoices):
    """What was done to an object."""

    CREATE = "create", _("create")
    UPDATE = "update", _("update")
    DELETE = "delete", _("delete")
    RESET = "reset", _("reset")
    TOP_UP = "top_up", _("top-up")
    PRUNE = "prune", _("prune")


def _refuse() -> NoReturn:
    raise NotSupportedError("the audit log is append-only: write another event instead of changing or deleting one")


class AppendOnlyQuerySet(models.QuerySet[M_co]):
    """Reads and appends, and refuses the rest."""

    def update(self, **kwargs: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def delete(self) -> NoReturn:
        """Refuse."""
        _refuse()

    def bulk_update(self, objs: Iterable[M_co], *args: Any, **options: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def bulk_create(self, objs: Iterable[M_co], *args: Any, **options: Any) -> list[M_co]:
        """Append to the chain, in order, and refuse to change or to skip rows that are there already.

        Writers wait for each other until their transactions end, so that one that is rolled back leaves no gap.
        """
        if len(args) > 1 or not options.keys() <= {"batch_size"}:
            _refuse()
        self._for_write = True  # which decides on the database
        events: list[Any] = list(objs)
        with transaction.atomic(using=self.db):
            head = AuditHead.locked(self.db)
            for event in events:
                head.digest = event.link(head.number + 1, head.digest)
                head.number += 1
            created = super().bulk_create(events, *args, **options)
            head.save(using=self.db, update_fields=["number", "digest"])
        return created


class AppendOnlyManager(models.Manager[M_co]):
    """Hands every verb on to the append-only queryset."""

    def get_queryset(self) -> AppendOnlyQuerySet[M_co]:
        """Give all events."""
        return AppendOnlyQuerySet(self.model, using=self._db)


class AuditEvent(models.Model):
    """One change of one object; appended in the transaction of the change, and never changed or deleted."""

    number = models.BigIntegerField(_("number"), unique=True, editable=False)
    previous = models.CharField(_("digest of the event before it"), max_length=64, blank=True, editable=False)
    digest = models.CharField(_("digest"), max_length=64, editable=False)
    when = models.DateTimeField(_("when"), default=timezone.now, db_index=True, editable=False)
    actor = models.TextField(_("actor"), blank=True, help_text=_("The user or program that did it."))
    source = models.CharField(_("source"), max_length=32, help_text=_("The way it came in, such as “admin”."))
    verb = models.CharField(_("verb"), max_length=8, choices=Verb.choices)
    object_type = models.CharField(_("type of object"), max_length=64)
    object_id = models.CharField(_("object id"), max_length=64)
    object_label = models.TextField(_("object"))
    before = models.JSONField(_("before"), null=True)
    after = models.JSONField(_("after"), null=True)
    reason = models.TextField(_("reason"), blank=True)
    idempotency_key = models.CharField(
        _("idempotency key"),
        max_length=255,
        null=True,
        blank=True,
        unique=True,
        help_text=_("What was asked with the same key again was done only once."),
    )

    objects: ClassVar[AppendOnlyManager[Self]] = AppendOnlyManager()

    class Meta:
        verbose_name = _("audit event")
        verbose_name_plural = _("audit events")
        ordering = ["-number"]
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = [("revert_auditevent", "Can revert changes of the audit log")]
        indexes = [models.Index(fields=["object_type", "object_id"], name="limits_app_audit_object")]
        constraints = [
            models.CheckConstraint(name="limits_app_audit_verb", condition=models.Q(verb__in=Verb.values)),
        ]

    def __str__(self) -> str:
        return f"{self.verb} {self.object_type} {self.object_label}"

    def save(self, **options: Any) -> None:
        """Append the event; NotSupportedError where it is there already."""
        if not self._state.adding:
            _refuse()
        type(self).objects.using(options.get("using")).bulk_create([self])

    def link(self, number: int, previous: str) -> str:
        """Take the place after the event with this digest, and give the digest of this one."""
        self.number, self.previous = number, previous
        self.digest = digest_of(previous, [getattr(self, name) for name in CONTENT])
        return self.digest

    def delete(self, using: Any = None, keep_parents: bool = False) -> NoReturn:
        """Refuse."""
        _refuse()
