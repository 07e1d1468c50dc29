"""Definitions of policies, pools, resources, entities and endpoints, read from plain data and checked by the models.

Code, the admin's import, the REST API, the commands and limits files all read definitions here, so that the same
mistake has the same message everywhere. A policy is a mapping such as
`{"resource": "api", "limits": ["calls=60/min", {"kind": "rate", "key": "tpm", "capacity": 500, ...}]}`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import router
from django.db.models import Model

from limits_app.engine import Noted, parse_limit, shown
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import AnyLimit
from limits_app.models import Limit, Policy, PolicyEffect, Pool, PoolMember, registered
from limits_app.models.base import Definable, name_field
from limits_app.models.snapshots import batches
from limits_app.services import limit_fields
from limits_app.services.field_values import Find, column_value, nearest

M = TypeVar("M", bound=Model)
Path = tuple[str | int, ...]
"""Where a value is: names of fields, and places in lists, such as `("limits", 0, "burst")`."""

MOST_PARTS: Final = 100
"""How many limits a policy or a member can have, and how many members a pool."""
ROWS_OF_STATEMENT: Final = 500
"""How many rows a statement writes."""
_NO_LIMITS: Final = "Add at least one limit, or choose the effect “unlimited” or “blocked”."
_KEY_TWICE: Final = "Another limit has the key “{key}”: keys must differ."
_NAME_TWICE: Final = "Another member has the name “{key}”: names must differ."


class InvalidDefinition(InvalidLimit):
    """An invalid definition; `errors` has the messages by the path of the field."""

    def __init__(self, errors: Mapping[Path, list[str]]) -> None:
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        return "; ".join(
            f"{path_text(path)}: {message}" if path else message
            for path, messages in self.errors.items()
            for message in messages
        )


def path_text(path: Path) -> str:
    """Write a path as people do: `limits[0].burst`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


@dataclass(slots=True)
class Definition:
    """A row that was checked and is not saved yet, and its parts; None where the parts that are stored stay."""

    row: Any
    parts: list[Definition] | None = None


def find_stored(model: type[M], name: str) -> M:
    """Return the stored row of a name, from the database that is written to."""
    rows = model._default_manager.using(router.db_for_write(model))
    row = None if "\0" in name else rows.filter(**{name_field(model): name}).order_by("pk").first()
    if row is None:
        raise ValidationError(f"There is no {model._meta.verbose_name} {shown(name)}.")
    return row


def check_stored(model: type[Model], name: str, path: Path) -> None:
    """Raise InvalidDefinition, about the value at a path, where no row has a name."""
    try:
        find_stored(model, name)
    except ValidationError as error:
        raise InvalidDefinition({path: error.messages}) from error


def check(row: Definable, *, validate_unique: bool = True) -> None:
    """Have the model check a row that is not read from a definition; raises InvalidDefinition."""
    try:
        row.full_clean(validate_unique=validate_unique)
    except ValidationError as error:
        raise InvalidDefinition({(name,): texts for name, texts in error.message_dict.items()}) from error


def find_or_new(model: type[M], name: str) -> M:
    """Return the stored row of a name, or else a new one that is checked and saved together with the definition."""
    try:
        return find_stored(model, name)
    except ValidationError:
        return model(**{name_field(model): name})


def find_known(row: Definable, find: Find) -> Find:
    """Return a `find` that knows the rows that a row which was just read refers to."""
    named_rows = {(type(named), str(named)): named for _, named in _named_rows(row)}
    return lambda model, name: named_rows.get((model, name)) or find(model, name)


def read(
    row: Definable, data: object, *, partial: bool = False, find: Find = find_stored, alone: bool = False
) -> Definition:
    """Read the definition of a new or stored row from plain data, and check it; nothing is saved.

    Fields that `data` leaves out have their defaults, or with `partial` stay as they are, and so do the parts.
    `find` returns the rows that the definition names. `alone` leaves out the checks that need other rows.
    Raises InvalidDefinition with everything that is wrong.
    """
    reader = _Reader(find, alone=alone)
    definition = reader.read(row, data, (), partial=partial)
    if reader.errors:
        raise InvalidDefinition(reader.errors)
    return definition


def read_limits(data: object) -> list[Limit]:
    """Read limits whose policy is not known yet, each a text, a mapping of fields or a limit."""
    reader = _Reader(find_stored, alone=True)
    limits = reader.parts(Policy(), data, ())
    if reader.errors:
        raise InvalidDefinition({("limits", *path): messages for path, messages in reader.errors.items()})
    return [limit.row for limit in limits]


def save(definition: Definition) -> None:
    """Save a row that was read, new rows that it names, and its parts in place of those that are stored."""
    row, is_new = definition.row, definition.row.pk is None
    for name, named in _named_rows(row):
        if named.pk is None:
            named.save()
            setattr(row, name, named)  # which takes the new primary key
    row.save()
    if definition.parts is not None:
        save_parts([definition], are_new=is_new, using=row._state.db)
        getattr(row, registered(type(row)).parts).add(bulk=False)  # forgets the parts that were read with the row


