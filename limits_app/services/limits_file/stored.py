"""The stored objects that a limits file concerns: those that it names, and those that its rules compare them with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from django.db.models import Q

from limits_app.models import MAX_LEVELS, Counted, Entity, Policy, Price
from limits_app.models.patterns import is_pattern, patterns_in
from limits_app.models.snapshots import batches
from limits_app.models.users import identifiers_of_client
from limits_app.policies import members_of_plans
from limits_app.services.limits_file.content import (
    SECTIONS,
    FileEntry,
    FileKey,
    Name,
    Section,
    references,
    stored_where,
    where_named,
)


class StoredObjects:
    """The objects of the database that were read so far, in `entries`; each is read once."""

    def __init__(self, using: str) -> None:
        self.entries: dict[Name, FileEntry] = {}
        self._using = using
        self._asked: set[Name] = set()

    def read_named(self, names: Iterable[Name]) -> None:
        """Read the objects of these names, as far as they exist."""
        by_section: dict[str, list[Name]] = {}
        for name in names:
            if name not in self._asked:
                self._asked.add(name)
                by_section.setdefault(name[0], []).append(name)
        for section_name, keys in by_section.items():
            section = SECTIONS[section_name]
            for where in where_named(section, [key for _, key in keys]):
                self._read(section, where)

    def add(self, entries: Iterable[FileEntry]) -> None:
        """Add objects that were read elsewhere."""
        stored = {entry.name: entry for entry in entries}
        self.entries |= stored
        self._asked |= stored.keys()

    def read_lines(self, names: Iterable[Name]) -> None:
        """Read entities, and all that are above them."""
        self.read_named(names)
        self._read_lines({})

    def read_keys(self, managed: Mapping[str, Collection[Any]]) -> None:
        """Read the objects with these primary keys by the names of their models, as far as they exist."""
        for section in SECTIONS.values():
            keys = {entry.pk for entry in self._of(section.name)}
            for batch in batches({*managed.get(section.kind, ())} - keys):
                self._read(section, Q(pk__in=batch))

    def read_compared(self, entries: Mapping[Name, FileEntry | None], deleted: Collection[FileEntry]) -> None:
        """Read the objects that must go together with those that are wanted, and without those that are deleted."""
        self._read_referring(deleted)
        self._read_lines(entries)
        self._read_rules(entries)

    def read_replaced(self, policies: Collection[FileEntry]) -> None:
        """Read the policies that some may replace, and the plans of their clients."""
        section = SECTIONS["policies"]
        where = Q(entity=None) | patterns_in("entity__identifier")
        if all(entry.key[0] for entry in policies):
            resources = {entry.key[0] for entry in policies}
            self._read(section, where & Q(resource=None))
            for batch in batches(resources):
                self._read(section, where & Q(resource__name__in=batch))
        else:
            self._read(section, where)
        clients = {entry.key[1] for entry in policies} - {""}
        names = {name for client in clients for name in identifiers_of_client(client)}
        for batch in batches(names - clients):
            self._read(section, Q(entity__identifier__in=batch))
        self.read_named([("entities", (name,)) for name in names])
        self._read_lines({})
        plans = {entry.key[4] for entry in policies} - {""}
        if plans and any(is_pattern(entry.key[1]) for entry in self._of("policies") if entry.key[1]):
            self.read_keys({SECTIONS["entities"].kind: members_of_plans(plans, self._using)})
            self._read_lines({})
        self.read_named([name for entry in self._of("plan_groups") for name in references(entry)])

    def in_order(self) -> Iterator[FileEntry]:
        """The objects that were read, in the order in which a file would have them."""
        for section in SECTIONS.values():
            entries = [*self._of(section.name)]
            if section.counted:
                entries.sort(key=lambda entry: (entry.key[1], entry.pk))
            else:
                entries.sort(key=lambda entry: entry.key)
            yield from entries

    def _read_referring(self, entries: Collection[FileEntry]) -> None:
        """Read the objects that refer to some that are stored."""
        for section in SECTIONS.values():
            for field in section.registered.references:
                model = section.field(field).related_model
                keys = [entry.pk for entry in entries if entry.section.model is model]
                for batch in batches(keys):
                    self._read(section, Q(**{f"{field}__in": batch}))

    def _read_lines(self, entries: Mapping[Name, FileEntry | None]) -> None:
        """Read the entities above those that are wanted, and those below the ones that get another parent."""
        moved = []
        for name, entry in entries.items():
            stored = self.entries.get(name)
            if name[0] == "entities" and entry and stored and entry.state["parent"] != stored.state["parent"]:
                moved.append(stored.pk)
        section, below = SECTIONS["entities"], moved
        for _level in range(MAX_LEVELS if moved else 0):
            rows = [entry for batch in batches(below) for entry in self._read(section, Q(parent__in=batch))]
            below = [entry.pk for entry in rows]
        above = {entry.state["parent"] for name, entry in entries.items() if entry and name[0] == "entities"}
        above |= {entry.state["parent"] for entry in self._of("entities")}
        while unread := {("entities", (name,)) for name in above if name} - self._asked:
            self.read_named(unread)
            above = {self.entries[name].state["parent"] for name in unread if name in self.entries}

    def _read_rules(self, entries: Mapping[Name, FileEntry | None]) -> None:
        """Read the rules, and the policies, that may set limits on the same resources as those that are wanted."""
        resources = set()
        for (section, key), entry in entries.items():
            if section == "endpoints" and entry and entry.state["limits"]:
                resources.add(entry.state["limits_resource"])
            elif section == "policies" and key == permanent_policy(key[0]):
                resources.add(key[0])
        resources.discard("")
        for batch in batches(resources):
            self._read(SECTIONS["endpoints"], Q(limits_resource__in=batch) & ~Q(limits=""))
        self.read_named([("policies", permanent_policy(name)) for name in resources])

    def _of(self, section: str) -> list[FileEntry]:
        return [entry for (name, _), entry in self.entries.items() if name == section]

    def _read(self, section: Section, where: Q) -> list[FileEntry]:
        entries = stored_where(section, where, self._using)
        self.add(entries)
        return entries


def general_objects(using: str) -> list[FileEntry]:
    """Give all objects except for entities, for the policies of clients, and for prices with their history."""
    general = Q(entity=None) | patterns_in("entity__identifier")
    return [
        entry
        for section in SECTIONS.values()
        if section.model not in {Entity, Price}
        for entry in stored_where(section, general if section.model is Policy else Q(), using)
    ]


def client_policies(using: str, *, resource: str | None = None, most: int = 2_000) -> Iterator[list[FileEntry]]:
    """Give the policies of clients in parts, each with all policies of some clients, and about so many policies.

    With the name of a resource, only those that may apply to it.
    """
    may_apply = Q() if resource is None else Q(resource=None) | Q(resource__name=resource)
    of_clients = may_apply & ~patterns_in("entity__identifier")
    policies = Policy._base_manager.using(using).exclude(entity=None).filter(of_clients).order_by("entity_id")
    last: Any = None
    while True:
        rest = policies if last is None else policies.filter(entity__gt=last)
        clients = [*rest.values_list("entity_id", flat=True)[:most]]
        if not clients:
            return
        where = Q(entity__gte=clients[0], entity__lte=clients[-1])
        yield stored_where(SECTIONS["policies"], where & of_clients, using)
        last = clients[-1]


def permanent_policy(resource: str) -> FileKey:
    """The key of the policy of a resource that always applies."""
    return (resource, "", "", "", "", Counted.EACH.value)
