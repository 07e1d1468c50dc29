"""Verifying the log: the chain of digests, and objects that were changed without an event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from django.db import router, transaction

from limits_app.audit.reverting import MODELS
from limits_app.models import AuditEvent, AuditHead, Verb
from limits_app.models.audit_log import CONTENT, digest_of
from limits_app.models.snapshots import Snapshot, batches, snapshots

__all__ = ["BrokenLink", "Fault", "Report", "Unrecorded", "sign", "unrecorded", "verify"]

_CHUNK: Final = 5000


class Fault(StrEnum):
    """How the log was changed."""

    CHANGED = "changed"
    MISSING = "missing"
    REORDERED = "reordered"
    INSERTED = "inserted"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """The first place at which the log differs from what the app wrote.

    `number` is that of the event that was changed or inserted, or that follows the missing ones.
    """

    fault: Fault
    number: int
    detail: str

    def __str__(self) -> str:
        return f"event {self.number}: {self.fault}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result: how many events are in order, up to which number and digest, and where the chain broke, if it did.

    Number and digest can be kept elsewhere and passed as `known` later.
    """

    events: int
    number: int
    digest: str
    broken: BrokenLink | None = None

    @property
    def ok(self) -> bool:
        """Whether every event is there, in its place, as it was written."""
        return self.broken is None

    def __str__(self) -> str:
        return f"{self.events} events in order" + ("" if self.broken is None else f", then {self.broken}")


@dataclass(frozen=True, slots=True)
class _Place:
    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class _Event:
    number: int
    previous: str
    digest: str
    content: list[Any]


def verify(*, using: str | None = None, known: tuple[int, str] | None = None) -> Report:
    """Compute every digest of the log again, in the order of the events, and report the first broken link.

    The log is read as a stream, of which a few thousand events are in memory, and read again where it was pruned
    meanwhile.
    With `known`, a number and a digest that were kept elsewhere, the event with that number must have that digest; this
    also finds a log that was rewritten from some event on, with digests that fit. An event that was pruned
    earlier than the last pruned one cannot be compared, which the report states as a broken link.
    """
    using = using or router.db_for_write(AuditEvent)
    while True:
        begun, report = _read(using, known)
        if report.ok or begun == _pruned(using):
            return report


def _pruned(using: str) -> int | None:
    """Up to which event the log was pruned."""
    return AuditHead._default_manager.using(using).values_list("pruned_number", flat=True).first()


def _read(using: str, known: tuple[int, str] | None) -> tuple[int, Report]:
    """Return where the log began, and the report."""
    with transaction.atomic(using=using):
        head = AuditHead.locked(using)  # so that no event comes while the end is looked for
        end = _Place(head.number, head.digest)
        begin = _Place(head.pruned_number, head.pruned_digest)
        beyond = AuditEvent.objects.using(using).filter(number__gt=end.number).exists()
    report = _followed(begin, end, using, known)
    if report.ok and (broken := _broken_head(head, using)) is not None:
        report = replace(report, broken=broken)
    if beyond and report.ok:
        detail = f"nothing was written by this app after event {end.number}"
        report = replace(report, broken=BrokenLink(Fault.INSERTED, end.number + 1, detail))
    return begin.number, report


def _broken_head(head: AuditHead, using: str) -> BrokenLink | None:
    """Say where the head is not what this site has written, or no event says that older ones were pruned."""
    if head.pruned_number:
        prunings = AuditEvent.objects.using(using).filter(verb=Verb.PRUNE, object_type=AuditEvent._meta.model_name)
        after = prunings.order_by("-number").values_list("after", flat=True).first() or {}
        if (after.get("number"), after.get("digest")) != (head.pruned_number, head.pruned_digest):
            return BrokenLink(Fault.PRUNED, head.pruned_number, "no event says that the events up to here were pruned")
    if not head.is_signed:
        detail = (
            "the head of the log has no valid signature: it was changed, lost, or signed with another SECRET_KEY. "
            "Compare number and digest with those that you kept, then run `limits audit sign`"
        )
        return BrokenLink(Fault.CHANGED, head.number, detail)
    return None


def _followed(begin: _Place, end: _Place, using: str, known: tuple[int, str] | None) -> Report:
    last, count = begin, 0
    for event in _events(using, end.number):
        broken = _broken(last, event, using) or _unknown(event, known)
        if broken is not None:
            return Report(count, last.number, last.digest, broken)
        last, count = _Place(event.number, event.digest), count + 1
    return Report(count, last.number, last.digest, _broken_end(last, end, known) or _forgotten(begin, known))


def _events(using: str, last: int) -> Iterator[_Event]:
    rows = AuditEvent.objects.using(using).filter(number__lte=last).order_by("number")
    columns = rows.values_list("number", "previous", "digest", *CONTENT)
    for number, previous, digest, *content in columns.iterator(chunk_size=_CHUNK):
        yield _Event(number, previous, digest, content)