def save_parts(definitions: Sequence[Definition], *, are_new: bool, using: str) -> None:
    """Make the parts of saved rows of one model those of their definitions, with a few queries for all of them.

    Parts that are stored as they are defined are left alone. Rows that `are_new` have no parts yet.
    """
    if not definitions:
        return
    entry = registered(type(definitions[0].row))
    kind: Any = entry.model._meta.get_field(entry.parts).related_model
    rows = kind._base_manager.using(using)
    stored: dict[Any, dict[tuple[Any, ...], Any]] = {definition.row.pk: {} for definition in definitions}
    # Read here, since the rows may have been read with their parts before others changed them.
    for row in () if are_new else _rows_of(rows, entry.owner, stored):
        stored[getattr(row, f"{entry.owner}_id")][_identity(row)] = row
    new: list[Any] = []
    changed: dict[tuple[str, ...], list[Any]] = {}
    for definition in definitions:
        for part in definition.parts or ():
            row = stored[definition.row.pk].pop(_identity(part.row), None)
            if row is None:
                setattr(part.row, entry.owner, definition.row)
                part.row.pk = None
                new.append(part.row)
                continue
            changed.setdefault(_take_over(row, part.row), []).append(row)
            part.row = row
    for batch in batches([row.pk for gone in stored.values() for row in gone.values()]):
        rows.filter(pk__in=batch).delete()
    update_rows(changed, using=using)
    _create_parts(rows, new, using=using)
    nested = [part for definition in definitions for part in definition.parts or () if part.parts is not None]
    save_parts(nested, are_new=are_new, using=using)


def _rows_of(rows: Any, owner: str, keys: Collection[Any]) -> Iterator[Any]:
    for batch in batches(keys):
        yield from rows.filter(**{f"{owner}__in": batch}).order_by()


def _create_parts(rows: Any, new: Sequence[Any], *, using: str) -> None:
    """Insert rows; those that have parts need their primary keys, which not every database returns for several."""
    if len(new) > 1 and not registered(rows.model).parts:
        rows.bulk_create(new, batch_size=ROWS_OF_STATEMENT)
        return
    for row in new:
        row.save(using=using)


def update_rows(changed: Mapping[tuple[str, ...], Sequence[Any]], *, using: str) -> None:
    """Write the fields of stored rows that differ, by these fields, with the time of the change where rows have one."""
    for fields, rows in changed.items():
        if fields and len(rows) == 1:
            rows[0].save(using=using)
        elif fields:
            automatic = [field for field in rows[0]._meta.concrete_fields if getattr(field, "auto_now", False)]
            for row in rows:
                for field in automatic:
                    field.pre_save(row, False)
            names = [*fields, *[field.name for field in automatic]]
            type(rows[0])._base_manager.using(using).bulk_update(rows, names, batch_size=ROWS_OF_STATEMENT)


def _take_over(row: Definable, other: Definable) -> tuple[str, ...]:
    """Give a row the values of another one; returns the names of the fields that differ."""
    fields = registered(type(row)).fields
    differing = tuple([name for name in fields if getattr(row, name) != getattr(other, name)])
    for name in differing:
        setattr(row, name, getattr(other, name))
    return differing


def _identity(part: Definable) -> tuple[Any, ...]:
    return tuple(getattr(part, name) for name in registered(type(part)).identity)


