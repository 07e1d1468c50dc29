"""Verifies the hash chain of the log, and finds objects that were changed without an event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from django.db import router, transaction
from django.db.models import QuerySet
from django.utils import timezone

from limits_app.audit.redacting import redactions
from limits_app.audit.reverting import MODELS
from limits_app.engine.errors import InvalidRequest
from limits_app.models import AuditEvent, AuditHead, Verb
from limits_app.models.audit_log import digest_of
from limits_app.models.recording import acting
from limits_app.models.snapshots import Snapshot, batches, snapshots

_EVENTS_AT_A_TIME: Final = 5000


class Fault(StrEnum):
    """How the log was changed."""

    CHANGED = "changed"
    MISSING = "missing"
    REORDERED = "reordered"
    INSERTED = "inserted"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """The first difference between the log and the events that the app wrote.

    `number` is the number of the changed or inserted event, or of the one after the missing events.
    """

    fault: Fault
    number: int
    detail: str

    def __str__(self) -> str:
        return f"event {self.number}: {self.fault}: {self.detail}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result: the number of valid events, the number and digest of the last one, and the broken link, if any.

    `redacted` is how many of the events have another content than when they were written, because an entity was erased.
    The number and digest can be recorded elsewhere and passed as `known` later.
    """

    events: int
    number: int
    digest: str
    broken: BrokenLink | None = None
    redacted: int = 0

    @property
    def ok(self) -> bool:
        """Whether all events are present, unchanged and in order."""
        return self.broken is None

    def __str__(self) -> str:
        redacted = f", {self.redacted} of them redacted" if self.redacted else ""
        return f"{self.events} events in order{redacted}" + ("" if self.broken is None else f", then {self.broken}")


class _Position(NamedTuple):
    number: int
    digest: str


def verify(*, using: str | None = None, known: tuple[int, str] | None = None) -> AuditReport:
    """Compute every digest of the log again, in the order of the events, and report the first broken link.

    The log is streamed, with a few thousand events in memory, and read again if it is pruned meanwhile.
    With `known`, a number and a digest that were recorded elsewhere, the event with that number must have that digest;
    this also detects a log that was rewritten with consistent digests. Of the pruned events only the last one can be
    compared; for an earlier one the report contains a broken link.
    """
    using = using or router.db_for_write(AuditEvent)
    while True:
        begun, report = _read(using, known)
        pruned = AuditHead._default_manager.using(using).values_list("pruned_number", flat=True).first()
        if report.ok or begun == pruned:
            return report


def _read(using: str, recorded: tuple[int, str] | None) -> tuple[int, AuditReport]:
    """Return the number of the last pruned event, and the report."""
    with transaction.atomic(using=using):
        head = AuditHead.locked(using)  # locked, so that no event is added while the end is determined
        end = _Position(head.number, head.digest)
        begin = _Position(head.pruned_number, head.pruned_digest)
        beyond = AuditEvent.objects.using(using).filter(number__gt=end.number).exists()
    report = _followed(begin, end, using, recorded)
    if report.ok and (broken := _broken_head(head, using)) is not None:
        report = replace(report, broken=broken)
    if beyond and report.ok:
        detail = f"this app did not write any event after event {end.number}"
        report = replace(report, broken=BrokenLink(Fault.INSERTED, end.number + 1, detail))
    return begin.number, report


def _broken_head(head: AuditHead, using: str) -> BrokenLink | None:
    """Return a broken link if the head is not signed by this site, or no event records the pruning."""
    if head.pruned_number:
        prunings = AuditEvent.objects.using(using).filter(verb=Verb.PRUNE, object_type=AuditEvent._meta.model_name)
        after = prunings.order_by("-number").values_list("after", flat=True).first() or {}
        if (after.get("number"), after.get("digest")) != (head.pruned_number, head.pruned_digest):
            return BrokenLink(
                Fault.PRUNED, head.pruned_number, "no event records that the events up to here were pruned"
            )
    if not head.is_signed:
        detail = (
            "the head of the log has no valid signature: it was changed, lost, or signed with another SECRET_KEY. "
            "Compare the number and digest with your records, then run `limits audit sign`"
        )
        return BrokenLink(Fault.CHANGED, head.number, detail)
    return None


