"""Planning: what applying a limits file would create, change and delete, and what speaks against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import combinations
from typing import Any

from limits_app.models import MAX_LEVELS, Candidate, CandidateState, Manifest, Resource
from limits_app.models.plan import group_names, groups_have_plans
from limits_app.models.policy_rules import PolicySchedule, weakened
from limits_app.models.snapshots import batches
from limits_app.services.limits_file.content import (
    LIMITS,
    SECTIONS,
    Content,
    FileEntry,
    FileState,
    Name,
    references,
)
from limits_app.services.limits_file.prices import PricesOfFile
from limits_app.services.limits_file.proposed import dropped_limits
from limits_app.services.limits_file.reading import FileProblem, InvalidFile
from limits_app.services.limits_file.stored import StoredObjects, permanent_policy


class PlannedChange(StrEnum):
    """What becomes of an object."""

    CREATE = "create"
    UPDATE = "change"
    DELETE = "delete"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Step:
    """One object: as it is stored, and as the file wants it; one of them is None where it comes or goes."""

    change: PlannedChange
    stored: FileEntry | None
    proposed: FileEntry | None

    @property
    def entry(self) -> FileEntry:
        """The object as it is to be, or as it was."""
        return self.proposed or self.stored  # type: ignore[return-value]  # one of them is there

    def differences(self) -> Iterator[tuple[str, Any, Any]]:
        """Each field that differs, before and after; parts and limits one by one."""
        before = _flat(self.stored.state if self.stored else {})
        after = _flat(self.proposed.state if self.proposed else {})
        nothing = {} if self.change is PlannedChange.UPDATE else _flat(_left_out(self.entry))
        for name in before | after:
            was, becomes = before.get(name, nothing.get(name)), after.get(name, nothing.get(name))
            if was != becomes:
                yield name, was, becomes


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What a file would do: a step for each of its objects and each that it made earlier and no longer has."""

    name: str
    steps: tuple[Step, ...]
    warnings: tuple[str, ...] = ()
    adopted: Mapping[str, list[Any]] = field(default_factory=dict, hash=False)
    """Primary keys of existing objects that the file owns from now on, by kind."""
    keys: Mapping[Name, Any] = field(default_factory=dict, hash=False)
    """Primary keys of existing objects, at least of all that the file defines or references."""

    @property
    def drift(self) -> bool:
        """Whether the database differs from the file."""
        return any(step.change is not PlannedChange.UNCHANGED for step in self.steps)

    def of(self, change: PlannedChange, section: str | None = None) -> list[Step]:
        """The steps that do this, in one section or in all."""
        return [step for step in self.steps if step.change is change and section in (None, step.entry.section.name)]

    def counts(self) -> dict[str, int]:
        """How many objects are created, changed, deleted and unchanged."""
        counted = Counter(step.change for step in self.steps)
        return {change.value: counted[change] for change in PlannedChange}


def plan_of(content: Content, *, using: str, file: str = "limits.yaml") -> FilePlan:
    """Compare a file with the database; InvalidFile where the two cannot go together."""
    objects = StoredObjects(using)
    objects.read_named(content.entries)
    objects.read_named([name for entry in content.entries.values() for name in references(entry)])
    mine, others = managed(content.name, using)
    objects.read_keys(mine)
    stored = objects.entries
    own = {name for name, entry in stored.items() if entry.pk in mine.get(SECTIONS[name[0]].kind, ())}
    prices = PricesOfFile(content.entries, stored)
    content = replace(content, entries=prices.entries)
    proposed = _with_implied(content, stored.keys() - own)
    warnings = [*prices.warnings, *_kept(proposed, stored)]
    deleted = {
        entry.name: entry
        for entry in objects.in_order()
        if entry.name in own and entry.name not in proposed and not prices.is_past(entry)
    }
    objects.read_compared(proposed, deleted.values())
    after = _after(stored, proposed, deleted)
    problems = [
        *prices.problems,
        *_owned(proposed, stored, others),
        *_dangling(after, deleted),
        *lines(after, after),
        *overlapping(after),
        *_without_group(content, using),
        *_taken(after, using),
    ]
    if problems:
        raise InvalidFile(file, problems)
    steps = [*_steps(proposed, stored), *[Step(PlannedChange.DELETE, entry, None) for entry in deleted.values()]]
    changed = [step for step in steps if step.change is not PlannedChange.UNCHANGED]
    warnings += _of_changes(changed, using)
    if policies := [step.entry for step in changed if step.proposed and step.entry.section.name == "policies"]:
        objects.read_replaced(policies)
        warnings += dropped_limits(_after(stored, proposed, deleted).values(), policies, using)
    adopted, keys = _adopted(proposed, stored), {name: entry.pk for name, entry in stored.items()}
    return FilePlan(content.name, tuple(steps), tuple(warnings), adopted, keys)


