"""The tables of the audit log and of what limits files manage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar, Final, NoReturn, Self, TypeVar

from django.apps import apps
from django.core.signing import BadSignature, Signer
from django.db import IntegrityError, NotSupportedError, models, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

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
"""The fields that the digest of an event covers, in this order, after the digest of the previous event."""


def digest_of(previous: str, content: Sequence[Any]) -> str:
    """Return the digest of an event from the digest of the previous one and the values of `CONTENT`.

    It is the SHA-256 of canonical JSON, independent of how a database represents numbers, keys and time zones.
    """
    when, *rest = content
    moment = when if when.tzinfo is None else when.astimezone(UTC)
    text = json.dumps([previous, moment.isoformat(), *map(_canonical, rest)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """A JSON value with whole numbers as int, because databases return 1e22 and 1.0 in different forms."""
    match value:
        case float() if value.is_integer():
            return int(Decimal(repr(value)))
        case dict():
            return {key: _canonical(element) for key, element in value.items()}
        case list() | tuple():
            return [_canonical(element) for element in value]
        case _:
            return value


M_co = TypeVar("M_co", bound=models.Model, covariant=True)


def _refuse(*args: Any, **options: Any) -> NoReturn:
    """Take the place of the methods that change or delete rows."""
    raise NotSupportedError("the audit log is append-only: write another event instead of changing or deleting one")


class GuardedQuerySet(models.QuerySet[M_co]):
    """A read-only queryset; changes and deletions raise an error."""

    update = delete = bulk_update = _refuse

    def bulk_create(self, objs: Iterable[M_co], *args: Any, **options: Any) -> list[M_co]:
        """Refuse."""
        _refuse()


class AuditHead(models.Model):
    """One row: the number and digest of the last event, and of the last one that was pruned.

    Only the transaction that holds its lock writes configuration, so the previous states in events are correct.
    A protected database allows deletion of events up to `pruned_number` only.
    It is signed with the site's SECRET_KEY, so that access to the database alone is not enough to shorten the log.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    number = models.BigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True, default="")
    pruned_number = models.BigIntegerField(default=0)
    pruned_digest = models.CharField(max_length=64, blank=True, default="")
    signature = models.CharField(max_length=64, blank=True, default="")

    objects: ClassVar[models.Manager[Self]] = GuardedQuerySet.as_manager()
    save = delete = _refuse

    class Meta:
        default_permissions = ()
        base_manager_name = "objects"

    def __str__(self) -> str:
        return f"event {self.number}"

    def _save_table(self, *args: Any, **options: Any) -> bool:
        """Save the row of a fixture; nothing else calls it."""
        using = args[4] if len(args) > 4 else options["using"]
        _check_loading(AuditHead, using, number__gt=0)
        return super()._save_table(*args, **options)  # type: ignore[misc, no-any-return]  # Django's own

    @property
    def is_signed(self) -> bool:
        """Whether the row has a valid signature of this site; an empty log needs none."""
        if not (self.number or self.signature):
            return True
        try:
            _SIGNER().unsign(f"{self._signed_text}:{self.signature}")
        except BadSignature:
            return False
        return True

    def sign(self, using: str) -> None:
        """Sign the current row and save it."""
        self.signature = _SIGNER().signature(self._signed_text)
        values = {name: getattr(self, name) for name in (*_SIGNED, "signature")}
        models.QuerySet(AuditHead, using=using).filter(pk=1).update(**values)

    def advance(self, using: str, **values: Any) -> None:
        """Save new values, signed; without a valid signature before it stays unsigned, which `verify` reports."""
        is_signed = self.is_signed
        for name, value in values.items():
            setattr(self, name, value)
        if is_signed:
            self.sign(using)
        else:
            models.QuerySet(AuditHead, using=using).filter(pk=1).update(**values)

    @property
    def _signed_text(self) -> str:
        return ":".join(str(getattr(self, name)) for name in _SIGNED)

    @classmethod
    def locked(cls, using: str) -> AuditHead:
        """Lock the row until the transaction ends, and return it."""
        cls.lock(using)
        return cls.current(using)

    @classmethod
    def current(cls, using: str) -> AuditHead:
        """Return the row, which the transaction of the caller has locked."""
        heads: models.QuerySet[AuditHead] = models.QuerySet(cls, using=using)
        return heads.get(pk=1)

    @classmethod
    def lock(cls, using: str) -> None:
        """Lock the row until the transaction ends.

        The lock is an update, because SQLite has no other, and because a transaction there that reads before its first
        write can find that it came too late.
        """
        heads: models.QuerySet[AuditHead] = models.QuerySet(cls, using=using)
        if not heads.filter(pk=1).update(id=1):
            cls._begin(using)

    @classmethod
    def _begin(cls, using: str) -> None:
        """Create the row, at the last event if there are any."""
        last = apps.get_model("limits_app", "AuditEvent")._default_manager.using(using).order_by("-number").first()
        head = {} if last is None else {"number": last.number, "digest": last.digest}
        heads: models.QuerySet[AuditHead] = models.QuerySet(cls, using=using)
        try:
            with transaction.atomic(using=using):
                heads.bulk_create([cls(pk=1, **head)])
        except IntegrityError:  # another transaction has created it meanwhile
            heads.filter(pk=1).update(id=1)