def _followed(begin: _Position, end: _Position, using: str, recorded: tuple[int, str] | None) -> AuditReport:
    last, count, redacted = begin, 0, 0
    digests = redactions(using)
    events = AuditEvent.objects.using(using).filter(number__lte=end.number).order_by("number")
    for event in events.iterator(chunk_size=_EVENTS_AT_A_TIME):
        has_changed = not event.is_unchanged()
        broken = _broken(last, event, using, digests if has_changed else None) or _unknown(event, recorded)
        if broken is not None:
            return AuditReport(count, last.number, last.digest, broken, redacted)
        last, count, redacted = _Position(event.number, event.digest), count + 1, redacted + has_changed
    broken = _broken_end(last, end, recorded) or _forgotten(begin, recorded)
    return AuditReport(count, last.number, last.digest, broken, redacted)


def _broken(last: _Position, event: AuditEvent, using: str, digests: Mapping[int, str] | None) -> BrokenLink | None:
    """What is wrong with an event; `digests` are those of redacted events, None for one with its own content."""
    if digests is not None and digests.get(event.number) != digest_of(event.digest, event.content):
        return BrokenLink(Fault.CHANGED, event.number, "its content does not match its digest")
    if event.previous != last.digest:
        return _misplaced(last, event, using)
    if event.number != last.number + 1:
        return BrokenLink(Fault.REORDERED, event.number, f"it was written as number {last.number + 1}")
    return None


def _misplaced(last: _Position, event: AuditEvent, using: str) -> BrokenLink:
    """Explain why an event does not follow the previous one."""
    number, previous = event.number, event.previous
    events = AuditEvent.objects.using(using)
    belongs_after = events.filter(digest=previous).values_list("number", flat=True).first()
    if belongs_after is None and previous:
        return BrokenLink(Fault.MISSING, number, f"events between it and event {last.number} were deleted")
    if belongs_after is not None and belongs_after > last.number:
        return BrokenLink(Fault.REORDERED, number, f"it was written after the event that is now number {belongs_after}")
    first = (belongs_after or 0) + 1
    return BrokenLink(Fault.INSERTED, first, f"this app did not write the events from here to event {last.number}")


def _unknown(event: AuditEvent | _Position, recorded: tuple[int, str] | None) -> BrokenLink | None:
    if recorded is None or event.number != recorded[0] or event.digest == recorded[1]:
        return None
    return BrokenLink(Fault.CHANGED, event.number, "its digest differs from the known one")


def _forgotten(begin: _Position, recorded: tuple[int, str] | None) -> BrokenLink | None:
    """Compare the last pruned event; an earlier one cannot be compared, which is a broken link."""
    if recorded is None or recorded[0] >= begin.number:
        return _unknown(begin, recorded)
    return BrokenLink(
        Fault.PRUNED,
        recorded[0],
        f"it was pruned and cannot be compared: record the number and digest of event {begin.number} or a later one",
    )


def _broken_end(last: _Position, end: _Position, recorded: tuple[int, str] | None) -> BrokenLink | None:
    if last.number < end.number or (recorded is not None and last.number < recorded[0]):
        return BrokenLink(Fault.MISSING, last.number + 1, "the events from this one to the last were deleted")
    if last != end:
        return BrokenLink(Fault.CHANGED, last.number, "it is not the last event that was written")
    return None


def sign(*, using: str | None = None) -> None:
    """Sign the head of the log again, after SECRET_KEY was replaced without a fallback or the head was lost.

    The log is trusted afterwards: first compare it with a number and digest that were recorded elsewhere.
    """
    using = using or router.db_for_write(AuditEvent)
    with transaction.atomic(using=using):
        AuditHead.locked(using).sign(using)


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """An object that differs from its last event; `told` is None without an event, and `current` after a deletion."""

    object_type: str
    object_id: str
    told: Snapshot | None
    current: Snapshot | None

    def __str__(self) -> str:
        done = "created" if self.told is None else "deleted" if self.current is None else "changed"
        return f"{self.object_type} {self.object_id} was {done} without an event"


