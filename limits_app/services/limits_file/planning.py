"""Planning: what applying a limits file would create, change and delete, and what speaks against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from limits_app.services.limits_file.dropping import DroppedLimits
from limits_app.services.limits_file.owning import managed
from limits_app.services.limits_file.reading import Content
from limits_app.services.limits_file.shape import LIMITS, SECTIONS, Entry, Key, State, references
from limits_app.services.limits_file.stored import Stored, stored_content
from limits_app.services.limits_file.together import check_together

__all__ = ["Change", "Plan", "Step", "plan_of"]

Name = tuple[str, Key]
"""A section and a key in it."""


class Change(StrEnum):
    """What becomes of an object."""

    CREATE = "create"
    UPDATE = "change"
    DELETE = "delete"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Step:
    """One object: as it is stored, and as the file wants it; one of them is None where it comes or goes."""

    change: Change
    stored: Stored | None
    wanted: Entry | None

    @property
    def entry(self) -> Entry:
        """The object as it is to be, or as it was."""
        return self.wanted or self.stored.entry  # type: ignore[union-attr]  # one of them is there

    def differences(self) -> Iterator[tuple[str, Any, Any]]:
        """Each field that differs, before and after; parts and limits one by one."""
        before = _flat(self.stored.entry.state if self.stored else {})
        after = _flat(self.wanted.state if self.wanted else {})
        nothing = {} if self.change is Change.UPDATE else _flat(_unsaid(self.entry))
        for name in before | after:
            was, becomes = before.get(name, nothing.get(name)), after.get(name, nothing.get(name))
            if was != becomes:
                yield name, was, becomes


@dataclass(frozen=True, slots=True)
class Plan:
    """What a file would do: a step for each of its objects and each that it made earlier and has no longer."""

    name: str
    steps: tuple[Step, ...]
    warnings: tuple[str, ...] = ()
    adopted: Mapping[str, list[Any]] = field(default_factory=dict, hash=False)
    """Primary keys of the objects that are there already and are the file's from now on, by what they are called."""

    @property
    def drift(self) -> bool:
        """Whether the database differs from the file."""
        return any(step.change is not Change.UNCHANGED for step in self.steps)

    def of(self, change: Change, section: str | None = None) -> list[Step]:
        """The steps that do this, in one section or in all."""
        return [step for step in self.steps if step.change is change and section in (None, step.entry.section.name)]

    def counts(self) -> dict[str, int]:
        """How many objects are created, changed, deleted and unchanged."""
        counted = Counter(step.change for step in self.steps)
        return {change.value: counted[change] for change in Change}


def plan_of(content: Content, *, using: str, file: str = "limits.yaml") -> Plan:
    """Compare a file with the database; InvalidFile where the two cannot go together."""
    stored = stored_content(using)
    mine, others = managed(content.name, using)
    own = {name for name, one in stored.items() if one.pk in mine.get(_kind(name), ())}
    wanted = _with_implied(content, stored.keys() - own)
    deleted = {name: stored[name] for name in stored if name in own and name not in wanted}
    after = {name: one.entry for name, one in stored.items() if name not in deleted} | {
        name: entry for name, entry in wanted.items() if entry is not None
    }
    check_together(
        after,
        deleted,
        {name: others.get((_kind(name), stored[name].pk)) for name in wanted if name in stored},
        file=file,
    )
    steps = [_step(entry, stored.get(name)) for name, entry in wanted.items() if entry is not None]
    steps += [Step(Change.DELETE, one, None) for one in deleted.values()]
    adopted: dict[str, list[Any]] = {}
    for name, entry in wanted.items():
        if name in stored and entry is not None:
            adopted.setdefault(_kind(name), []).append(stored[name].pk)
    return Plan(content.name, tuple(steps), tuple(_warnings(steps, after)), adopted)


def _with_implied(content: Content, strange: Set[Name]) -> dict[Name, Entry | None]:
    """The file's objects, and those they refer to, about which it says nothing; None for those strange to it."""
    wanted: dict[Name, Entry | None] = {}
    for section in SECTIONS.values():  # what is referred to comes first
        wanted |= {(section.name, entry.key): entry for entry in content.of(section.name)}
    implied: dict[Name, Entry | None] = {}
    for entry in content.entries.values():
        for name in references(entry):
            if name not in wanted and name[0] != "pools":
                implied[name] = None if name in strange else _bare(name, entry)
    return implied | wanted


def _bare(name: Name, because: Entry) -> Entry:
    section = SECTIONS[name[0]]
    return Entry(section, name[1], section.defaults(), because.line)


def _step(entry: Entry, stored: Stored | None) -> Step:
    if stored is None:
        return Step(Change.CREATE, None, entry)
    return Step(Change.UNCHANGED if stored.entry.state == entry.state else Change.UPDATE, stored, entry)


def _kind(name: Name) -> str:
    return SECTIONS[name[0]].kind


def _warnings(steps: Collection[Step], after: Mapping[Name, Entry]) -> Iterator[str]:
    """What the policies that come or change drop silently."""
    dropped = DroppedLimits(entry for (section, _), entry in after.items() if section == "policies")
    for step in steps:
        if step.wanted is not None and step.change is not Change.UNCHANGED and step.wanted.section.has_limits:
            yield from map(str, dropped.of(step.wanted))


def _unsaid(entry: Entry) -> State:
    """An object that says nothing, with members that say nothing."""
    section, parts = entry.section, entry.section.parts
    return section.defaults() | (
        {parts.name: dict.fromkeys(entry.state[parts.name], parts.defaults())} if parts else {}
    )


def _flat(state: State, within: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in state.items():
        if name == LIMITS:
            pairs = (text.partition("=") for text in value)
            flat |= {f"{within}limit {key}": text for key, _, text in pairs}
        elif name == "members":
            for member, part in value.items():
                flat |= _flat(part, f"{within}member {member}: ")
        else:
            flat[within + name] = value
    return flat