_SIGNER: Final = partial(Signer, salt="limits_app.audit")
_SIGNED: Final = ("number", "digest", "pruned_number", "pruned_digest")


def _check_loading(model: type[models.Model], using: str, **existing: Any) -> None:
    """Raise IntegrityError if a fixture would overwrite rows of the log."""
    if model._default_manager.using(using).filter(**existing).exists():
        raise IntegrityError(
            "the audit log has events: a log can be loaded only where it is empty; to load configuration alone, "
            "dump it with --exclude limits_app.auditevent --exclude limits_app.audithead"
        )


class Verb(models.TextChoices):
    """The kind of change."""

    CREATE = "create", _("create")
    UPDATE = "update", _("update")
    DELETE = "delete", _("delete")
    RESET = "reset", _("reset")
    TOP_UP = "top_up", _("top-up")
    PRUNE = "prune", _("prune")
    ERASE = "erase", _("erase")


class AppendOnlyQuerySet(GuardedQuerySet[M_co]):
    """Reads and appends; other operations raise an error."""

    def bulk_create(self, objs: Iterable[M_co], *args: Any, **options: Any) -> list[M_co]:
        """Append to the chain, in order; ignoring or updating conflicts is not supported.

        Writers wait for each other until their transactions end, so that one that is rolled back leaves no gap.
        """
        if len(args) > 1 or not options.keys() <= {"batch_size"}:
            _refuse()
        self._for_write = True  # which decides on the database
        with transaction.atomic(using=self.db):
            AuditHead.lock(self.db)
            return self.append(objs, *args, **options)

    def append(self, objs: Iterable[M_co], batch_size: int | None = None) -> list[M_co]:
        """Append to the chain, in order, in the transaction of the caller, which has locked the head."""
        self._for_write = True
        events: list[Any] = list(objs)
        head = AuditHead.current(self.db)
        number, digest = head.number, head.digest
        for event in events:
            number, digest = number + 1, event.link(number + 1, digest)
        created = models.QuerySet.bulk_create(self, events, batch_size)
        head.advance(self.db, number=number, digest=digest)
        return created


class AuditEvent(models.Model):
    """One change of one object; appended in the transaction of the change, and then only pruned or redacted."""

    number = models.BigIntegerField(_("number"), unique=True, editable=False)
    previous = models.CharField(_("digest of the previous event"), max_length=64, blank=True, editable=False)
    digest = models.CharField(
        _("digest"),
        max_length=64,
        editable=False,
        help_text=_("Computed from this event and the previous digest: shows that no event was changed or removed."),
    )
    when = models.DateTimeField(_("when"), default=timezone.now, db_index=True, editable=False)
    actor = models.TextField(_("actor"), blank=True, help_text=_("The user or program that made the change."))
    source = models.CharField(_("source"), max_length=32, help_text=_("Where the change was made, such as “admin”."))
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
        help_text=_("A repeated request with the same key has no effect."),
    )

    objects: ClassVar[models.Manager[Self]] = AppendOnlyQuerySet.as_manager()
    delete = _refuse

    shown_as: str = ""
    """The text of a copy that pages show, as that of configuration."""

    class Meta:
        verbose_name = _("audit log entry")
        verbose_name_plural = _("audit log entries")
        ordering = ["-number"]
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = [("revert_auditevent", "Can revert changes of the audit log")]
        indexes = [models.Index(fields=["object_type", "object_id"], name="limits_app_audit_object")]
        constraints = [models.CheckConstraint(name="limits_app_audit_verb", condition=models.Q(verb__in=Verb.values))]

    def __str__(self) -> str:
        return self.shown_as or f"{self.verb} {self.object_type} {self.object_label}"

    def save(self, **options: Any) -> None:
        """Append the event; raises NotSupportedError if it is already saved."""
        if not self._state.adding:
            _refuse()
        type(self).objects.using(options.get("using")).bulk_create([self])

    def _save_table(self, *args: Any, **options: Any) -> bool:
        """Save an event of a fixture with its digest; nothing else calls it."""
        using = args[4] if len(args) > 4 else options["using"]
        _check_loading(AuditEvent, using, number=self.number)
        return super()._save_table(*args, **options)  # type: ignore[misc, no-any-return]  # Django's own

    def link(self, number: int, previous: str) -> str:
        """Append it after the event with this digest; returns its own digest."""
        # The primary key is the number too: a sequence of the database would begin again after a fixture was loaded.
        self.pk, self.number, self.previous = number, number, previous
        # In milliseconds, since JSON fixtures keep no more.
        self.when = self.when.replace(microsecond=self.when.microsecond // 1000 * 1000)
        self.digest = digest_of(previous, self.content)
        return self.digest

    @property
    def content(self) -> list[Any]:
        """The values that the digest covers."""
        return [getattr(self, name) for name in CONTENT]

    def is_unchanged(self) -> bool:
        """Whether the content is the one that was written, which neither an erasure nor anybody else has changed."""
        return digest_of(self.previous, self.content) == self.digest


class Manifest(models.Model):
    """The objects of a limits file when it was applied last: primary keys, by the name of the model."""

    name = models.CharField(max_length=64, primary_key=True)
    objects_of = models.JSONField(default=dict)
    applied_at = models.DateTimeField(auto_now=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
