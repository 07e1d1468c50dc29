"""What has to fit together between the objects of a limits file and those that are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from limits_app.models import MAX_LEVELS
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.services.limits_file.document import InvalidFile, Problem
from limits_app.services.limits_file.shape import Entry, Key, references

__all__ = ["check_together", "lines", "overlapping"]

Name = tuple[str, Key]


def check_together(
    after: Mapping[Name, Entry], deleted: Mapping[Name, object], owners: Mapping[Name, str | None], *, file: str
) -> None:
    """Raise InvalidFile where things would not fit as they would be `after`: what refers to nothing or to what is
    deleted, lines of entities that are too long, policies that hold at once, and what another file owns.
    """
    problems = [*_owned(after, owners), *_dangling(after, deleted), *lines(after), *overlapping(after)]
    if problems:
        raise InvalidFile(file, problems)


def _owned(after: Mapping[Name, Entry], owners: Mapping[Name, str | None]) -> Iterator[Problem]:
    for name, owner in owners.items():
        entry = after[name]
        if owner is not None and entry.line:
            yield Problem(f"{entry.label} belongs to the file named {owner!r}: change it there", entry.line)


def _dangling(after: Mapping[Name, Entry], deleted: Mapping[Name, object]) -> Iterator[Problem]:
    for entry in after.values():
        for name in references(entry):
            section, (key, *_) = name
            if name in after:
                continue
            if name in deleted:
                yield Problem(
                    f"{key} is no longer in the file, but {entry.label} refers to it: keep it in {section}, or change "
                    "that first",
                    entry.line,
                )
            else:
                yield Problem(f"{entry.label} refers to {key}, which is not in {section}: write it there", entry.line)


def lines(after: Mapping[Name, Entry]) -> Iterator[Problem]:
    """Entities that are their own ancestors, or too many levels deep."""
    parents = {key[0]: entry.state["parent"] for (section, key), entry in after.items() if section == "entities"}
    for (section, key), entry in after.items():
        if section != "entities" or not entry.state["parent"]:
            continue
        levels, ancestor = 1, entry.state["parent"]
        while ancestor and levels <= MAX_LEVELS and ancestor != key[0]:
            levels, ancestor = levels + 1, parents.get(ancestor, "")
        if ancestor == key[0]:
            yield Problem(f"{entry.label} is its own ancestor: choose another parent", entry.line)
        elif levels > MAX_LEVELS:
            yield Problem(f"{entry.label} is more than {MAX_LEVELS} levels deep: choose a parent above", entry.line)


def overlapping(after: Mapping[Name, Entry]) -> Iterator[Problem]:
    """Policies of one scope with dates, or with hours, that hold at the same time."""
    scopes: dict[tuple[object, ...], list[Entry]] = {}
    for (section, key), entry in after.items():
        if section == "policies" and (key[2] or key[3]):
            scopes.setdefault((*key[:2], bool(key[2])), []).append(entry)
    for entries in scopes.values():
        for index, entry in enumerate(entries):
            for other in entries[:index]:
                if _overlap(entry, other):
                    yield Problem(
                        f"{entry.label} overlaps with {other.label}: of one scope, only one can hold at a time",
                        entry.line or other.line,
                    )


def _overlap(one: Entry, other: Entry) -> bool:
    if one.key[2]:
        (start, end), (begin, finish) = _span(one), _span(other)
        return (end is None or begin < end) and (finish is None or start < finish)
    return _hours(one).overlaps(_hours(other))


def _span(entry: Entry) -> tuple[datetime, datetime | None]:
    until = entry.state["valid_until"]
    return datetime.fromisoformat(entry.key[2]), datetime.fromisoformat(until) if until else None


def _hours(entry: Entry) -> WeeklyHours:
    try:
        return WeeklyHours.parse(entry.key[3], entry.state["time_zone"])
    except ValueError:
        return WeeklyHours.NEVER  # written past the validation of the model
