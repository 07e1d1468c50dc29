"""The scripts: one for each verb, put together from the twins of the algorithms that it needs.

A twin's file is what all verbs share, and sections that start with `-- @take`, `-- @settle` or `-- @undo`.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import Final

__all__ = ["Script", "script"]

_FOLDER: Final = Path(__file__).parent
_NEEDS: Final = {"token_bucket": ("draining",), "leaky_bucket": ("draining",)}
_VERBS: Final = {
    "acquire": ("before_acquire", "take", "acquire"),
    # On one server of a cluster: the reply ends with the records as they were before.
    "join": ("before_join", "take", "acquire"),
    "settle": ("before_settle", "settle", "settle"),
    # What was charged a moment ago, on one server of a cluster, while another one refused.
    "undo": ("before_settle", "undo", "settle"),
}
"""What stands before the twins, which sections of them, and what follows."""
_MARK: Final = "-- @"


class Script:
    """The text of a script, and the digest by which a server knows it."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.digest = sha1(self.text, usedforsecurity=False).hexdigest().encode()


@lru_cache(maxsize=1024)
def script(verb: str, twins: frozenset[str] | None = None) -> Script:
    """The script of a verb; one that decides over scopes needs the twins of their limits, by name."""
    if twins is None:
        return Script("\n".join([_read("prelude"), _read(verb)]))
    first, section, last = _VERBS[verb]
    needed = {name for twin in twins for name in _NEEDS.get(twin, ())}
    sections = [_sections(name, section) for name in (*sorted(needed), *sorted(twins))]
    return Script("\n".join([*map(_read, ("prelude", "writing", first)), *sections, _read("scopes"), _read(last)]))


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


def _sections(twin: str, wanted: str) -> str:
    """What a twin's file says to everybody, and its sections for one verb."""
    shared, *sections = _read(twin).split(_MARK)
    return shared + "".join(text.partition("\n")[2] for text in sections if wanted in text.partition("\n")[0].split())
