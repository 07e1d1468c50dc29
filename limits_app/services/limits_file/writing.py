"""Writing a limits file, piece by piece: of a large site, only some objects are in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from heapq import merge
from itertools import chain, islice
from json import dumps, loads
from operator import itemgetter
from tempfile import TemporaryFile
from typing import Any, Final

from limits_app.models import Resource, write_alias
from limits_app.models.snapshots import batches
from limits_app.services.limits_file.content import LIMITS, SECTIONS, FileState, Section, stored_pages
from limits_app.services.limits_file.planning import managed
from limits_app.services.safe_text import json_text

DEFAULT_NAME: Final = "limits"
"""The name of a file that does not say it."""

_MADE: Final = ("resources", "policies")
"""Those that were made for the limits of rules are made again where a file is applied."""
_TOGETHER: Final = 1_000
"""How many objects are written as one piece."""
_SORTED_IN_MEMORY: Final = 10_000
"""How many objects are sorted at a time; of more, the parts wait in temporary files."""

_Written = tuple[list[Any], dict[str, Any]]
"""The key of an object, and its fields; both are plain data."""


def export(*, name: str = DEFAULT_NAME) -> Iterator[str]:
    """Give the configuration as the text of a limits file, which applied where it comes from changes nothing.

    It has what the file of this name manages and what no file does; `left_out` counts what files of other names have.
    Fields with their defaults are left out. Needs the extra `yaml`; ImportError without it.
    """
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    def text(data: Mapping[str, Any]) -> str:
        return str(yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))

    yield text({"version": 1, "name": name})
    for section, objects in _objects(name):
        head = f"{section.name}:\n"
        yield head
        while together := [*islice(objects, _TOGETHER)]:
            pairs = {key[0]: fields for key, fields in together}
            yield text({section.name: pairs if section.named else [fields for _, fields in together]}).removeprefix(
                head
            )


def export_json(*, name: str = DEFAULT_NAME) -> Iterator[str]:
    """Give the same in JSON."""
    yield f'{{\n  "version": 1,\n  "name": {json_text(name)}'
    for section, objects in _objects(name):
        before, after = "{}" if section.named else "[]"
        yield f',\n  "{section.name}": {before}'
        for index, (key, fields) in enumerate(objects):
            label = f"{json_text(key[0])}: " if section.named else ""
            yield f"{',' if index else ''}\n    {label}" + json_text(fields).replace("\n", "\n    ")
        yield f"\n  {after}"
    yield "\n}"


def left_out(*, name: str = DEFAULT_NAME) -> dict[str, int]:
    """How many objects a file of this name leaves out, by the names of the files that they belong to."""
    using = write_alias()
    _, others = managed(name, using)
    counted = Counter[str]()
    for section in SECTIONS.values():
        rows = section.model._base_manager.using(using).order_by()
        for batch in batches([pk for kind, pk in others if kind == section.kind]):
            existing = rows.filter(pk__in=batch).values_list("pk", flat=True)
            counted.update(others[section.kind, pk] for pk in existing)
    return {owner: counted[owner] for owner in sorted(counted)}


def _objects(name: str) -> Iterator[tuple[Section, Iterator[_Written]]]:
    """The sections of a file that have objects, with these in order: by their keys, whatever the database sorts by."""
    using = write_alias()
    _, others = managed(name, using)
    made = set(Resource.objects.using(using).filter(made_for_rule=True).values_list("name", flat=True))

    def written(section: Section) -> Iterator[_Written]:
        for entry in stored_pages(section, using):
            identity = dict(zip(section.identity, entry.key, strict=False))
            values = {field: value for field, value in identity.items() if value != section.default(field)}
            is_made = section.name in _MADE and values.keys() <= {"name", "resource"} and entry.key[0] in made
            if not is_made and (section.kind, entry.pk) not in others:
                yield [*entry.key], ({} if section.named else values) | dict(_fields(section, entry.state))

    for section in SECTIONS.values():
        rows = written(section) if section.counted else _by_key(written(section))
        for first in rows:
            yield section, chain([first], rows)


def _by_key(objects: Iterable[_Written]) -> Iterator[_Written]:
    """Sort objects by their keys."""
    rest, parts = iter(objects), list[Iterator[_Written]]()
    with ExitStack() as files:
        while part := sorted(islice(rest, _SORTED_IN_MEMORY), key=itemgetter(0)):
            if not parts and len(part) < _SORTED_IN_MEMORY:
                yield from part
                return
            file = files.enter_context(TemporaryFile("w+", encoding="ascii"))
            file.writelines(f"{dumps(item)}\n" for item in part)
            file.seek(0)
            parts.append(map(loads, file))
            part.clear()  # before the next one is read
        yield from merge(*parts, key=itemgetter(0))


def _fields(section: Section, state: FileState) -> Iterator[tuple[str, Any]]:
    for name in section.fields:
        if state[name] != section.default(name):
            yield name, state[name]
    if section.has_limits and state[LIMITS]:
        yield LIMITS, [*state[LIMITS]]
    if section.parts is not None and (members := state[section.parts.name]):
        yield section.parts.name, {name: dict(_fields(section.parts, member)) for name, member in members.items()}