class _Reader:
    """Reads one definition with its nested objects, and collects the errors in `errors`."""

    def __init__(self, find: Find, *, alone: bool) -> None:
        self.errors: dict[Path, list[str]] = {}
        self._find = find
        self._alone = alone

    def read(self, row: Definable, data: object, path: Path, *, partial: bool = False) -> Definition:
        """Fill a row and its parts from a mapping, and check them."""
        fields, part_name = registered(type(row)).fields, registered(type(row)).parts
        if not isinstance(data, Mapping):
            self._wrong(path, f"Must be an object with fields such as “{fields[0]}”, not {shown(data)}.")
            return Definition(row)
        self._check_names(data, [*fields, *filter(None, [part_name])], path)
        columns = {name: row._meta.get_field(name) for name in fields}
        values, wrong = self._values(columns, data, path, partial=partial)
        before = _identifying(row)
        for name, value in values.items():
            setattr(row, name, value)
        self._check(row, path, wrong, is_moved=row.pk is None or _identifying(row) != before)
        inner, parts = (*path, part_name), None
        if part_name and (part_name in data or not partial):
            parts = self.parts(row, data.get(part_name, ()), inner)
        if isinstance(row, Policy):
            if parts is None:  # the stored limits have to go with the new fields
                parts = self.parts(row, [*row.limits.all()], inner)
            if not (parts or wrong or row.effect != PolicyEffect.LIMITS or self._has_errors(inner)):
                self._wrong(inner, _NO_LIMITS)
        return Definition(row, parts)

    def parts(self, owner: Any, data: object, path: Path) -> list[Definition]:
        """Read the limits of a policy or member, or the members of a pool; no two have one key or name."""
        if not isinstance(data, list | tuple):
            self._wrong(path, f"Write a list, not {shown(data)}.")
            return []
        if len(data) > MOST_PARTS:
            self._wrong(path, f"There can be at most {MOST_PARTS}, not {len(data)}.")
            return []
        stored = {member.name: member for member in owner.members.all()} if isinstance(owner, Pool) and owner.pk else {}
        parts: dict[str, Definition] = {}
        for index, definition in enumerate(data):
            where = (*path, index)
            if isinstance(owner, Pool):
                part = self._member(owner, stored, definition, where)
            else:
                part = self._limit(owner, definition, where)
            key = part.row.name if isinstance(owner, Pool) else part.row.key
            if key in parts and not self._has_errors(where):
                self._wrong(where, (_NAME_TWICE if isinstance(owner, Pool) else _KEY_TWICE).format(key=key))
            parts[key] = part
        return [*parts.values()]

    def _member(self, pool: Pool, stored: Mapping[str, PoolMember], data: object, path: Path) -> Definition:
        name = data.get("name") if isinstance(data, Mapping) else None
        row = stored.get(name) if isinstance(name, str) else None
        return self.read(row or PoolMember(pool=pool), data, path)

    def _limit(self, owner: Policy | PoolMember, data: object, path: Path) -> Definition:
        """A limit from a text, a mapping of fields, a value of the engine, or a row."""
        limit = Limit(**{registered(type(owner)).owner: owner})
        with self._noted(path):
            try:
                noted = self._joined(data, path) if isinstance(data, Mapping) else _noted_limit(data)
                if noted is not None:
                    limit = Limit.from_definition(owner, noted.limit, shared=noted.shared)
                    limit.clean_alone()
            except InvalidLimit as error:
                self._wrong(path, str(error))
        return Definition(limit)

    def _joined(self, data: Mapping[Any, Any], path: Path) -> Noted | None:
        """The limit of a mapping of fields; None if one of them is wrong."""
        self._check_names(data, limit_fields.FIELDS, path)
        values, wrong = self._values(limit_fields.FIELDS, data, path)
        return limit_fields.join({name: value for name, value in values.items() if name not in wrong})

    def _check_names(self, data: Mapping[Any, Any], names: Collection[str], path: Path) -> None:
        for name in [name for name in data if name not in names]:
            self._wrong((*path, str(name)), f"Unknown field: {nearest(str(name), names)}")

    def _values(
        self, columns: Mapping[str, Any], data: Mapping[Any, Any], path: Path, *, partial: bool = False
    ) -> tuple[dict[str, Any], set[str]]:
        """The values of the fields, and the names of those that are wrong, which have their defaults."""
        values, wrong = {}, set()
        for name, column in columns.items():
            if name in data:
                try:
                    values[name] = column_value(column, data[name], self._find)
                    continue
                except ValidationError as error:
                    self._wrong((*path, name), *error.messages)
                    wrong.add(name)
            if name in wrong or not partial:
                values[name] = column.get_default()
        return values, wrong

    def _check(self, row: Definable, path: Path, wrong: set[str], *, is_moved: bool) -> None:
        """Have the model check the row; one with fields of a wrong type is checked field by field only.

        A stored row whose identity stays as it is, and a new one of a name that was not found, are unique.
        """
        new = {name: named for name, named in _named_rows(row) if named.pk is None}
        for name, named in new.items() if not self._alone else ():
            with self._noted((*path, name)):
                named.full_clean(validate_unique=False)
        exclude = {*new, *wrong, *([registered(Pool).owner] if isinstance(row, PoolMember) else ())}
        with self._noted(path):
            if not (wrong or self._alone):
                row.full_clean(exclude, validate_unique=is_moved, validate_constraints=is_moved)
                return
            row.clean_fields(exclude)
            if not wrong:
                row.clean_alone()

    @contextmanager
    def _noted(self, path: Path) -> Iterator[None]:
        try:
            yield
        except ValidationError as error:
            if not hasattr(error, "error_dict"):
                self._wrong(path, *error.messages)
                return
            for name, messages in error.message_dict.items():
                self._wrong(path if name == NON_FIELD_ERRORS else (*path, name), *messages)

    def _wrong(self, path: Path, *messages: str) -> None:
        self.errors.setdefault(path, []).extend(messages)

    def _has_errors(self, path: Path) -> bool:
        return any(error[: len(path)] == path for error in self.errors)


def _identifying(row: Definable) -> list[Any]:
    """The values of the columns that identify a row."""
    return [getattr(row, row._meta.get_field(name).attname) for name in registered(type(row)).identity]  # type: ignore[union-attr]


def _named_rows(row: Definable) -> Iterator[tuple[str, Any]]:
    """The rows that a definition names, as far as they are read already."""
    for name in registered(type(row)).references:
        column: Any = row._meta.get_field(name)
        if (named := column.get_cached_value(row, None)) is not None:
            yield name, named


def _noted_limit(data: object) -> Noted:
    if isinstance(data, str):
        return parse_limit(data)
    if isinstance(data, Noted):
        return data
    if isinstance(data, Limit):
        return data.noted()
    if isinstance(data, AnyLimit):
        return Noted(data)  # type: ignore[arg-type]  # a block is refused by the row
    raise InvalidLimit(f"{shown(data)} is not a limit: write a text such as 'rpm=1000/min', or its fields")
