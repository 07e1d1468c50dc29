r"""Spellings: the paths that a program may understand by the path of a request.

Programs differ in what they resolve: nginx and Go merge empty segments, the URL standard (Node, Deno, WHATWG) does not,
and takes `\` for `/`, and servlets leave out what follows a `;`. Some decode `%2F` before they look for segments, and
others after. A limit applies if one of them understands its path, otherwise a client could choose a spelling without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import normpath
from typing import Final
from urllib.parse import unquote_to_bytes

_MAY_DIFFER: Final = re.compile(rb"%2f|//|/\.|[\\;#]|%5c|%3b|%2e", re.IGNORECASE)
"""What makes programs understand different paths."""
_ENCODED_SLASH: Final = re.compile(rb"%(?=2f)", re.IGNORECASE)
_PARAMETERS: Final = re.compile(r";[^/]*")
_DOTS: Final = ("/", "/.", "/..")
"""How paths of folders end."""


def spellings_of(path: bytes) -> list[str]:
    """Return the paths that programs may understand by a path that is not decoded yet, without its query."""
    if _MAY_DIFFER.search(path) is None:
        return ["/" + _decoded(path).lstrip("/")]
    return [*dict.fromkeys(_spellings(path))]


def spellings_of_text(path: str) -> list[str]:
    """Return the paths that programs may understand by a path that the server has decoded."""
    return [*dict.fromkeys(_understood(path))]


def _spellings(path: bytes) -> Iterator[str]:
    for part in dict.fromkeys((path.partition(b"#")[0], path)):  # Go takes a `#` as a character of the path
        yield from _understood(_decoded(part))
        if _ENCODED_SLASH.search(part) is not None:
            yield from _understood(_decoded(_ENCODED_SLASH.sub(b"%25", part)))


def _understood(path: str) -> Iterator[str]:
    """The paths that programs understand by a decoded path."""
    path = "/" + path.lstrip("/")
    yield path
    yield _merged(path)
    yield _resolved(path)
    if "\\" in path:
        slashed = path.replace("\\", "/")
        yield _resolved(slashed)
        yield _merged(slashed)
    if ";" in path:
        yield _merged(_PARAMETERS.sub("", path))


def _decoded(path: bytes) -> str:
    return unquote_to_bytes(path).decode(errors="replace")


def _merged(path: str) -> str:
    """Return a path without dots and empty segments, as nginx understands it."""
    normal = normpath("/" + path.lstrip("/"))
    return normal + "/" if path.endswith(_DOTS) and normal != "/" else normal


def _resolved(path: str) -> str:
    """Return a path without dots, but with its empty segments, as the URL standard says."""
    segments: list[str] = []
    for segment in path[1:].split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment != ".":
            segments.append(segment)
    if path.endswith(_DOTS[1:]):
        segments.append("")
    return "/" + "/".join(segments)
