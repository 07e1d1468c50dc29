"""Applying a limits file: in one transaction that is audited, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, models

from limits_app import audit
from limits_app.core.notation import limit_text
from limits_app.models import Entity, Limit, Manifest, Policy, PoolMember
from limits_app.models.fields import in_site_time
from limits_app.models.snapshots import batches
from limits_app.resolver import home
from limits_app.services.limits_file.checking import noted
from limits_app.services.limits_file.document import InvalidFile, Problem
from limits_app.services.limits_file.planning import Change, Plan, Step, plan_of
from limits_app.services.limits_file.reading import Content
from limits_app.services.limits_file.shape import LIMITS, MEMBERS, SECTIONS, Entry, Key, Section, State
from limits_app.services.limits_file.stored import stored_keys

__all__ = ["apply", "plan"]

_BATCH: Final = 500
_DELETED_FIRST: Final = ("endpoints", "policies")
"""Nothing refers to them, and what comes may take their place."""


def plan(content: Content, *, file: str = "limits.yaml") -> Plan:
    """Say what applying a limits file would do now, and change nothing.

    Raises InvalidFile where the file does not go together with what is stored.
    """
    return plan_of(content, using=home(), file=file)


def apply(
    content: Content,
    *,
    file: str = "limits.yaml",
    actor: str = "",
    reason: str = "",
    source: str = "apply",
    expected: Plan | None = None,
) -> Plan:
    """Make the database say what a limits file says, and give what was done.

    All of it is one transaction: it counts as a whole once it is committed, and interrupted it leaves nothing.
    What the same file, by its name, made or took over earlier and has no longer is deleted, and nothing else is.
    With `expected`, a plan that somebody has looked at, nothing else is done than that.
    Raises InvalidFile as `plan` does, and where the plan is another one by now; then nothing has changed.
    """
    using = home()
    with audit.acting(actor=actor, source=source, reason=reason, using=using) as unit:
        planned = plan_of(content, using=using, file=file)
        if expected is not None and planned.steps != expected.steps:
            raise InvalidFile(file, [Problem("the site was changed in between: look at the plan again")])
        try:
            _Writer(planned, unit, using).write()
        except IntegrityError as error:
            raise InvalidFile(file, [Problem(f"the database refuses what the file says: {error}")]) from error
    return planned


class _Writer:
    """Carries out a plan inside a unit of change."""

    def __init__(self, planned: Plan, unit: audit.Unit, using: str) -> None:
        self._plan = planned
        self._unit = unit
        self._using = using
        self._keys: dict[str, dict[Key, Any]] = {}

    def write(self) -> None:
        """Delete what is in nobody's way first, write section by section, and delete the rest, users before used."""
        for name in _DELETED_FIRST:
            self._delete(SECTIONS[name])
        for section in SECTIONS.values():
            self._change(section)
            self._create(section)
        for section in reversed([*SECTIONS.values()]):
            if section.name not in _DELETED_FIRST:
                self._delete(section)
        self._remember()

    def _rows(self, model: Any) -> Any:
        return model._base_manager.using(self._using)

    def _delete(self, section: Section) -> None:
        keys = [step.stored.pk for step in self._plan.of(Change.DELETE, section.name) if step.stored]
        for batch in batches(keys):
            rows = self._rows(section.model).filter(pk__in=batch)
            if section.model is Entity:  # parents go with their children
                rows.update(parent=None)
            rows.delete()

    def _change(self, section: Section) -> None:
        steps = self._plan.of(Change.UPDATE, section.name)
        for batch in batches(steps):
            found = {step.stored.pk: step for step in batch if step.stored}
            self._unit.touch(self._rows(section.model).filter(pk__in=found))
            rows = self._rows(section.model).in_bulk([*found])
            for key, step in found.items():
                self._save(rows[key], step)
            if section.has_limits:
                self._write_limits("policy", {key: step.entry for key, step in found.items()})
            for key, step in found.items() if section.parts else ():
                self._write_members(key, step.entry.state[MEMBERS.name])

    def _save(self, row: Any, step: Step) -> None:
        """Write the fields that differ."""
        section, differing = step.entry.section, {name for name, *_ in step.differences()}
        fields = [name for name in section.fields if name in differing]
        for name in fields:
            setattr(row, name, self._value(section, name, step.entry.state[name]))
        if fields:
            row.save(using=self._using)

    def _create(self, section: Section) -> None:
        steps = self._plan.of(Change.CREATE, section.name)
        if not steps:
            return
        for generation in _generations(steps) if section.model is Entity else [steps]:
            self._rows(section.model).bulk_create([self._row(step.entry) for step in generation], batch_size=_BATCH)
            self._keys.pop(section.name, None)
        created = {self._pk(section, step.entry.key): step.entry for step in steps}
        if section.has_limits:
            self._write_limits("policy", created)
        for key, entry in created.items() if section.parts else ():
            self._write_members(key, entry.state[MEMBERS.name])

    def _write_limits(self, owner: str, entries: Mapping[Any, Entry]) -> None:
        """Make the limits of objects, by primary key, those of their entries; those that stay are not touched."""
        there: dict[Any, dict[str, Any]] = {}
        for batch in batches(entries):
            for row in self._rows(Limit).filter(**{f"{owner}__in": batch}):
                text = limit_text(row.definition(), shared=row.shared)
                there.setdefault(getattr(row, f"{owner}_id"), {})[text] = row.pk
        gone = [
            pk
            for key, entry in entries.items()
            for text, pk in there.get(key, {}).items()
            if text not in entry.state[LIMITS]
        ]
        for batch in batches(gone):
            self._rows(Limit).filter(pk__in=batch).delete()
        new = [
            _limit(owner, key, text)
            for key, entry in entries.items()
            for text in entry.state[LIMITS]
            if text not in there.get(key, {})
        ]
        self._rows(Limit).bulk_create(new, batch_size=_BATCH)

    def _write_members(self, pool: Any, members: Mapping[str, State]) -> None:
        rows = self._rows(PoolMember).filter(pool=pool)
        rows.exclude(name__in=[*members]).delete()
        there = {row.name: row for row in rows}
        written: dict[Any, Entry] = {}
        for name, state in members.items():
            row = there.get(name) or PoolMember(pool_id=pool, name=name)
            for field in MEMBERS.fields:
                setattr(row, field, state[field])
            row.save(using=self._using)
            written[row.pk] = Entry(MEMBERS, (name,), state)
        self._write_limits("member", written)

    def _row(self, entry: Entry) -> Any:
        section = entry.section
        said = dict(zip(section.identity, entry.key, strict=False)) | dict(entry.state)
        names = (*section.identity, *section.fields)
        return section.model(**{name: self._value(section, name, said[name]) for name in names})

    def _value(self, section: Section, name: str, value: Any) -> Any:
        """Plain data as the field has it."""
        field = section.field(name)
        if isinstance(field, models.DateTimeField):
            return in_site_time(datetime.fromisoformat(value)) if value else None
        if not field.is_relation:
            return value
        if not value:
            return None
        related = next(one for one in SECTIONS.values() if one.model is field.related_model)
        model: Any = related.model
        return model(pk=self._pk(related, (value,)))

    def _pk(self, section: Section, key: Key) -> Any:
        """The primary key of an object that is there by now."""
        if section.name not in self._keys:
            self._keys[section.name] = stored_keys(section, self._using)
        return self._keys[section.name][key]

    def _remember(self) -> None:
        """Note what the file manages from now on."""
        managed = {kind: [*keys] for kind, keys in self._plan.adopted.items()}
        for step in self._plan.of(Change.CREATE):
            section = step.entry.section
            managed.setdefault(section.kind, []).append(self._pk(section, step.entry.key))
        manifests = Manifest._default_manager.using(self._using)
        found = manifests.filter(pk=self._plan.name).first()
        if found is None or found.objects_of != managed:
            manifests.update_or_create(name=self._plan.name, defaults={"objects_of": managed})


def _limit(owner: str, key: Any, text: str) -> Limit:
    limit, shared = noted(text)
    model = Policy if owner == "policy" else PoolMember
    return Limit.from_definition(model(pk=key), limit, shared=shared)


def _generations(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Entities to be made, parents before their children."""
    waiting = {step.entry.key[0]: step for step in steps}
    while waiting:
        ready = [step for step in waiting.values() if step.entry.state["parent"] not in waiting]
        yield ready
        for step in ready:
            del waiting[step.entry.key[0]]