def unrecorded(*, using: str | None = None) -> Iterator[Unrecorded]:
    """Yield each object that was changed, created or deleted outside this app, for example with SQL.

    Keeps the keys of all objects and a few hundred objects in memory.
    Objects that have only pruned events, or whose last event is redacted, and references to renamed objects, are not
    compared.
    """
    using = using or router.db_for_write(AuditEvent)
    events = AuditEvent.objects.using(using).filter(object_type__in=MODELS).order_by("number")
    last: dict[str, dict[str, int]] = {name: {} for name in MODELS}
    for kind, key, number in events.values_list("object_type", "object_id", "number").iterator():
        last[kind][key] = number
    for kind, numbers in last.items():
        for batch in batches(numbers.values()):
            yield from _differing(kind, events.filter(number__in=batch), using)
    if not AuditHead._default_manager.using(using).filter(pruned_number__gt=0).exists():
        for kind, numbers in last.items():
            yield from _without_event(kind, {*numbers}, using)


def _differing(kind: str, events: Any, using: str) -> Iterator[Unrecorded]:
    written = {MODELS[kind]._meta.pk.to_python(event.object_id): event for event in events}
    told = {key: event.after for key, event in written.items()}
    current = snapshots(MODELS[kind], told, using)
    for key, state in told.items():
        stands = current[key].state if key in current else None
        if not (_is_so(kind, state, stands, using) or (stands is not None and not written[key].is_unchanged())):
            yield Unrecorded(kind, str(key), state, stands)


def _is_so(kind: str, told: Snapshot | None, current: Snapshot | None, using: str) -> bool:
    if told is None or current is None:
        return told is current
    wrong = [name for name, value in told.items() if name not in current or current[name] != value]
    return all(_was_renamed(kind, name, told[name], using) for name in wrong)


def _was_renamed(kind: str, field: str, told: Any, using: str) -> bool:
    """Whether a field refers to an object that has been renamed since."""
    fields: dict[str, Any] = {field.name: field for field in MODELS[kind]._meta.concrete_fields}
    if field not in fields or not fields[field].is_relation or told is None:
        return False
    related = fields[field].related_model
    renamed = AuditEvent.objects.using(using).filter(
        object_type=related._meta.model_name, verb="update", **{f"before__{related.named_by}": told}
    )
    return any((event.after or {}).get(related.named_by) != told for event in renamed.iterator())


def _without_event(kind: str, names: set[str], using: str) -> Iterator[Unrecorded]:
    model = MODELS[kind]
    keys = model._base_manager.using(using).values_list("pk", flat=True).iterator()
    for batch in batches([key for key in keys if str(key) not in names]):
        for key, taken in snapshots(model, batch, using).items():
            yield Unrecorded(kind, str(key), None, taken.state)


def prune(
    before: datetime,
    *,
    archive: Callable[[Iterable[AuditEvent]], object] | None = None,
    actor: str = "",
    source: str = "code",
    reason: str = "",
    batch: int = 10_000,
    using: str | None = None,
) -> int:
    """Delete the oldest events, up to the first that is not older than `before`; return how many were deleted.

    At most `batch` events are deleted, in one transaction with an event that records it: call it until it returns 0.
    The head keeps the number and digest of the last deleted event, so that `verify` can continue from there.
    `archive` receives the events in order before they are deleted; if it raises, nothing is deleted.
    Raises InvalidRequest for a time in the future, because the event of the pruning would be older than `before`.
    """
    if batch < 1:
        raise InvalidRequest(f"batch must be 1 or more, not {batch}")
    if before > timezone.now():
        raise InvalidRequest(f"before must not be in the future, not {before}")
    using = using or router.db_for_write(AuditEvent)
    with acting(actor=actor, source=source, reason=reason, using=using) as changes:
        events = AuditEvent.objects.using(using).order_by("number")
        kept = events.filter(when__gte=before).values_list("number", flat=True).first()
        old = events if kept is None else events.filter(number__lt=kept)
        oldest = list(old.values_list("number", "digest")[:batch])
        if not oldest:
            return 0
        number, digest = oldest[-1]
        pruned: QuerySet[Any] = events.filter(number__lte=number)
        if archive is not None:
            archive(pruned.iterator())
        # The event comes first: the triggers let the head forget events only after it.
        changes.record_pruning({"count": len(oldest), "number": number, "digest": digest})
        AuditHead.locked(using).advance(using, pruned_number=number, pruned_digest=digest)
        count: int = pruned._raw_delete(using)
        return count
