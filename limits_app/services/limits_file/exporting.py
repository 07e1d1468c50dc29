"""Writing what is stored as a limits file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from limits_app.resolver import home
from limits_app.services.limits_file.owning import managed
from limits_app.services.limits_file.reading import DEFAULT_NAME
from limits_app.services.limits_file.shape import LIMITS, SECTIONS, Entry, Section, State
from limits_app.services.limits_file.stored import stored_content, stored_keys

__all__ = ["export", "exported", "left_out"]


def export(*, name: str = DEFAULT_NAME) -> str:
    """Give the configuration as the text of a limits file, which applied where it comes from changes nothing.

    It has what the file of this name manages and what no file does; `left_out` tells what files of other names have.
    """
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(exported(name=name), Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def exported(*, name: str = DEFAULT_NAME) -> dict[str, Any]:
    """Give the same as plain data; what goes without saying is left out."""
    found: dict[str, Any] = {"version": 1, "name": name}
    using = home()
    _, others = managed(name, using)
    stored = stored_content(using)
    for section in SECTIONS.values():
        of_section = (one for (place, _), one in stored.items() if place == section.name)
        entries = [one.entry for one in of_section if (section.kind, one.pk) not in others]
        if entries and section.named:
            found[section.name] = {entry.key[0]: _said(section, entry.state) for entry in entries}
        elif entries:
            found[section.name] = [_identity(entry) | _said(section, entry.state) for entry in entries]
    return found


def left_out(*, name: str = DEFAULT_NAME) -> dict[str, int]:
    """How many objects a file of this name leaves out, by the names of the files that they belong to."""
    using = home()
    _, others = managed(name, using)
    there = {(section.kind, pk) for section in SECTIONS.values() for pk in stored_keys(section, using).values()}
    counted = Counter(owner for key, owner in others.items() if key in there)
    return {owner: counted[owner] for owner in sorted(counted)}


def _identity(entry: Entry) -> dict[str, Any]:
    section = entry.section
    said = zip(section.identity, entry.key, strict=False)
    return {name: value for name, value in said if value != section.default(name)}


def _said(section: Section, state: State) -> dict[str, Any]:
    return dict(_fields(section, state))


def _fields(section: Section, state: State) -> Iterator[tuple[str, Any]]:
    for name in section.fields:
        if state[name] != section.default(name):
            yield name, state[name]
    if section.has_limits and state[LIMITS]:
        yield LIMITS, [*state[LIMITS]]
    if section.parts is not None and state[section.parts.name]:
        parts = section.parts
        yield parts.name, {name: _said(parts, part) for name, part in state[parts.name].items()}