def _adopted(proposed: Mapping[Name, FileEntry | None], stored: Mapping[Name, FileEntry]) -> dict[str, list[Any]]:
    """The primary keys of stored objects that the file has, by kind."""
    adopted: dict[str, list[Any]] = {}
    for name in [name for name, entry in proposed.items() if entry is not None and name in stored]:
        adopted.setdefault(SECTIONS[name[0]].kind, []).append(stored[name].pk)
    return adopted


def _after(
    stored: Mapping[Name, FileEntry], proposed: Mapping[Name, FileEntry | None], deleted: Mapping[Name, FileEntry]
) -> dict[Name, FileEntry]:
    """The objects that are there once the file is applied, as far as they were read."""
    kept = {name: entry for name, entry in stored.items() if name not in deleted}
    return kept | {name: entry for name, entry in proposed.items() if entry is not None}


def managed(name: str, using: str) -> tuple[dict[str, set[Any]], dict[tuple[str, Any], str]]:
    """The primary keys that a file manages by kind, and those of other files, with their names."""
    mine: dict[str, set[Any]] = {}
    others: dict[tuple[str, Any], str] = {}
    for manifest in Manifest._default_manager.using(using).all():
        for kind, keys in manifest.objects_of.items():
            if manifest.name == name:
                mine[kind] = {*keys}
            else:
                others |= {(kind, key): manifest.name for key in keys}
    return mine, others


def _with_implied(content: Content, strange: Set[Name]) -> dict[Name, FileEntry | None]:
    """Objects in the file, plus objects it references without defining; None for objects owned by another file."""
    defined: dict[Name, FileEntry | None] = {}
    for section in SECTIONS.values():  # what is referred to comes first
        defined |= {entry.name: entry for entry in content.of(section.name)}
    implied: dict[Name, FileEntry | None] = {}
    for entry in content.entries.values():
        for name in references(entry):
            if name not in defined and name[0] != "pools":
                implied[name] = None if name in strange else content.implied(name, entry.line)
    return implied | defined


def _steps(proposed: Mapping[Name, FileEntry | None], stored: Mapping[Name, FileEntry]) -> Iterator[Step]:
    for name, entry in proposed.items():
        current = stored.get(name)
        if entry is not None and current is None:
            yield Step(PlannedChange.CREATE, None, entry)
        elif entry is not None and current is not None:
            yield Step(
                PlannedChange.UNCHANGED if current.state == entry.state else PlannedChange.UPDATE, current, entry
            )


def _left_out(entry: FileEntry) -> FileState:
    """An object whose fields were all left out, and those of its members."""
    section, parts = entry.section, entry.section.parts
    return section.defaults() | (
        {parts.name: dict.fromkeys(entry.state[parts.name], parts.defaults())} if parts else {}
    )


