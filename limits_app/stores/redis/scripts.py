"""The scripts: one for each verb, put together from the twins of the algorithms that it needs.

A twin's file is what all verbs share, and sections that start with a line such as `-- @take` or `-- @settle undo`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

from limits_app.core.counting import HOUR_US, KEPT_HOURS

__all__ = ["COUNTING", "KEPT_US", "SOFT", "Script", "script"]

KEPT_US: Final = (KEPT_HOURS + 1) * HOUR_US
"""How long counts are kept that nobody collects."""

_FOLDER: Final = Path(__file__).parent
_NEEDS: Final = {"token_bucket": ("draining",), "leaky_bucket": ("draining",)}
_MARK: Final = "-- @"
SOFT: Final = "soft"
"""Among twins: some of the limits are soft, so that to acquire may be to settle."""
COUNTING: Final = "counting"
"""Among twins: what they charge in some of the scopes is counted."""

_TABLES: Final = ("open", "take", "settle", "view", "share")
"""What twins put their functions into; a table that nobody needs is not made, since a script begins anew each time."""

_KEPT: Final = f"local kept_us = {KEPT_US}"


class _Verb(NamedTuple):
    """What stands before the twins, which of their sections are wanted, and what follows.

    `functions` stand between: each has a head, and files for its body. The files that count are left out of scripts
    that count nothing.
    """

    before: str | None
    sections: frozenset[str]
    after: tuple[str, ...]
    functions: tuple[tuple[str, tuple[str, ...]], ...] = ()


_READ: Final = "read"
"""In the place of a file: the lines that read the record of a scope."""

_SCOPES: Final = ("scopes", _READ, "scoped", "keeping")
_COUNT: Final = ("count", "closing", "hour")
"""What counts; where an hour ends, and only there, it makes the function that closes it."""

_ACQUIRE: Final = (*_SCOPES, "acquire", *_COUNT, "admit")
_SETTLE: Final = (*_SCOPES, "settle", *_COUNT, "settled")
_DECIDE: Final = ("decide(at, KEYS, wanted, recorded)", _ACQUIRE)
_VERBS: Final = {
    "acquire": _Verb("before_acquire", frozenset({"take"}), _ACQUIRE),
    # On one server of a cluster: the reply ends with the records as they were before.
    "join": _Verb("before_join", frozenset({"take"}), _ACQUIRE),
    "choose": _Verb("before_acquire", frozenset({"take"}), ("choose", "in_order"), (_DECIDE,)),
    "choose_emptiest": _Verb(
        "before_acquire",
        frozenset({"take", "share"}),
        ("choose", "emptiest"),
        (_DECIDE, ("share_of(at, moved)", ("share",))),
    ),
    "settle": _Verb("before_settle", frozenset({"settle"}), _SETTLE),
    # What was charged a moment ago, on one server of a cluster, while another one refused.
    "undo": _Verb("before_settle", frozenset({"undo"}), _SETTLE),
    # What no claim holds.
    "credit": _Verb("before_settle", frozenset({"credit"}), _SETTLE),
    "swap": _Verb(None, frozenset(), ("swap", "closing", "count", "hour", "swapped")),
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
    reading = _sections(COUNTING if COUNTING in twins else "reading", sections)
    if SOFT in twins and "take" in sections:
        sections |= {"settle"}
    needed = {name for twin in twins for name in _NEEDS.get(twin, ())}
    parts = [_sections(name, sections) for name in (*sorted(needed), *sorted(twins - {SOFT, COUNTING}))]
    bodies = ["\n".join([f"local function {head}", _body(files, twins, reading), "end"]) for head, files in functions]
    beginning = [_read(name) for name in ("prelude", "writing", before) if name]
    tables = ["{}" if any(f"{name}." in part for part in parts) else "nil" for name in _TABLES]
    beginning.append(f"local {', '.join(_TABLES)} = {', '.join(tables)}")
    if COUNTING in twins:
        beginning.append(_KEPT)
    return Script("\n".join([*beginning, *parts, *bodies, _body(after, twins, reading)]))


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


def _body(files: Iterable[str], twins: AbstractSet[str], reading: str) -> str:
    wanted = [name for name in files if name not in _COUNT or COUNTING in twins]
    return "\n".join([reading if name == _READ else _read(name) for name in wanted])


def _sections(twin: str, wanted: AbstractSet[str]) -> str:
    """What a twin's file says to everybody, and its sections for one verb."""
    shared, *sections = _read(twin).split(_MARK)
    parted = [section.partition("\n") for section in sections]
    return shared + "".join([text for marks, _, text in parted if not wanted.isdisjoint(marks.split())])
