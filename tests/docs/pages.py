"""The project's Markdown, read as far as the tests need it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/**/*.md")])
WITH_CODE: Final = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("howto/*.md")),
    *sorted(DOCS.glob("reference/*.md")),
]
WALKS: Final = (ROOT / "README.md", DOCS / "tutorial.md", DOCS / "celery.md", DOCS / "howto" / "per-plan.md")
"""Pages that build a project of their own, file by file; tests/packaging follows the first two."""

_FENCE: Final = re.compile(
    r"^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL
)
_FILE: Final = re.compile(r"# ((?:shop/)?\w+\.py)\n")
_HEADING: Final = re.compile(r"^#{1,6} +(?P<title>.+?) *#*$", re.MULTILINE)
_LINK: Final = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)(?: +\"[^\"]*\")?\)")
_INLINE_CODE: Final = re.compile(r"`+")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of code; `line` is that of its first line in the page."""

    page: Path
    line: int
    language: str
    text: str


def name(page: Path) -> str:
    """A page as people call it."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str, below: str | None = None) -> list[Block]:
    """The fenced blocks of some languages, in order; with `below` only those of one section."""
    text = page.read_text()
    begin, end = _section(text, below) if below else (0, len(text))
    return [
        Block(page, text.count("\n", 0, match.start()) + 2, match["language"], match["text"])
        for match in _FENCE.finditer(text)
        if match["language"] in languages and begin <= match.start() < end
    ]


def file_of(block: Block) -> str | None:
    """The file of the project into which a block belongs, where its page builds one."""
    match = _FILE.match(block.text) if block.page in WALKS else None
    return match[1] if match else None


def _section(text: str, heading: str) -> tuple[int, int]:
    begin = text.index(f"\n## {heading}\n")
    end = text.find("\n## ", begin + 1)
    return begin, len(text) if end < 0 else end


def prose(page: Path) -> str:
    """The page without blocks of code and comments."""
    return _COMMENT.sub("", _FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors that headings make, as the usual readers of Markdown do: a heading met again gets a number."""
    found: set[str] = set()
    for match in _HEADING.finditer(prose(page)):
        plain = _LINK.sub(lambda link: link["text"], match["title"])
        slug = re.sub(r"[^\w\- ]", "", _INLINE_CODE.sub("", plain).strip().lower()).replace(" ", "-")
        again = sum(1 for other in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", other))
        found.add(f"{slug}-{again}" if again else slug)
    return found


def links(page: Path) -> Iterator[str]:
    """The targets of all links, images included."""
    for match in _LINK.finditer(prose(page)):
        yield match["target"]


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page.read_text(), maxsplit=1, flags=re.MULTILINE)[1]
    table = re.search(r"^\|.*?(?=\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    assert table is not None, f"no table below {heading!r}"
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
