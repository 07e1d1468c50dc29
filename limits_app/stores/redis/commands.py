"""Commands as they are sent, and the scripts that they call. No input or output here.

A script is prelude.lua, the algorithms that it needs, and the file of its verb, concatenated in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from hashlib import sha1
from pathlib import Path
from struct import Struct
from typing import Any, Final

_FILES: Final = dict.fromkeys(["token_bucket", "leaky_bucket"], "buckets")
"""The file of each algorithm, by the name in `Rule.lua`, where it has another name."""
CARRYING: Final = frozenset(["buckets", "carry", "fixed_window", "permits", "quota", "sliding_window"])
"""What scripts need to read states of every rule."""
_TIMES: Final = Struct("<2d")
"""What the numbers of every call start with; see prelude.lua."""


@lru_cache(maxsize=1024)
def _script(verb: str, algorithms: frozenset[str] = frozenset()) -> tuple[str, str]:
    """Return the script of a verb for limits of these algorithms, and the digest by which servers know it.

    `usage` is an algorithm of scopes that count.
    """
    needed = {_FILES.get(name, name) for name in algorithms}
    folder = Path(__file__).parent
    text = "\n".join([(folder / f"{name}.lua").read_text() for name in ("prelude", *sorted(needed), verb)])
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


def _packed(word: bytes | str | int) -> bytes:
    encoded = word if isinstance(word, bytes) else str(word).encode()
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)


class Command:
    """A command; `key` is one of its keys, by which a cluster finds the server. `text` is that of a script."""

    text = ""
    is_sent = False
    """Whether the server may have received it, where connections for tasks need to know."""

    def __init__(self, *words: bytes | str) -> None:
        self._words: tuple[Any, ...] = words
        self.key = words[1] if isinstance(words[1], bytes) else words[1].encode()

    def keys(self) -> Sequence[bytes]:
        """Return all keys of it."""
        return [self.key]

    def words(self) -> tuple[Any, ...]:
        """Return the command and its arguments."""
        return self._words

    def packed(self) -> bytes:
        """Return the command in the protocol of the server."""
        return b"*%d\r\n" % len(self._words) + b"".join(map(_packed, self._words))

    def words_with_text(self) -> tuple[Any, ...]:
        """Return the same with the text of the script, for a server that does not know its digest."""
        return ("EVAL", self.text, *self.words()[2:])


class PreparedScript:
    """A script with its keys and its plan. On a cluster, all keys have one tag.

    `find_logs` returns the keys of the logs that its limits may have had under other rules.
    """

    def __init__(
        self,
        verb: str,
        files: frozenset[str],
        keys: Sequence[bytes],
        plan: bytes,
        *,
        find_logs: Callable[[], Sequence[bytes]] = list,
    ) -> None:
        self._verb, self._files, self._plan, self._find_logs = verb, files, plan, find_logs
        self.text, self._digest = _script(verb, files)
        self.key = keys[0] if keys else b""
        self.keys = keys
        self.head_count = 4 + len(keys)
        self.packed_head = b"".join(map(_packed, self.head()))
        """What calls begin with, in the protocol of the server: most differ in their numbers only."""

    def head(self) -> tuple[bytes | str | int, ...]:
        """Return the words that calls begin with."""
        return ("EVALSHA", self._digest, len(self.keys), *self.keys, self._plan)

    @cached_property
    def carrying(self) -> PreparedScript:
        """The same with a script that reads states of every rule."""
        end = len(self.keys) - 2 * ("usage" in self._files)  # the keys of usage are the last ones
        keys = [*self.keys[:end], *self._find_logs(), *self.keys[end:]]
        return PreparedScript(self._verb, self._files | CARRYING, keys, self._plan)


class ScriptCall(Command):
    """A call of a prepared script with its times, its numbers, and further arguments.

    The times are when it is executed, below 0 for the time of the server, and when the claim that it settles was
    charged.
    """

    def __init__(
        self, prepared: PreparedScript, times: tuple[int, int], numbers: bytes = b"", arguments: Sequence[bytes] = ()
    ) -> None:
        self.text, self.key = prepared.text, prepared.key
        self._prepared = prepared
        self._arguments = (_TIMES.pack(*times) + numbers, *arguments)

    def words(self) -> tuple[Any, ...]:
        return (*self._prepared.head(), *self._arguments)

    def packed(self) -> bytes:
        prepared, arguments = self._prepared, self._arguments
        count = prepared.head_count + len(arguments)
        return b"*%d\r\n%b%b" % (count, prepared.packed_head, b"".join(map(_packed, arguments)))

    def keys(self) -> Sequence[bytes]:
        return self._prepared.keys
