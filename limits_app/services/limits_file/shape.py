"""What stands in a limits file: its sections, and which fields of which models they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from django.db import models

from limits_app.models import Configuration, Endpoint, Entity, Policy, Pool, PoolMember, Resource

__all__ = ["LIMITS", "MEMBERS", "SECTIONS", "Entry", "Key", "Section", "State", "references"]

Key = tuple[Any, ...]
"""What tells an object of a section from the others; endpoints of one name and order are counted."""

State = Mapping[str, Any]
"""An object as plain data: every field with its value, related objects by their names, moments as ISO text in UTC,
limits as a tuple of texts, and the members of a pool by their names."""


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of object. `fields` are names of the model; `identity` are those that tell one from another.

    Where it is `named`, the file has a mapping by the one field of its identity, and otherwise a list.
    """

    name: str
    model: type[Configuration]
    identity: tuple[str, ...]
    fields: tuple[str, ...]
    named: bool = True
    has_limits: bool = False
    counted: bool = False
    """Whether identities need not differ, so that the second of one is told from the first."""
    parts: Section | None = None

    @property
    def kind(self) -> str:
        """What one of its objects is called."""
        return self.model._meta.model_name or ""

    def field(self, name: str) -> Any:
        """A field of the model."""
        return self.model._meta.get_field(name)

    def default(self, name: str) -> Any:
        """What a field says where nobody says anything."""
        field = self.field(name)
        return "" if field.is_relation or isinstance(field, models.DateTimeField) else _plain(field.get_default())

    def defaults(self) -> dict[str, Any]:
        """A state in which nobody said anything."""
        said: dict[str, Any] = {name: self.default(name) for name in self.fields}
        if self.has_limits:
            said["limits"] = ()
        if self.parts is not None:
            said[self.parts.name] = {}
        return said

    def known(self) -> tuple[str, ...]:
        """Everything that an object may say in a file, besides what it is called where the section is `named`."""
        said = (*self.fields, *(["limits"] if self.has_limits else []), *([self.parts.name] if self.parts else []))
        return said if self.named else (*self.identity, *said)


MEMBERS: Final = Section("members", PoolMember, ("name",), ("weight", "order", "config", "enabled"), has_limits=True)
SECTIONS: Final[Mapping[str, Section]] = MappingProxyType(
    {
        section.name: section
        for section in (
            Section("pools", Pool, ("name",), ("load_balancing", "failover", "description"), parts=MEMBERS),
            Section("resources", Resource, ("name",), ("description", "pool", "store")),
            Section(
                "entities",
                Entity,
                ("identifier",),
                ("name", "parent", "cascade", "unlimited", "blocked", "metadata"),
            ),
            Section(
                "policies",
                Policy,
                ("resource", "entity", "valid_from", "weekly_hours"),
                (
                    "effect",
                    "extends",
                    "enforcement",
                    "rollout_percent",
                    "valid_until",
                    "time_zone",
                    "on_unavailable",
                    "reason",
                ),
                named=False,
                has_limits=True,
            ),
            Section(
                "endpoints",
                Endpoint,
                ("name", "order"),
                ("description", "path", "view_name", "methods", "resource", "amounts", "enabled"),
                named=False,
                counted=True,
            ),
        )
    }
)
"""In an order in which none refers to a later one."""

LIMITS: Final = "limits"


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, in a file or in the database; `line` is 0 in the latter."""

    section: Section
    key: Key
    state: State
    line: int = 0

    @property
    def label(self) -> str:
        """What people call it."""
        if self.section.named:
            return f"{self.section.kind} {self.key[0]}"
        if self.section.counted:
            name, order, place = self.key
            among = "" if order == self.section.default("order") else f" of order {order}"
            return f"{self.section.kind} {name}{among}" + (f" ({place + 1})" if place else "")
        resource, entity, valid_from, hours = self.key
        whom = f"entity {entity}" if entity else "" if resource else "system"
        where = f"on {resource}" if entity and resource else f"resource {resource}" if resource else ""
        when = f"from {valid_from}" if valid_from else hours
        return " ".join(filter(None, ["policy", whom, where, when]))


def references(entry: Entry) -> Iterator[tuple[str, Key]]:
    """The objects that an object names."""
    said = dict(zip(entry.section.identity, entry.key, strict=False)) | dict(entry.state)
    for name, section in (("pool", "pools"), ("resource", "resources"), ("entity", "entities"), ("parent", "entities")):
        if said.get(name):
            yield section, (said[name],)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, models.Choices) else value