def _flat(state: FileState, within: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in state.items():
        if name == LIMITS and not isinstance(value, str):  # the limits of a rule for URLs are a text
            pairs = (text.partition("=") for text in value)
            flat |= {f"{within}limit {key}": text for key, _, text in pairs}
        elif name == "members":
            for member, part in value.items():
                flat |= _flat(part, f"{within}member {member}: ")
        else:
            flat[within + name] = value
    return flat


def _owned(
    proposed: Mapping[Name, FileEntry | None], stored: Mapping[Name, FileEntry], others: Mapping[tuple[str, Any], str]
) -> Iterator[FileProblem]:
    for name, entry in proposed.items():
        owner = others.get((SECTIONS[name[0]].kind, stored[name].pk)) if name in stored else None
        if entry is not None and entry.line and owner is not None:
            yield FileProblem(f"{entry.label} belongs to the file named {owner!r}: change it there", entry.line)


def _dangling(after: Mapping[Name, FileEntry], deleted: Mapping[Name, object]) -> Iterator[FileProblem]:
    for entry in after.values():
        for name in references(entry):
            section, (key, *_) = name
            if name in after or not (entry.definition or name in deleted):
                continue
            if name in deleted:
                yield FileProblem(
                    f"{key} is no longer in the file, but {entry.label} refers to it: keep it in {section}, or change "
                    "that first",
                    entry.line,
                )
            else:
                yield FileProblem(f"{entry.label} refers to {key}, which is not in {section}: add it there", entry.line)


def _kept(proposed: dict[Name, FileEntry | None], stored: Mapping[Name, FileEntry]) -> Iterator[str]:
    """Let objects keep the fields that a file sets for new ones only; say where they differ."""
    for name, entry in proposed.items():
        current = stored.get(name)
        if entry is None or current is None:
            continue
        kept = {
            field_name: value
            for field_name in entry.section.registered.only_new
            if (value := current.state[field_name])
        }
        for field_name, value in kept.items():
            if entry.state[field_name] not in ("", value):
                change = f"since it cannot be changed to {entry.state[field_name]}"
                yield f"{entry.label} keeps the {field_name} {value}, {change}"
        proposed[name] = replace(entry, state={**entry.state, **kept})


def _taken(after: Mapping[Name, FileEntry], using: str) -> Iterator[FileProblem]:
    """Rules whose limits would replace those of another rule, or of a resource that was not made for a rule."""
    setting = [
        (entry.state["limits_resource"], entry)
        for (section, _), entry in after.items()
        if section == "endpoints" and entry.state["limits"] and entry.state["limits_resource"]
    ]
    made: set[str] = set()
    for batch in batches({resource for resource, _ in setting}):
        rows = Resource.objects.using(using).filter(made_for_rule=True, name__in=batch)
        made.update(rows.values_list("name", flat=True))
    rules: dict[str, FileEntry] = {}
    for resource, entry in setting:
        other = rules.setdefault(resource, entry)
        policy = after.get(("policies", permanent_policy(resource)))
        if other is entry and policy and (policy.line or resource not in made):
            other = policy
        if other is not entry:
            yield FileProblem(
                f"{entry.label} cannot have limits on {resource}, because {other.label} has: write another "
                "limits_resource, or leave it out",
                entry.line or other.line,
            )


def _without_group(content: Content, using: str) -> Iterator[FileProblem]:
    """Groups of users that are not there, or that cannot have plans."""
    plan_groups = [*content.of("plan_groups")]
    names = {*group_names().values()} if plan_groups else set()
    for entry in plan_groups:
        if entry.key[0] not in names:
            yield FileProblem(f"this site has no {entry.label}: create it first, or remove it here", entry.line)
        elif not groups_have_plans(using):
            yield FileProblem(
                f"{entry.label} cannot have a plan, because users are in another database: remove it here", entry.line
            )


def lines(checked: Mapping[Name, FileEntry], after: Mapping[Name, FileEntry]) -> Iterator[FileProblem]:
    """Entities that are their own ancestors, or too many levels deep; `after` has all that are above them."""
    parents = {key[0]: entry.state["parent"] for (section, key), entry in after.items() if section == "entities"}
    for (section, key), entry in checked.items():
        if section != "entities" or not entry.state["parent"]:
            continue
        levels, ancestor = 1, entry.state["parent"]
        while ancestor and levels <= MAX_LEVELS and ancestor != key[0]:
            levels, ancestor = levels + 1, parents.get(ancestor, "")
        if ancestor == key[0]:
            yield FileProblem(f"{entry.label} is its own ancestor: choose another parent", entry.line)
        elif levels > MAX_LEVELS:
            yield FileProblem(f"{entry.label} is more than {MAX_LEVELS} levels deep: choose a parent above", entry.line)


def overlapping(after: Mapping[Name, FileEntry]) -> Iterator[FileProblem]:
    """Policies of one scope with dates, or with hours, that hold at the same time."""
    scopes: dict[tuple[object, ...], list[tuple[FileEntry, PolicySchedule]]] = {}
    for (section, key), entry in after.items():
        if section == "policies" and (key[2] or key[3]):
            scopes.setdefault((*key[:2], *key[4:]), []).append((entry, _schedule(entry)))
    for entries in scopes.values():
        for (other, others), (entry, schedule) in combinations(entries, 2):
            if schedule.overlaps(others):
                yield FileProblem(
                    f"{entry.label} overlaps with {other.label}: only one policy of a scope can apply at a time",
                    entry.line or other.line,
                )


def _schedule(policy: FileEntry) -> PolicySchedule:
    valid_from, hours = policy.key[2:4]
    until = policy.state["valid_until"]
    return PolicySchedule.of(
        datetime.fromisoformat(valid_from) if valid_from else None,
        datetime.fromisoformat(until) if until else None,
        hours,
        policy.state["time_zone"],
    )


def _of_changes(changed: Collection[Step], using: str) -> Iterator[str]:
    """Say what becomes of candidates, and which policies are enforced no longer."""
    stored = [step for step in changed if step.stored and step.entry.section.name == "policies"]
    tested: dict[Any, str] = {}
    for batch in batches([step.stored.pk for step in stored if step.stored]):
        testing = Candidate.objects.using(using).filter(state=CandidateState.TESTING, policy__in=batch)
        tested.update(testing.values_list("policy", "limits"))
    for step in stored:
        assert step.stored is not None  # noqa: S101 - those are chosen above
        if limits := tested.get(step.stored.pk):
            stays = "is deleted with it" if step.proposed is None else "stays, and is compared with the changed policy"
            yield f"{step.entry.label}: its candidate {limits} {stays}"
        if step.proposed and (why := weakened(step.stored.state, step.entry.state)):
            yield f"{step.entry.label}: {why.removesuffix('.')}"
