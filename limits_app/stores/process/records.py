"""Records in the file: the states of each scope, and what is needed to read those of an older configuration.

Keys, with `scope` in 16 bytes: `scope g limit` the log of a sliding window, `d name` the definitions of a layout;
records have `Places`.
"""

from __future__ import annotations

import struct
from typing import Final

import lmdb

from limits_app.core.layout import Layout
from limits_app.core.parts import Part
from limits_app.core.unrolled import Record
from limits_app.stores.codecs import Codecs
from limits_app.stores.leases import counted
from limits_app.stores.process.codec import NAME_LENGTH, Codec
from limits_app.stores.process.leasing import LEASE
from limits_app.stores.process.places import Places
from limits_app.stores.process.scan import under

__all__ = ["Records"]

_DEFINITIONS: Final = b"d"


class Records:
    """Reads and writes records through a transaction; knows the codec of every layout that it has met."""

    def __init__(self) -> None:
        self._codecs = Codecs(Codec)
        self._defined: set[bytes] = set()
        self.places = Places()
        self.newcomer = False
        """Whether states were asked for a scope that has none; for whoever keeps house."""
        self.rebased: list[Part] = []
        """The parts of which states were asked for that another layout has written."""

    def begin_anew(self) -> None:
        """The file may be another one, in which nothing is defined yet."""
        self._defined.clear()

    def known(self, layout: Layout) -> Codec | None:
        """The codec of a layout whose definitions have been seen in the file."""
        codec = self._codecs.get(layout)
        return None if codec is None or codec.name not in self._defined else codec

    def usual(self, txn: lmdb.Transaction[bytes], part: Part) -> Record | None:
        """The states of a scope if the part's layout has written them, as most are; fast."""
        codec, (_, stored) = self._codecs.get(part.layout), self.places.find(txn, part.short_key)
        return None if codec is None or stored is None else codec.decode(stored, txn, part.short_key)

    def record(self, txn: lmdb.Transaction[bytes], part: Part, now: int) -> Record:
        """The states of a scope as the part's layout sees them, and its codec; writes nothing."""
        codec = self._codecs.get(part.layout) or self._codecs[part.layout]
        _, stored = self.places.find(txn, part.short_key)
        if stored is None:
            self.newcomer = True
            return (*part.layout.blank, codec)
        record = codec.decode(stored, txn, part.short_key)
        if record is not None:
            return record
        self.rebased.append(part)
        record = self._decoded(txn, part.short_key, stored)
        if record is None:
            return (*part.layout.blank, codec)
        states = part.layout.carried(record[-1].layout, record, now)
        for index, lease_key in part.leases:
            # Leases outlive a limit that was taken away and came back.
            states[index] = counted(states[index], [LEASE.unpack(value) for _, value in under(txn, lease_key)])
        return (*states, *part.layout.blank[len(states) :], codec)

    def current(self, txn: lmdb.Transaction[bytes], part: Part, now: int) -> Record:
        """The states of a scope under the layout that wrote them, or else those of a scope that has none."""
        return self.usual(txn, part) or self.stored(txn, part.short_key) or self.record(txn, part, now)

    def stored(self, txn: lmdb.Transaction[bytes], scope: bytes) -> Record | None:
        """The states of a scope under the layout that wrote them, and its codec; None when there are none."""
        _, stored = self.places.find(txn, scope)
        return None if stored is None else self._decoded(txn, scope, stored)

    def write(self, txn: lmdb.Transaction[bytes], scope: bytes, record: Record) -> None:
        """Put the states of a scope; a log only when it is not the one that is there."""
        codec: Codec = record[-1]
        if codec.name not in self._defined:
            self._define(txn, codec)
        try:
            stored = codec.encode(record)
        except struct.error:
            stored = codec.encode(codec.saturated(record))
        self.places.put(txn, scope, stored)
        if codec.logs:
            for key, packed in codec.changed_logs(scope, record):
                txn.put(key, packed)

    def remove(self, txn: lmdb.Transaction[bytes], scope: bytes) -> None:
        """Forget the states and logs of a scope; leases have a life of their own."""
        self.places.remove(txn, scope)
        for key, _ in list(under(txn, scope + b"g")):
            txn.delete(key)

    def _define(self, txn: lmdb.Transaction[bytes], codec: Codec) -> None:
        """Put the definitions of a layout; done once they are seen there, since a transaction may be given up."""
        if txn.get(_DEFINITIONS + codec.name) is None:
            txn.put(_DEFINITIONS + codec.name, codec.definitions)
        else:
            self._defined.add(codec.name)

    def _decoded(self, txn: lmdb.Transaction[bytes], scope: bytes, stored: bytes) -> Record | None:
        name = stored[:NAME_LENGTH]
        codec = self._codecs.named(name) or self._codecs.defined(txn.get(_DEFINITIONS + name))
        return None if codec is None else codec.decode(stored, txn, scope)
