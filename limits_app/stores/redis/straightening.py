"""Straight scripts: what goes round loops for any request, written out for requests of one shape.

The names that a script has for each of its scopes are fields of tables by `index` or `scope`; here they are locals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["Shape", "straightened"]

_MOST_SCOPES: Final = 2
_MOST_LIMITS: Final = 3
"""Servers keep each script that they have seen: beyond these there are too many shapes for what they gain."""

_LOOP: Final = re.compile(r"^for (index|ask) = 1, (?:count|scopes|asks) do\n((?:.*\n)*?)end\n", re.MULTILINE)
_BY_SCOPE: Final = re.compile(r"^local ((?:\w+, )*\w+) = \{\}(?:, \{\})*\n", re.MULTILINE)


class Shape(NamedTuple):
    """How many scopes a request has, and of each of its limits the number of its scope and the name of its twin."""

    scopes: int
    limits: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, scopes: int, limits: Sequence[tuple[int, str]]) -> Shape | None:
        """The shape of a request; None when it is too large to be written out."""
        return cls(scopes, tuple(limits)) if 0 < scopes <= _MOST_SCOPES and len(limits) <= _MOST_LIMITS else None

    @property
    def is_one_limit(self) -> bool:
        """Whether a request has one limit in one scope."""
        return self.scopes == len(self.limits) == 1


def straightened(text: str, shape: Shape) -> str:
    """A text with its loops over scopes and limits written out; they stand at the beginning of lines."""
    text = _BY_SCOPE.sub(lambda found: _locals(found[1], shape), text)
    return _LOOP.sub(lambda found: "".join(_rounds(found[1], found[2], shape)), text)


def _locals(names: str, shape: Shape) -> str:
    own = [f"{name}_{scope}" for scope in range(1, 1 + shape.scopes) for name in names.split(", ")]
    return f"local {', '.join(own)}\n"


def _rounds(counter: str, body: str, shape: Shape) -> list[str]:
    if counter == "index":
        return [_block(re.sub(r"\bindex\b", str(place), _fields(body, "index", place))) for place in _numbers(shape)]
    return [_block(_fields(body, "scope", scope).replace("[name]", f".{twin}")) for scope, twin in shape.limits]


def _numbers(shape: Shape) -> range:
    return range(1, 1 + shape.scopes)


def _fields(body: str, counter: str, place: int) -> str:
    return re.sub(rf"\b(\w+)\[{counter}\]", rf"\1_{place}", body)


def _block(body: str) -> str:
    return f"do\n{body}end\n"
