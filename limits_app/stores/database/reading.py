"""Reading: rows become records, whatever layout has written them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limits_app.core.counting import label_of
from limits_app.stores.codecs import Codecs
from limits_app.stores.database.records import NAME_LENGTH, Codec, Record

if TYPE_CHECKING:
    from limits_app.core.layout import Layout
    from limits_app.core.parts import Part
    from limits_app.stores.database.links import Link, Row

__all__ = ["Reading"]


class Reading:
    """Knows the codec of every layout that it has met."""

    def __init__(self) -> None:
        self._codecs = Codecs(Codec)
        self._defined: set[bytes] = set()

    def define(self, link: Link, layout: Layout) -> None:
        """Let other processes read what will be written under a layout."""
        codec = self._codecs[layout]
        if codec.name not in self._defined:
            link.define(codec.name, codec.definitions)
            self._defined.add(codec.name)

    def as_stored(self, link: Link, row: Row) -> Record | None:
        """The record of a row under the layout that wrote it; None when nobody here can read it."""
        name = row.states[:NAME_LENGTH]
        codec = self._codecs.named(name) or self._codecs.defined(link.definitions(name))
        return None if codec is None else codec.decode(row)

    def seen(self, link: Link, part: Part, row: Row | None, now: int) -> Record:
        """The record of a scope as a part's layout sees it."""
        codec = self._codecs[part.layout]
        if row is None:
            return Record(part.short_key, list(part.layout.start), codec, b"", None, b"", codec.uncounted)
        record = self.as_stored(link, row)
        if record is None:
            return Record(part.short_key, list(part.layout.start), codec, b"", row.stamp, row.trail, codec.uncounted)
        if record.codec is codec:
            return record
        return record.under(part.layout, codec, now=now, label=label_of(part.scoped.scope))
