"""The scripts: one for each verb, put together from the twins of the algorithms that it needs.

A twin's file is what all verbs share, and sections that start with a line such as `-- @take` or `-- @settle undo`.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["SOFT", "Script", "script"]

_FOLDER: Final = Path(__file__).parent
_NEEDS: Final = {"token_bucket": ("draining",), "leaky_bucket": ("draining",)}
_MARK: Final = "-- @"
SOFT: Final = "soft"
"""Among twins: some of the limits are soft, so that to acquire may be to settle."""


class _Verb(NamedTuple):
    """What stands before the twins, which of their sections are wanted, and what follows.

    `functions` stand between: each has a head, and files for its body.
    """

    before: str
    sections: frozenset[str]
    after: tuple[str, ...]
    functions: tuple[tuple[str, tuple[str, ...]], ...] = ()


_ACQUIRE: Final = ("scopes", "keeping", "acquire")
_SETTLE: Final = ("scopes", "keeping", "settle")
_VERBS: Final = {
    "acquire": _Verb("before_acquire", frozenset({"take"}), _ACQUIRE),
    # On one server of a cluster: the reply ends with the records as they were before.
    "join": _Verb("before_join", frozenset({"take"}), _ACQUIRE),
    "choose": _Verb(
        "before_acquire",
        frozenset({"take", "share"}),
        ("choose",),
        (("decide(at, KEYS, wanted, recorded)", _ACQUIRE), ("share_of(at, KEYS, wanted)", ("scopes", "share"))),
    ),
    "settle": _Verb("before_settle", frozenset({"settle"}), _SETTLE),
    # What was charged a moment ago, on one server of a cluster, while another one refused.
    "undo": _Verb("before_settle", frozenset({"undo"}), _SETTLE),
}


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
    before, sections, after, functions = _VERBS[verb]
    if SOFT in twins and "take" in sections:
        sections |= {"settle"}
    needed = {name for twin in twins for name in _NEEDS.get(twin, ())}
    parts = [_sections(name, sections) for name in (*sorted(needed), *sorted(twins - {SOFT}))]
    bodies = ["\n".join([f"local function {head}", *map(_read, files), "end"]) for head, files in functions]
    return Script("\n".join([*map(_read, ("prelude", "writing", before)), *parts, *bodies, *map(_read, after)]))


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


def _sections(twin: str, wanted: AbstractSet[str]) -> str:
    """What a twin's file says to everybody, and its sections for one verb."""
    shared, *sections = _read(twin).split(_MARK)
    parted = [section.partition("\n") for section in sections]
    return shared + "".join([text for marks, _, text in parted if not wanted.isdisjoint(marks.split())])
