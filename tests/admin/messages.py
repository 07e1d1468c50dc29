"""Bring the translations up to date with the texts of the app: python -m tests.admin.messages.

New texts are added without a translation, and those that are gone are dropped; then the catalogues are compiled.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

from limits_app.engine.limits import RateLimitAlgorithm
from limits_app.engine.periods import NAMES, QuotaPeriod

APP = Path(__file__).resolve().parents[2] / "limits_app"
CATALOGUES = sorted((APP / "locale").glob("*/LC_MESSAGES/django.po"))
_FUNCTIONS = {"_": None, "gettext": None, "gettext_lazy": None, "ngettext": (1, 2), "ngettext_lazy": (1, 2)}
_HEADERS = ("Language", "MIME-Version", "Content-Type", "Content-Transfer-Encoding", "Plural-Forms")
_NO_DATE = datetime(2000, 1, 1, tzinfo=UTC)
"""In place of the time of this run, so that the same texts are the same file."""

Text = str | tuple[str, ...]
"""A text, or its singular and plural."""


def texts() -> Iterator[Text]:
    """The texts of modules and templates that are marked for translation, and the names of algorithms and periods."""
    for path in sorted(APP.rglob("*.py")):
        yield from _marked(path.read_bytes())
    for path in sorted((APP / "templates").rglob("*.html")):
        code = templatize(path.read_text(encoding="utf-8"), origin=str(path))
        yield from _marked("\n".join(line.lstrip() for line in code.splitlines()).encode())
    yield from [algorithm.label for algorithm in RateLimitAlgorithm]
    yield from dict.fromkeys([*map(str, QuotaPeriod), *NAMES.values()])


def read(path: Path) -> Catalog:
    """Read a catalogue; its folder names the language."""
    with path.open("rb") as file:
        return read_po(file, locale=path.parents[1].name)


def template() -> Catalog:
    """Return a catalogue of all texts, without translations."""
    catalog = Catalog()
    for text in texts():
        catalog.add(text)
    return catalog


def updated(path: Path, found: Catalog) -> bytes:
    """Return what a catalogue contains with exactly the texts of a template."""
    catalog = read(path)
    catalog.update(found, no_fuzzy_matching=True)
    catalog.obsolete.clear()
    messages = io.BytesIO()
    write_po(messages, catalog, no_location=True, width=0, omit_header=True)
    headers = dict(catalog.mime_headers)
    header = "".join(f'"{name}: {headers[name]}\\n"\n' for name in _HEADERS)
    return f'msgid ""\nmsgstr ""\n{header}\n'.encode() + messages.getvalue()


def compiled(path: Path) -> bytes:
    """Return a catalogue in the form that the app reads."""
    catalog = read(path)
    catalog.creation_date = catalog.revision_date = _NO_DATE
    machine = io.BytesIO()
    write_mo(machine, catalog)
    return machine.getvalue()


def main() -> None:
    """Update and compile all catalogues."""
    found = template()
    for path in CATALOGUES:
        path.write_bytes(updated(path, found))
        path.with_suffix(".mo").write_bytes(compiled(path))


def _marked(code: bytes) -> Iterator[Text]:
    for _line, text, _comments, _context in extract("python", io.BytesIO(code), _FUNCTIONS):
        yield text


if __name__ == "__main__":
    main()
