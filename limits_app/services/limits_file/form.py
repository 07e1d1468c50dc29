"""The form of limits files, as pydantic models; what values may be is checked by the models of the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from functools import partial
from typing import Annotated, Any, Final, Literal

from django.db import models
from django.utils.dateparse import parse_datetime
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model, model_validator

from limits_app.engine import shown
from limits_app.services.definitions import Path
from limits_app.services.field_values import nearest
from limits_app.services.limits_file.content import LIMITS, MEMBERS, SECTIONS, Section


def _zoned(value: object) -> datetime:
    try:
        time = parse_datetime(value) if isinstance(value, str) else value
    except ValueError:
        time = None
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise ValueError("Write a date and time with its time zone, such as 2026-03-01T00:00:00+01:00.")
    return time


Moment = Annotated[datetime, PlainValidator(_zoned, json_schema_input_type=datetime)]
_MOMENT: Final[Any] = Moment | None
LimitList = Annotated[
    list[Annotated[str, Field(max_length=256)]],
    Field(description="Limits as text, such as rpm=1000/min or connections=10."),
]


class _Fields(BaseModel):
    """Fields of which one without a value is one that was left out, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


def _type_of(column: Any) -> Any:
    """The type of a value in a file: dates as text, and other rows by their names."""
    match column:
        case models.BooleanField():
            return bool
        case models.IntegerField():
            return int
        case models.DecimalField():
            return str | int | float
        case models.JSONField():
            return dict[str, Any]
        case models.DateTimeField():
            return _MOMENT
        case _:
            return str


def _plain_word(choice: tuple[Any, Any]) -> str | int:
    """A choice as files have it."""
    return int(choice[0]) if isinstance(choice[0], int) else str(choice[0])


def _describe(section: Section, schema: dict[str, Any]) -> None:
    """Add the help texts and choices of the columns."""
    for name in section.written:
        column, described = section.field(name), schema["properties"][name]
        described["description"] = str(column.help_text)
        if column.choices:
            described["enum"] = [*([""] if column.blank else []), *map(_plain_word, column.choices)]
        if not (column.blank or column.has_default()):
            schema.setdefault("required", []).append(name)
            described.pop("default", None)
    for described in schema["properties"].values():
        described.pop("title", None)


def _model(section: Section) -> type[BaseModel]:
    """The form of the objects of a section, of the columns of their model."""
    fields: dict[str, Any] = {
        name: (kind := _type_of(section.field(name)), section.default(name) if kind is not _MOMENT else None)
        for name in section.written
    }
    if section.has_limits:
        fields[LIMITS] = (LimitList, [])
    if section.parts is not None:
        fields[section.parts.name] = (_objects_of(section.parts), {})
    options = {"json_schema_extra": partial(_describe, section)}
    name, doc = f"{section.model.__name__}Section", section.model.__doc__
    return create_model(name, __base__=_Fields, __doc__=doc, __cls_kwargs__=options, **fields)


def _objects_of(section: Section) -> Any:
    """The type of all objects of a section: by their names, or a list."""
    model = _MODELS[section.name]
    return dict[str, model | None] if section.named else list[model]  # type: ignore[valid-type]


_MODELS: Final[dict[str, type[BaseModel]]] = {}
for _section in (MEMBERS, *SECTIONS.values()):
    _MODELS[_section.name] = _model(_section)


class _File(_Fields):
    model_config = ConfigDict(title="Limits as a file")

    version: Annotated[Literal[1], Field(description="The version of this format.")] = 1
    name: Annotated[
        str,
        Field(min_length=1, max_length=64, description="The name of the file."),
    ] = "limits"


_sections: dict[str, Any] = {name: (_objects_of(section) | None, None) for name, section in SECTIONS.items()}
LimitsFile = create_model("LimitsFile", __base__=_File, __doc__="Limits as a file.", **_sections)
_MESSAGES: Final[Mapping[str, str]] = {
    "bool_type": "Write true or false, not {shown}.",
    "int_type": "Write a whole number, not {shown}.",
    "dict_type": "Must be an object with fields, not {shown}.",
    "model_type": "Must be an object with fields, not {shown}.",
    "list_type": "Write a list, not {shown}.",
    "string_too_long": "Write at most {max_length} characters.",
    "string_too_short": "Write at least {min_length} character.",
    "literal_error": "The version of this format is {expected}.",
}


def check_form(data: Any) -> Iterator[tuple[Path, str]]:
    """Give the path and the message of each value that has a wrong type, and of each unknown field."""
    try:
        LimitsFile.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            yield detail["loc"], _message(detail)


def _message(error: Any) -> str:
    value, context = error["input"], error.get("ctx", {})
    written = value.isoformat() if isinstance(value, date) else shown(value)
    match error["type"]:
        case "extra_forbidden":
            return f"Unknown field: {nearest(str(error['loc'][-1]), _known(error['loc']))}"
        case "string_type" if isinstance(value, bool):
            return "Write it in quotes: without them on, off, yes and no are true or false in YAML."
        case "string_type":
            return f"Write a text, in quotes where it looks like something else, not {written}."
        case "value_error":
            return str(context["error"])
        case kind:
            return _MESSAGES.get(kind, str(error["msg"])).format(shown=written, **context)


def _known(path: Path) -> list[str]:
    """The fields that an object can have at a path, whose last step is not one of them."""
    if len(path) == 1:
        return [*LimitsFile.model_fields]
    return [*_MODELS[MEMBERS.name if MEMBERS.name in path[2:-1] else str(path[0])].model_fields]
