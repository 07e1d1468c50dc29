"""The scripts: one for each verb, put together from the twins of the algorithms that it needs.

A twin's file is what all verbs share, and sections that start with a line such as `-- @take` or `-- @settle undo`.
A verb's file has other files in it, where a line such as `-- with: keeping` stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

from limits_app.core.counting import HOUR_US, KEPT_HOURS
from limits_app.stores.redis.straightening import Shape, straightened

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
"""What twins put their functions into. A script begins anew each time, so it makes no table and no function in vain."""

_KEPT: Final = f"local kept_us = {KEPT_US}\n"

_WITH: Final = re.compile(r"^ *-- with: (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*\n|^\n| +--.*$", re.MULTILINE)
_FUNCTION: Final = re.compile(r"^local function (\w+)\(.*\n(?:.*\n)*?end\n", re.MULTILINE)
_STRAIGHT: Final = ("acquire", "settle")
_NEEDED_BY: Final[Mapping[str, str]] = {"open": "open.", "restoring": "restores = "}
"""Files that are left out where no twin says this."""


class _Verb(NamedTuple):
    """The file of the verb, which sections of the twins are wanted, and what stands before them.

    Files `without` which it goes are left out, as are those that count where nothing is counted.
    """

    file: str
    sections: frozenset[str] = frozenset()
    before: str = ""
    without: frozenset[str] = frozenset()


_TAKE: Final = frozenset({"take"})
_VIEW: Final = frozenset({"view"})
"""What goes where a request is refused."""
_ROOM: Final = frozenset({"usual"})
_ONE: Final = frozenset({"telling", "recording"})
_VERBS: Final = {
    "acquire": _Verb("acquire", _TAKE, without=frozenset({"telling"})),
    # On one server of a cluster: the reply ends with the records as they were before.
    "join": _Verb("acquire", _TAKE),
    "choose": _Verb("in_order", _TAKE, without=_ONE),
    "choose_emptiest": _Verb("emptiest", _TAKE | {"share"}, without=_ONE),
    "settle": _Verb("settle", frozenset({"settle"}), before="before_settle"),
    # What was charged a moment ago, on one server of a cluster, while another one refused.
    "undo": _Verb("settle", frozenset({"undo"}), before="before_settle"),
    # What no claim holds.
    "credit": _Verb("settle", frozenset({"credit"}), before="before_settle"),
    "swap": _Verb("swap"),
}


class Script:
    """The text of a script, and the digest by which a server knows it."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = _without_unused(_COMMENT.sub("", text)).encode()
        self.digest = sha1(self.text, usedforsecurity=False).hexdigest().encode()


@lru_cache(maxsize=1024)
def script(verb: str, twins: frozenset[str] | None = None, shape: Shape | None = None) -> Script:
    """The script of a verb; one that decides over scopes needs the twins of their limits, by name.

    With a `shape` it is one for requests of this shape only, which decides faster.
    """
    if twins is None:
        return Script(_prelude() + _read(verb))
    file, sections, before, without = _VERBS[verb]
    reading = _sections(COUNTING if COUNTING in twins else "reading", sections)
    if SOFT in twins and "take" in sections:
        sections |= {"settle"}
    needed = {name for twin in twins for name in _NEEDS.get(twin, ())}
    files = (*sorted(needed), *sorted(twins - {SOFT, COUNTING}))
    parts = "".join([_shared(name) + _sections(name, sections) for name in files])
    given = {"reading": reading, "view": "".join([_sections(name, _VIEW) for name in files])}
    without |= {name for name, said in _NEEDED_BY.items() if said not in parts}
    without |= set() if given["view"] else {"views"}
    without |= set() if COUNTING in twins else {"count"}
    instead = {"shares": "shares_of_one"} if shape and shape.is_one_limit else {}

    def text(name: str) -> str:
        """What stands in the place of a file's name."""
        if name in given:
            return given[name]
        found = "" if name in without else _filled(_read(instead.get(name, name)), text)
        return straightened(found, shape) if shape and name in _STRAIGHT else found

    tables = ["{}" if f"{name}." in parts else "nil" for name in _TABLES]
    usual = _usual(files) if verb == "acquire" and COUNTING in twins and shape and shape.is_one_limit else ""
    beginning = [_prelude(usual), _read("writing"), before and _read(before)]
    beginning.append(f"local {', '.join(_TABLES)} = {', '.join(tables)}\n")
    if COUNTING in twins:
        beginning.append(_KEPT)
    return Script("".join([*beginning, parts, text(file)]))


def _prelude(usual: str = "") -> str:
    return _filled(_read("prelude"), lambda name: usual if name == "usual" else _read(name))


def _usual(files: Sequence[str]) -> str:
    """What decides most requests of one limit that is counted; nothing where its twin has no such section."""
    room = "".join([_sections(name, _ROOM) for name in files])
    return room and _filled(_read("usual"), lambda name: room if name == "room" else _read(name))


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


def _filled(text: str, filled: Callable[[str], str]) -> str:
    return _WITH.sub(lambda found: filled(found[1]), text)


def _shared(twin: str) -> str:
    """What a twin's file says to everybody."""
    return _read(twin).partition(_MARK)[0]


def _sections(twin: str, wanted: AbstractSet[str]) -> str:
    """Its sections for one verb."""
    parted = [section.partition("\n") for section in _read(twin).split(_MARK)[1:]]
    return "".join([text for marks, _, text in parted if not wanted.isdisjoint(marks.split())])


def _without_unused(text: str) -> str:
    """A script without those of its functions that nothing calls."""
    unused = [found for found in _FUNCTION.finditer(text) if len(re.findall(rf"\b{found[1]}\b", text)) == 1]
    for found in reversed(unused):
        text = text[: found.start()] + text[found.end() :]
    return _without_unused(text) if unused else text
