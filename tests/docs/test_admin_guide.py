"""The administrator guide names buttons and fields as the admin does."""

from __future__ import annotations

import re
from typing import Final

from tests.docs.pages import DOCS, ROOT

DJANGO: Final = {"add pool", "by when", "go", "past 7 days"}
"""Labels of Django's admin."""
CODE: Final = re.compile(r"`[^`]*`")
LABEL: Final = re.compile(r"\*{1,2}([^*\n]+)\*{1,2}")
ADMIN: Final = ("admin/**/*.py", "models/*.py", "services/simple_limits.py", "templates/**/*.html")


def test_each_label_in_the_guide_is_in_the_admin() -> None:
    sources = [path.read_text().casefold() for pattern in ADMIN for path in (ROOT / "limits_app").glob(pattern)]
    known = " ".join(" ".join(sources).split())
    guide = CODE.sub("", (DOCS / "admin-guide.md").read_text())
    labels = {label.casefold() for label in LABEL.findall(guide)} - DJANGO
    assert len(labels) > 30
    assert sorted(label for label in labels if not re.search(rf"[\"'>] ?{re.escape(label)}", known)) == []


def test_the_pictures_of_the_docs_exist_and_are_small() -> None:
    named = {name for page in DOCS.glob("*.md") for name in re.findall(r"\(images/([^)]+)\)", page.read_text())}
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert named == set(sizes)
    assert max(sizes.values()) < 150_000
