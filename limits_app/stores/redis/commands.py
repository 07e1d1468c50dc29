"""Commands: what is sent to a server, packed once for each plan, and how its reply is read. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, Protocol

from limits_app.stores.redis.scripts import Script

__all__ = ["NUMBERED", "Call", "Plain", "Prepared", "ScriptCall", "Slot", "bulk", "command"]

_HEADER: Final = 4
"""How many numbers every script is told: those of `Moments.header`."""

NUMBERED: Final = Struct("<dd").pack
"""What stands before them: the number of the call, and whether it comes again."""

_RECORDED: Final = Struct("<d")
"""What a record begins with: the number of the call that it is the reply to."""


def bulk(value: bytes) -> bytes:
    """A string as the protocol has it."""
    return b"$%d\r\n%s\r\n" % (len(value), value)


def command(*words: bytes) -> bytes:
    """A whole command."""
    return b"*%d\r\n%s" % (len(words), b"".join(map(bulk, words)))


class Slot:
    """Whose call it is: a name that no other link has, and a number that grows from call to call."""

    __slots__ = ("_key_at", "key", "name", "number")

    def __init__(self, name: bytes, key_at: Callable[[bytes, bytes | None], bytes]) -> None:
        self.name = name
        self._key_at = key_at
        self.key = bulk(key_at(name, None))
        self.number = 0

    def at(self, tag: bytes) -> bytes:
        """The key of its record beside the scopes with a tag."""
        return bulk(self._key_at(self.name, tag))

    def looking(self, tag: bytes | None = None) -> Plain:
        """The call that reads its record, on a cluster that beside the scopes with a tag."""
        return Plain(b"HGET", self._key_at(self.name, tag), b"r")

    def reply_in(self, record: bytes | None) -> bytes | None:
        """The reply to the last call, as its record says; None where that was never executed."""
        if record is None or _RECORDED.unpack_from(record)[0] != self.number:
            return None
        return record[_RECORDED.size :]


class Call(Protocol):
    """Something that can be sent, also by several at the same time."""

    @property
    def script(self) -> Script | None:
        """The script that it runs, if it runs one."""

    @property
    def key(self) -> bytes | None:
        """One of its keys, or another one beside them: it says which server of a cluster is asked."""

    @property
    def pieces(self) -> tuple[bytes, bytes, bytes, bytes | None] | None:
        """What stands before the key of the slot, between that and its number, and after it, and the tag of the keys.

        None where it is the same for everybody.
        """

    def packed(self, slot: Slot, again: bool) -> bytes:
        """The bytes; `again` when it may have been executed before, without an answer."""


class Plain:
    """A command that may be executed twice."""

    __slots__ = ("_packed", "key")
    script: Script | None = None
    pieces: tuple[bytes, bytes, bytes, bytes | None] | None = None

    def __init__(self, *words: bytes) -> None:
        self.key: bytes | None = words[1]
        self._packed = command(*words)

    def packed(self, slot: Slot, again: bool) -> bytes:  # noqa: ARG002 - as `Call` has it
        """See `Call.packed`."""
        return self._packed


class Prepared:
    """A script with its keys and its plan, but for what differs from call to call.

    On a cluster all keys have one `tag`.
    """

    __slots__ = ("_numbers", "head", "key", "script", "tag", "tail")

    def __init__(
        self,
        script: Script,
        keys: Sequence[bytes],
        plan: bytes,
        *,
        numbers: int = 0,
        extra: int = 0,
        tag: bytes | None = None,
    ) -> None:
        self.script = script
        # Without keys there is still the record of the call, which is beside the scopes with the tag.
        self.key = keys[0] if keys else tag and b"{%s}" % tag
        self.tag = tag
        self._numbers = Struct(f"<{_HEADER + numbers}d")
        self.head = b"*%d\r\n$7\r\nEVALSHA\r\n%s%s" % (
            6 + len(keys) + extra,
            bulk(script.digest),
            bulk(b"%d" % (1 + len(keys))),
        )
        size = len(NUMBERED(0, 0)) + self._numbers.size
        self.tail = b"%s%s$%d\r\n" % (b"".join(map(bulk, keys)), bulk(plan), size)

    def call(self, numbers: Sequence[float], extra: bytes = b"") -> ScriptCall:
        """A call with its numbers, and further arguments as `bulk` writes them."""
        return ScriptCall(self, b"%s\r\n%s" % (self._numbers.pack(*numbers), extra))


class ScriptCall:
    """A call of a prepared script, with its `end`."""

    __slots__ = ("_prepared", "pieces")

    def __init__(self, prepared: Prepared, end: bytes) -> None:
        self._prepared = prepared
        self.pieces = prepared.head, prepared.tail, end, prepared.tag

    @property
    def script(self) -> Script:
        """See `Call.script`."""
        return self._prepared.script

    @property
    def key(self) -> bytes | None:
        """See `Call.key`."""
        return self._prepared.key

    def packed(self, slot: Slot, again: bool) -> bytes:
        """See `Call.packed`."""
        head, tail, end, tag = self.pieces
        if not again:
            slot.number += 1
        key = slot.key if tag is None else slot.at(tag)
        return b"".join((head, key, tail, NUMBERED(slot.number, again), end))
