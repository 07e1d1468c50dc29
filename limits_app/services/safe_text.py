"""Text from visitors in files and on terminals: CSV without formulas, and text without control characters."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Final

_GUARD: Final = "'"
_SIGNS: Final = frozenset("=+-@＝＋－＠")  # noqa: RUF001 - spreadsheets read full-width signs as signs
_STARTS: Final = frozenset("\t\r\n")
_ESCAPED: Final = re.compile(r"\\(?:\\|n|r|t|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def csv_text(columns: Iterable[object], rows: Iterable[Sequence[object]]) -> str:
    """A CSV file in which no text is a formula or has a control character; numbers and empty cells are as they are."""
    return "".join(csv_lines(columns, rows))


def csv_lines(columns: Iterable[object], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The rows of such a file, which are made while they are written."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for row in chain([[*columns]], rows):
        writer.writerow(map(_csv_cell, row))
        yield written.getvalue()
        written.seek(0)
        written.truncate()


def _csv_cell(cell: object) -> object:
    if isinstance(cell, Decimal):
        return f"{cell:f}"
    return guarded(cell) if isinstance(cell, str) else cell


def guarded(text: str) -> str:
    r"""The text of a cell; what a spreadsheet could execute has an apostrophe before it, and escapes such as `\x1b`."""
    return _GUARD + printable(text.replace("\\", "\\\\"), but="\n\t") if _is_guarded(text) else text


def unguarded(cell: str) -> str:
    """The text of which `guarded` makes this cell."""
    text = _unescaped(cell[1:])
    return text if cell.startswith(_GUARD) and _is_guarded(text) else cell


def _is_guarded(text: str) -> bool:
    """Whether a text could be a formula, has control characters, or would be read as a text that is guarded."""
    first = text.lstrip()[:1]
    if first in _SIGNS or text[:1] in _STARTS:
        return True
    lines = text.replace("\r\n", "\n")  # as forms send them
    if printable(lines, but="\n\t") != lines:
        return True
    return text.startswith(_GUARD) and _is_guarded(_unescaped(text[1:]))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: match[0].encode("ascii").decode("unicode_escape"), text)


def printable(text: str, *, but: str = "") -> str:
    """Escape control characters, because identifiers come from untrusted clients; those in `but` stay."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in but else character.encode("unicode_escape").decode()
        for character in text
    )


def json_text(data: object, *, default: Callable[[Any], object] | None = None, ensure_ascii: bool = False) -> str:
    """JSON for people, in which control characters are escaped; the options are those of `json.dumps`."""
    text = json.dumps(data, indent=2, default=default, ensure_ascii=ensure_ascii)
    return "".join(
        character if character.isprintable() or character == "\n" else f"\\u{ord(character):04x}" for character in text
    )
