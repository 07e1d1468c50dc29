"""The form of limits files, as pydantic models; what values may be is checked by the models of the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from django.utils.dateparse import parse_datetime
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from limits_app.core.amounts import shown
from limits_app.models import Configuration, Endpoint, Entity, Plan, Policy, Pool, PoolMember, Resource
from limits_app.services.definitions import Path
from limits_app.services.field_values import nearest


def _zoned(value: object) -> datetime:
    try:
        found = parse_datetime(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise ValueError("Write a date and time with its time zone, such as 2026-03-01T00:00:00+01:00.")
    return found


Moment = Annotated[datetime, PlainValidator(_zoned, json_schema_input_type=datetime)]
Limits = Annotated[
    list[Annotated[str, Field(max_length=256)]],
    Field(description="Limits as text, such as rpm=1000/min or connections=10."),
]


def _describe(schema: dict[str, Any], section: type[Any]) -> None:
    """Add the help texts, lengths and choices of the model's fields."""
    fields = {field.name: field for field in section.row._meta.concrete_fields}
    for name, described in schema["properties"].items():
        described.pop("title", None)
        if name not in fields:
            continue
        described["description"] = str(fields[name].help_text)
        if fields[name].choices:
            words = [str(word) for word, _ in fields[name].choices]
            described["enum"] = ["", *words] if fields[name].blank else words
        if not (fields[name].blank or fields[name].has_default()):
            schema.setdefault("required", []).append(name)
            described.pop("default", None)


class _Fields(BaseModel):
    """Fields of which one without a value is one that was left out, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


class Section(_Fields):
    """An object of a limits file."""

    model_config = ConfigDict(json_schema_extra=_describe)
    row: ClassVar[type[Configuration]]


class MemberSection(Section):
    """A member of a pool."""

    row = PoolMember
    weight: int = 1
    order: int = 100
    config: dict[str, Any] = {}
    enabled: bool = True
    limits: Limits = []


class PoolSection(Section):
    """A pool with its members by their names."""

    row = Pool
    description: str = ""
    load_balancing: str = "round_robin"
    failover: bool = True
    members: dict[str, MemberSection | None] = {}


class ResourceSection(Section):
    """A resource."""

    row = Resource
    description: str = ""
    pool: str = ""
    store: str = ""


class PlanSection(Section):
    """A plan."""

    row = Plan
    description: str = ""
    priority: int = 0


class EntitySection(Section):
    """An entity."""

    row = Entity
    name: str = ""
    parent: str = ""
    plan: str = ""
    cascade: bool = False
    unlimited: bool = False
    blocked: bool = False
    metadata: dict[str, Any] = {}


class PolicySection(Section):
    """A policy with its limits."""

    row = Policy
    resource: str = ""
    entity: str = ""
    plan: str = ""
    counted: str = "each"
    valid_from: Moment | None = None
    valid_until: Moment | None = None
    weekly_hours: str = ""
    time_zone: str = ""
    effect: str = "limits"
    extends: bool = False
    enforcement: str = "enforce"
    rollout_percent: int = 100
    on_unavailable: str = ""
    slice_seconds: int = 0
    reason: str = ""
    limits: Limits = []


class EndpointSection(Section):
    """A rule about requests."""

    row = Endpoint
    name: str = ""
    resource: str = ""
    description: str = ""
    path: str = ""
    view_name: str = ""
    methods: str = ""
    counted_by: str = "entity"
    header: str = ""
    limits: str = ""
    amounts: dict[str, Any] = {}
    exempt_staff: bool = False
    exempt_superusers: bool = False
    exempt_groups: str = ""
    exempt_networks: str = ""
    exempt_entities: str = ""
    order: int = 100
    stop: bool = False
    enabled: bool = True


class LimitsFile(_Fields):
    """Limits as a file."""

    model_config = ConfigDict(title="Limits as a file")

    version: Annotated[Literal[1], Field(description="The version of this format.")] = 1
    name: Annotated[str, Field(min_length=1, max_length=64, description="Whose objects these are.")] = "limits"
    pools: dict[str, PoolSection | None] | None = None
    resources: dict[str, ResourceSection | None] | None = None
    plans: dict[str, PlanSection | None] | None = None
    entities: dict[str, EntitySection | None] | None = None
    policies: list[PolicySection] | None = None
    endpoints: list[EndpointSection] | None = None


_SECTIONS: Final[Mapping[str, type[BaseModel]]] = {
    "pools": PoolSection,
    "resources": ResourceSection,
    "plans": PlanSection,
    "entities": EntitySection,
    "policies": PolicySection,
    "endpoints": EndpointSection,
}
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
        for one in error.errors(include_url=False):
            yield one["loc"], _message(one)


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
    return [*(MemberSection if "members" in path[2:-1] else _SECTIONS[str(path[0])]).model_fields]
