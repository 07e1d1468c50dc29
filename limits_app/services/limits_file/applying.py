"""Applying a limits file in one transaction that is audited."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from django.db import IntegrityError

from limits_app import audit
from limits_app.models import Entity, Manifest, write_alias
from limits_app.models.plan import group_names
from limits_app.models.snapshots import batches
from limits_app.services import definitions
from limits_app.services.limits_file.content import (
    GROUPS,
    SECTIONS,
    Content,
    FileEntry,
    Name,
    Section,
    stored_where,
    where_named,
)
from limits_app.services.limits_file.planning import FilePlan, PlannedChange, Step, plan_of
from limits_app.services.limits_file.reading import FileProblem, InvalidFile

ApplyProgress = Callable[[int, int], None]
_DELETED_FIRST: Final = ("endpoints", "policies")
"""Nothing refers to them, and new ones may take their place."""


def plan(content: Content, *, file: str = "limits.yaml") -> FilePlan:
    """Give what applying a limits file would do now, and change nothing.

    Raises InvalidFile if the file conflicts with the stored configuration.
    """
    return plan_of(content, using=write_alias(), file=file)


def apply(
    content: Content,
    *,
    file: str = "limits.yaml",
    actor: str = "",
    reason: str = "",
    source: str = "apply",
    expected: FilePlan | None = None,
    progress: ApplyProgress = lambda _done, _total: None,
) -> FilePlan:
    """Apply a limits file to the configuration in the database; returns the changes.

    All of it is one transaction: it counts as a whole once it is committed, and interrupted it leaves nothing.
    What the same file, by its name, made or took over earlier and no longer has is deleted, and nothing else is.
    With `expected`, a plan that was shown before, nothing else is done than that. `progress` receives the number of
    objects that were written so far, and of all that are.
    Raises InvalidFile as `plan` does, and where the plan is another one by now; then nothing has changed.
    """
    using = write_alias()
    with audit.acting(actor=actor, source=source, reason=reason, using=using) as unit:
        planned = plan_of(content, using=using, file=file)
        if expected is not None and planned.steps != expected.steps:
            raise InvalidFile(file, [FileProblem("the configuration changed after the plan was shown; run plan again")])
        try:
            _Writer(content, planned, unit, using=using, progress=progress).write()
        except IntegrityError as error:
            raise InvalidFile(file, [FileProblem(f"the database rejected the file: {error}")]) from error
    return planned


class _Writer:
    """Carries out a plan inside a unit of change."""

    def __init__(
        self, content: Content, planned: FilePlan, unit: audit.Unit, *, using: str, progress: ApplyProgress
    ) -> None:
        self._content = content
        self._plan = planned
        self._unit = unit
        self._using = using
        self._progress = progress
        self._total = sum(step.change is not PlannedChange.UNCHANGED for step in planned.steps)
        self._done = 0

    def write(self) -> None:
        """Delete what nothing refers to, write section by section, and delete the rest, users before used."""
        self._give_keys_to_groups()
        self._give_keys(self._plan.keys)
        for name in _DELETED_FIRST:
            self._delete(SECTIONS[name])
        for section in SECTIONS.values():
            if section.model is Entity:  # a new one may be the parent of one that is there
                self._create(section)
                self._change(section)
            else:
                self._change(section)
                self._create(section)
        for section in reversed([*SECTIONS.values()]):
            if section.name not in _DELETED_FIRST:
                self._delete(section)
        self._remember()

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total)

    def _rows(self, model: Any) -> Any:
        return model._base_manager.using(self._using)

    def _delete(self, section: Section) -> None:
        keys = [step.stored.pk for step in self._plan.of(PlannedChange.DELETE, section.name) if step.stored]
        for batch in batches(keys):
            rows = self._rows(section.model).filter(pk__in=batch)
            if section.model is Entity:  # parents are deleted with their children
                rows.update(parent=None)
            rows.delete()
            self._advance(len(batch))

    def _give_keys(self, keys: Mapping[Name, Any]) -> None:
        """Give the rows of the file, to which others refer, the primary keys that they have in the database."""
        for name, row in self._content.rows.items():
            if name[0] != GROUPS:
                row.pk = keys.get(name)
        for name, entry in self._content.entries.items():
            _row(entry).pk = keys.get(name)

    def _give_new_keys(self, section: Section, entries: Collection[FileEntry]) -> None:
        """Read the primary keys of new rows where the database has not returned them."""
        if any(_row(entry).pk is None for entry in entries):
            names = [entry.key for entry in entries]
            stored = [
                entry for where in where_named(section, names) for entry in stored_where(section, where, self._using)
            ]
            keys = {entry.key: entry.pk for entry in stored}
            for entry in entries:
                _row(entry).pk = keys[entry.key]

    def _give_keys_to_groups(self) -> None:
        """Give the groups of users that the file names their primary keys; the plan has found them."""
        rows = {key[0]: row for (name, key), row in self._content.rows.items() if name == GROUPS}
        for key, name in group_names().items() if rows else ():
            if name in rows:
                rows[name].pk = key

    def _change(self, section: Section) -> None:
        for batch in batches(self._plan.of(PlannedChange.UPDATE, section.name)):
            changed = {step.stored.pk: step for step in batch if step.stored}
            rows = self._rows(section.model).filter(pk__in=changed).order_by()
            differing: dict[tuple[str, ...], list[Any]] = {}
            for row in self._unit.read(rows) if section.registered.is_audited else rows:
                differing.setdefault(_take_over(row, changed[row.pk]), []).append(row)
            definitions.update_rows(differing, using=self._using)
            self._write_parts(section, [step.entry for step in batch], are_new=False)
            self._advance(len(batch))

    def _create(self, section: Section) -> None:
        entries = [step.entry for step in self._plan.of(PlannedChange.CREATE, section.name)]
        for generation in _generations(entries) if section.model is Entity else [entries]:
            for batch in batches(generation):
                self._rows(section.model).bulk_create([_row(entry) for entry in batch])
                self._give_new_keys(section, batch)
                self._write_parts(section, batch, are_new=True)
                self._advance(len(batch))

    def _write_parts(self, section: Section, entries: Iterable[FileEntry], *, are_new: bool) -> None:
        if section.registered.parts:
            parts = [entry.definition for entry in entries if entry.definition is not None]
            definitions.save_parts(
                [part for part in parts if part.parts is not None], are_new=are_new, using=self._using
            )

    def _remember(self) -> None:
        """Note what the file manages from now on."""
        managing = {kind: [*keys] for kind, keys in self._plan.adopted.items()}
        for step in self._plan.of(PlannedChange.CREATE):
            managing.setdefault(step.entry.section.kind, []).append(_row(step.entry).pk)
        manifests = Manifest._default_manager.using(self._using)
        manifest = manifests.filter(pk=self._plan.name).first()
        if manifest is None or manifest.objects_of != managing:
            manifests.update_or_create(name=self._plan.name, defaults={"objects_of": managing})


def _row(entry: FileEntry) -> Any:
    assert entry.definition is not None  # noqa: S101 - entries of files have one
    return entry.definition.row


def _take_over(row: Any, step: Step) -> tuple[str, ...]:
    """Give a stored row the values of the file that differ; returns their names."""
    differing = {name for name, *_ in step.differences()}
    fields = tuple(name for name in step.entry.section.fields if name in differing)
    for name in fields:
        setattr(row, name, getattr(_row(step.entry), name))
    return fields


def _generations(entries: Iterable[FileEntry]) -> Iterator[list[FileEntry]]:
    """Entities to be made, parents before their children."""
    waiting = {entry.key[0]: entry for entry in entries}
    while waiting:
        ready = [entry for entry in waiting.values() if entry.state["parent"] not in waiting]
        yield ready
        for entry in ready:
            del waiting[entry.key[0]]
