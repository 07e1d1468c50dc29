"""The prices of a limits file whose time has begun: they are compared with the stored ones, and never written again."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from datetime import UTC
from typing import Any

from limits_app.models import Price
from limits_app.models.fields import aware, in_site_time
from limits_app.models.price import begun_message, next_full_hour
from limits_app.services.definitions import Definition
from limits_app.services.field_values import moment
from limits_app.services.limits_file.content import FileEntry, FileKey, Name
from limits_app.services.limits_file.reading import FileProblem

_HOUR = -1
"""The place of `valid_from` in the key of a price."""


class PricesOfFile:
    """The objects of a file, with each price valid from an hour from which the database has it or can have it.

    A price of the past that is not stored, as in the file of another site, is valid from the next full hour, unless the
    unit has that price already. Prices that have begun are kept when the file leaves them out.
    """

    def __init__(self, entries: Mapping[Name, FileEntry], stored: Mapping[Name, FileEntry]) -> None:
        self.warnings: list[str] = []
        self.problems: list[FileProblem] = []
        self._stored = stored
        self._next_hour = aware(next_full_hour()).astimezone(UTC).isoformat()
        self.entries: dict[Name, FileEntry] = {}
        latest = self._latest_past(entries)
        for name, entry in entries.items():
            if not self.is_past(entry):
                self.entries[name] = entry
            elif name in stored:
                self.entries[name] = entry
                if stored[name].state != entry.state:
                    self.problems.append(FileProblem(begun_message(entry.label.removeprefix("price of ")), entry.line))
            elif latest[entry.key[:_HOUR]] is entry:
                moved = self._moved(entry)
                self.entries.setdefault(moved.name, moved)

    def is_past(self, entry: FileEntry) -> bool:
        """Whether it is a price that has begun."""
        return entry.section.model is Price and bool(entry.key[_HOUR] < self._next_hour)

    def _latest_past(self, entries: Mapping[Name, FileEntry]) -> dict[FileKey, FileEntry]:
        """Of the prices of each unit, the last one that has begun."""
        past = sorted((entry for entry in entries.values() if self.is_past(entry)), key=lambda entry: entry.key[_HOUR])
        return {entry.key[:_HOUR]: entry for entry in past}

    def _moved(self, entry: FileEntry) -> FileEntry:
        """The price as it is stored from another hour on, or from the next full hour on."""
        unit = entry.key[:_HOUR]
        same_unit = [
            other
            for (section, key), other in self._stored.items()
            if section == entry.section.name and key[:_HOUR] == unit and key[_HOUR] <= self._next_hour
        ]
        current = max(same_unit, key=lambda other: other.key[_HOUR], default=None)
        if current is not None and current.state == entry.state:
            hour = current.key[_HOUR]
        else:
            hour = self._next_hour
            self.warnings.append(f"{entry.label}: valid from {hour}, because a price cannot begin in the past")
        row: Any = copy(entry.definition.row) if entry.definition else None
        row.valid_from = in_site_time(moment(hour))
        return replace(entry, key=(*unit, hour), definition=Definition(row))
