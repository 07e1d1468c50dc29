"""Reading: rows become records, whatever layout has written them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limits_app.stores.database.counted import label_of
from limits_app.stores.database.records import NAME_LENGTH, Codec, Record
from limits_app.stores.definitions import layout_from

if TYPE_CHECKING:
    from limits_app.core.layout import Layout
    from limits_app.core.parts import Part
    from limits_app.stores.database.links import Link, Row

__all__ = ["Reading"]

_MOST_CODECS: Final = 4096


class Reading:
    """Knows the codec of every layout that it has met."""

    def __init__(self) -> None:
        self._codecs: dict[Layout, Codec] = {}
        self._by_name: dict[bytes, Codec] = {}
        self._defined: set[bytes] = set()

    def codec(self, layout: Layout) -> Codec:
        """The codec of a layout."""
        codec = self._codecs.get(layout)
        if codec is None:
            if len(self._codecs) >= _MOST_CODECS:
                self._codecs.clear()
                self._by_name.clear()
            codec = self._codecs[layout] = Codec(layout)
            self._by_name[codec.name] = codec
        return codec

    def define(self, link: Link, layout: Layout) -> None:
        """Let other processes read what will be written under a layout."""
        codec = self.codec(layout)
        if codec.name not in self._defined:
            link.define(codec.name, codec.definitions)
            self._defined.add(codec.name)

    def as_stored(self, link: Link, row: Row) -> Record | None:
        """The record of a row under the layout that wrote it; None when nobody here can read it."""
        name = row.states[:NAME_LENGTH]
        codec = self._by_name.get(name) or self._fetched(link, name)
        return None if codec is None else codec.decode(row)

    def seen(self, link: Link, part: Part, row: Row | None, now: int) -> Record:
        """The record of a scope as a part's layout sees it."""
        codec = self.codec(part.layout)
        if row is None:
            return Record(part.short_key, list(part.layout.start), codec, b"", None, b"", codec.uncounted)
        record = self.as_stored(link, row)
        if record is None:
            return Record(part.short_key, list(part.layout.start), codec, b"", row.stamp, row.trail, codec.uncounted)
        if record.codec is codec:
            return record
        return record.under(part.layout, codec, now=now, label=label_of(part.scoped.scope))

    def _fetched(self, link: Link, name: bytes) -> Codec | None:
        definitions = link.definitions(name)
        if definitions is None:
            return None
        try:
            return self.codec(layout_from(definitions))
        except (TypeError, ValueError):  # written by a version that knows more
            return None
