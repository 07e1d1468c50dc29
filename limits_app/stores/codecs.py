"""Codecs: which of them writes and reads what, and how what an older configuration has written finds its own."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, TypeVar

from limits_app.core.record import Schema
from limits_app.stores.definitions import definitions_of, layout_from

__all__ = ["Codecs", "LayoutCodec"]

_MOST: Final = 4096


class LayoutCodec:
    """What writes and reads the states of one layout, whose name stands with each of them: a digest of so many bytes.

    What the name means, `definitions`, is kept beside them, for those who have never met the layout.
    """

    __slots__ = ("definitions", "layout", "name")

    def __init__(self, layout: Schema, name_length: int) -> None:
        self.layout = layout
        self.definitions = definitions_of(layout)
        self.name = blake2b(self.definitions, digest_size=name_length).digest()


K = TypeVar("K", bound=LayoutCodec)


class Codecs(dict[Schema, K]):
    """The codecs of the layouts that a store has met; `codecs[layout]` makes the one that is not there."""

    __slots__ = ("_by_name", "_codec_of")

    def __init__(self, codec_of: Callable[[Schema], K]) -> None:
        super().__init__()
        self._codec_of = codec_of
        self._by_name: dict[bytes, K] = {}

    def __missing__(self, layout: Schema) -> K:
        if len(self) >= _MOST:
            self.clear()
            self._by_name.clear()
        codec = self[layout] = self._codec_of(layout)
        self._by_name[codec.name] = codec
        return codec

    def named(self, name: bytes) -> K | None:
        """The codec of the layout with a name, if it was met."""
        return self._by_name.get(name)

    def defined(self, definitions: bytes | None) -> K | None:
        """The codec of definitions; None when there are none, or a version has written them that knows more."""
        if definitions is None:
            return None
        try:
            return self[layout_from(definitions)]
        except (TypeError, ValueError):
            return None
