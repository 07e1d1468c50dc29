"""Commands as they are sent, and the scripts that they call. No input or output here.

A script is prelude.lua, the files of the algorithms and of all else that it needs, and the file of its verb,
concatenated in this order. It runs as a whole in every call, so it has no file that the plan does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from struct import Struct
from typing import Any, Final

from limits_app.stores.redis.states import LUA_ALGORITHMS

CARRYING: Final = frozenset(["carry", *LUA_ALGORITHMS])
"""What scripts need to read states of every rule."""
KEEP: Final = "keep"
"""The file that scripts need for requests that leave a share of a limit free; it comes after those of algorithms."""
_TIMES: Final = Struct("<2d")
"""What the numbers of every call start with; see prelude.lua."""


@lru_cache(maxsize=1024)
def _script(verb: str, files: frozenset[str] = frozenset()) -> tuple[str, str]:
    """Return the script of a verb, and the digest by which servers know it.

    `files` are the algorithms of limits and other files: `usage` for scopes that count, `carry` to read states of every
    rule, `own_keys` for logs and leases, and `keep`, which changes the algorithms for requests that leave a share free.
    """
    needed = {file for name in files for file in (LUA_ALGORITHMS[name].files if name in LUA_ALGORITHMS else (name,))}
    folder = Path(__file__).parent
    text = "\n".join([(folder / f"{name}.lua").read_text() for name in ("prelude", *sorted(needed, key=_order), verb)])
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


def _order(file: str) -> tuple[bool, str]:
    return file == KEEP, file


def _packed(words: Iterable[bytes]) -> bytes:
    """Return words in the protocol of the server."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _encoded(word: bytes | str | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


class RedisCommand:
    """A command, and its key."""

    is_sent = False
    """Whether the server may have received it, where connections for tasks need to know."""

    def __init__(self, *words: bytes | str) -> None:
        self._words: tuple[Any, ...] = words

    def keys(self) -> Sequence[bytes]:
        """Return all keys of it; a cluster finds the server by the first one."""
        key = self._words[1]
        return [key if isinstance(key, bytes) else key.encode()]

    def words(self) -> tuple[Any, ...]:
        """Return the command and its arguments."""
        return self._words

    def packed(self) -> bytes:
        """Return the command in the protocol of the server."""
        return b"*%d\r\n" % len(self._words) + _packed(map(_encoded, self._words))

    def words_with_text(self) -> tuple[Any, ...]:
        """Return the same with the text of the script, if it is one, for a server that does not know its digest."""
        return self.words()


class ScriptFrame:
    """What the calls of a script have in common that differ in `key_count` keys, which are between the `first` ones and
    the `last` ones. On a cluster, all keys of a call have one tag.
    """

    def __init__(
        self,
        verb: str,
        files: frozenset[str],
        plan: bytes,
        *,
        key_count: int,
        first: Sequence[bytes] = (),
        last: Sequence[bytes] = (),
    ) -> None:
        self._verb, self._files, self._plan = verb, files, plan
        self.first, self.last, self._key_count = first, last, key_count
        self.text, digest = _script(verb, files)
        keys = len(first) + key_count + len(last)
        self.word_count = 4 + keys
        self.begin: tuple[bytes | str | int, ...] = ("EVALSHA", digest, keys, *first)
        """The words before the keys that differ."""
        self.end = (*last, plan)
        """The words after these keys."""
        self.packed_begin = _packed(map(_encoded, self.begin))
        self.packed_end = _packed(self.end)
        self._carrying: ScriptFrame | None = None

    def carrying(self, log_count: int) -> ScriptFrame:
        """Return the same with a script that reads states of every rule, for calls with the keys of so many logs."""
        frame = self._carrying
        if frame is None:
            count = self._key_count + log_count
            files = self._files | CARRYING
            frame = ScriptFrame(self._verb, files, self._plan, key_count=count, first=self.first, last=self.last)
            self._carrying = frame
        return frame


class PreparedScript:
    """A script with its keys and its plan, and the arguments that are the same in every call."""

    def __init__(self, frame: ScriptFrame, keys: Sequence[bytes], arguments: tuple[bytes, ...] = ()) -> None:
        self.frame, self.arguments = frame, arguments
        self._own_keys = keys
        # What calls begin and end with, in the protocol of the server: most differ in their numbers only.
        self.packed_begin = frame.packed_begin + _packed(keys) + frame.packed_end
        self.packed_end = _packed(arguments)
        self.word_count = frame.word_count + len(arguments)

    def keys(self) -> Sequence[bytes]:
        """Return all keys."""
        return [*self.frame.first, *self._own_keys, *self.frame.last]

    def head(self) -> tuple[bytes | str | int, ...]:
        """Return the words that calls begin with."""
        return (*self.frame.begin, *self._own_keys, *self.frame.end)

    def carrying(self, logs: Sequence[bytes]) -> PreparedScript:
        """Return the same with a script that reads states of every rule.

        `logs` are the keys of those that its limits may have had under other rules.
        """
        return PreparedScript(self.frame.carrying(len(logs)), [*self._own_keys, *logs], self.arguments)


class ScriptCall(RedisCommand):
    """A call of a prepared script with its times, its numbers, and further arguments.

    The times are when it is executed, below 0 for the time of the server, and when the claim that it settles was
    charged.
    """

    def __init__(
        self, prepared: PreparedScript, times: tuple[int, int], numbers: bytes = b"", arguments: Sequence[bytes] = ()
    ) -> None:
        self._prepared = prepared
        self._numbers = _TIMES.pack(*times) + numbers
        self._arguments = arguments

    def words(self) -> tuple[Any, ...]:
        return (*self._prepared.head(), self._numbers, *self._prepared.arguments, *self._arguments)

    def packed(self) -> bytes:
        prepared, numbers = self._prepared, self._numbers
        packed = b"*%d\r\n%b$%d\r\n%b\r\n%b" % (
            prepared.word_count + 1 + len(self._arguments),
            prepared.packed_begin,
            len(numbers),
            numbers,
            prepared.packed_end,
        )
        return packed + _packed(self._arguments) if self._arguments else packed

    def keys(self) -> Sequence[bytes]:
        return self._prepared.keys()

    def words_with_text(self) -> tuple[Any, ...]:
        return ("EVAL", self._prepared.frame.text, *self.words()[2:])