def _broken(last: _Place, event: _Event, using: str) -> BrokenLink | None:
    if digest_of(event.previous, event.content) != event.digest:
        return BrokenLink(Fault.CHANGED, event.number, "its content is not what its digest was taken of")
    if event.previous != last.digest:
        return _misplaced(last, event, using)
    if event.number != last.number + 1:
        return BrokenLink(Fault.REORDERED, event.number, f"it was written as number {last.number + 1}")
    return None


def _misplaced(last: _Place, event: _Event, using: str) -> BrokenLink:
    """Say why an event does not follow the one before it, by where the one is that it does follow."""
    number, previous = event.number, event.previous
    events = AuditEvent.objects.using(using)
    belongs_after = events.filter(digest=previous).values_list("number", flat=True).first()
    if belongs_after is None and previous:
        return BrokenLink(Fault.MISSING, number, f"what was written between it and event {last.number} is gone")
    if belongs_after is not None and belongs_after > last.number:
        return BrokenLink(Fault.REORDERED, number, f"it was written after what is now event {belongs_after}")
    first = (belongs_after or 0) + 1
    return BrokenLink(Fault.INSERTED, first, f"from here to event {last.number} nothing was written by this app")


def _unknown(event: _Event | _Place, known: tuple[int, str] | None) -> BrokenLink | None:
    if known is None or event.number != known[0] or event.digest == known[1]:
        return None
    return BrokenLink(Fault.CHANGED, event.number, "it has another digest than the one that is known")


def _forgotten(begin: _Place, known: tuple[int, str] | None) -> BrokenLink | None:
    """Compare the last event that was pruned, whose digest is remembered, and say so where none is."""
    if known is None or known[0] >= begin.number:
        return _unknown(begin, known)
    return BrokenLink(
        Fault.PRUNED,
        known[0],
        f"nothing of it is left to compare: keep number and digest of event {begin.number} or a later one",
    )


def _broken_end(last: _Place, end: _Place, known: tuple[int, str] | None) -> BrokenLink | None:
    if last.number < end.number or (known is not None and last.number < known[0]):
        return BrokenLink(Fault.MISSING, last.number + 1, "the events from this one to the last are gone")
    if last != end:
        return BrokenLink(Fault.CHANGED, last.number, "it is not the event that was written last")
    return None


def sign(*, using: str | None = None) -> None:
    """Sign the head of the log again, after SECRET_KEY was replaced without a fallback or the head was lost.

    It then counts as right: compare the log with a number and digest that were kept elsewhere first.
    """
    using = using or router.db_for_write(AuditEvent)
    with transaction.atomic(using=using):
        AuditHead.locked(using).sign(using)


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """An object that differs from its last event; `told` is None without an event, `found` if it was deleted."""

    object_type: str
    object_id: str
    told: Snapshot | None
    found: Snapshot | None

    def __str__(self) -> str:
        done = "made" if self.told is None else "deleted" if self.found is None else "changed"
        return f"{self.object_type} {self.object_id} was {done} without an event"


def unrecorded(*, using: str | None = None) -> Iterator[Unrecorded]:
    """Give each object that was changed, made or deleted by another way than this app's, such as by SQL.

    The keys of all objects are in memory, and some hundred of the objects themselves.
    Objects that have only pruned events are not compared; related objects that were renamed are not compared.
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
    told = {MODELS[kind]._meta.pk.to_python(key): after for key, after in events.values_list("object_id", "after")}
    found = snapshots(MODELS[kind], told, using)
    for key, state in told.items():
        stands = found[key].state if key in found else None
        if not _is_so(kind, state, stands, using):
            yield Unrecorded(kind, str(key), state, stands)


def _is_so(kind: str, told: Snapshot | None, found: Snapshot | None, using: str) -> bool:
    if told is None or found is None:
        return told is found
    wrong = [name for name, value in told.items() if name not in found or found[name] != value]
    return all(_was_renamed(kind, name, told[name], using) for name in wrong)


def _was_renamed(kind: str, field: str, told: Any, using: str) -> bool:
    """Whether a field names an object that had this name once, and has another now."""
    fields: dict[str, Any] = {one.name: one for one in MODELS[kind]._meta.concrete_fields}
    if field not in fields or not fields[field].is_relation or told is None:
        return False
    related = fields[field].related_model
    renamed = AuditEvent.objects.using(using).filter(
        object_type=related._meta.model_name, verb="update", **{f"before__{related.named_by}": told}
    )
    return any((one.after or {}).get(related.named_by) != told for one in renamed.iterator())


def _without_event(kind: str, known: set[str], using: str) -> Iterator[Unrecorded]:
    model = MODELS[kind]
    keys = model._base_manager.using(using).values_list("pk", flat=True).iterator()
    for batch in batches([key for key in keys if str(key) not in known]):
        for key, taken in snapshots(model, batch, using).items():
            yield Unrecorded(kind, str(key), None, taken.state)
