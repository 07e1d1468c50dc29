"""Writing what is stored as a limits file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import router

from limits_app.models import Policy
from limits_app.services.limits_file.reading import DEFAULT_NAME
from limits_app.services.limits_file.shape import LIMITS, SECTIONS, Entry, Section, State
from limits_app.services.limits_file.stored import stored_content

__all__ = ["export", "exported"]


def export(*, name: str = DEFAULT_NAME) -> str:
    """Give the configuration as the text of a limits file, which applied where it comes from changes nothing."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(exported(name=name), Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def exported(*, name: str = DEFAULT_NAME) -> dict[str, Any]:
    """Give the same as plain data; what goes without saying is left out."""
    found: dict[str, Any] = {"version": 1, "name": name}
    stored = stored_content(router.db_for_write(Policy))
    for section in SECTIONS.values():
        entries = [one.entry for (name, _), one in stored.items() if name == section.name]
        if entries and section.named:
            found[section.name] = {entry.key[0]: _said(section, entry.state) for entry in entries}
        elif entries:
            found[section.name] = [_identity(entry) | _said(section, entry.state) for entry in entries]
    return found


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
