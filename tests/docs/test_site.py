"""The site of the documentation: it builds without a warning, and its reference is complete."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from limits_app.management.limits.subcommand import ExitCode
from tests.docs import algorithms_picture
from tests.docs.pages import DOCS, ROOT, rows

REFERENCE = DOCS / "reference" / "index.md"
GENERATED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
PUBLIC = {
    (module, name)
    for module in ("limits_app", "limits_app.services", "limits_app.testing", "limits_app.signals")
    for name in importlib.import_module(module).__all__
} - {("limits_app", "limits")}
"""The service is a name too, and has a page of its own."""
PICTURES = sorted(DOCS.glob("pictures/*.svg"))


@pytest.mark.release
def test_the_site_builds_with_warnings_as_errors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference" / "index.html").read_text()
    assert "limits_app.services.acquire.acquire" in page
    assert fetched_from_elsewhere(page) == set()


def fetched_from_elsewhere(page: str) -> set[str]:
    """What a browser would load from other hosts."""
    return set(re.findall(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//[^"]*"', page)) | set(
        re.findall(r'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(?:https?:)?//[^"]*"', page)
    )


def test_the_reference_has_every_public_name() -> None:
    generated = set(GENERATED.findall(REFERENCE.read_text()))
    listed = {path.rpartition(".")[2] for path in generated} | {name for path in generated for name in names_of(path)}
    assert sorted(f"{module}.{name}" for module, name in PUBLIC if name not in listed) == []


def names_of(path: str) -> list[str]:
    """What a module exports of which all is on a page."""
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError:
        return []
    names = vars(module).get("__all__")
    return names or [name for name, value in vars(module).items() if isinstance(value, type) and name[0] != "_"]


def test_the_page_lists_the_exit_codes_of_the_code() -> None:
    shown = [(int(code), name.strip("`")) for code, name, _ in rows(DOCS / "commands.md", "Exit codes")]
    assert shown == [(code.value, code.name) for code in ExitCode]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_pictures_have_a_text_alternative(picture: Path) -> None:
    drawing = ET.parse(picture).getroot()  # noqa: S314 - it is our own
    described = [drawing.findtext(f"{{http://www.w3.org/2000/svg}}{part}") for part in ("title", "desc")]
    assert all(described)


def test_picture_of_the_algorithms_shows_the_decisions_of_the_engine() -> None:
    advice = "draw it again: python -m tests.docs.algorithms_picture"
    assert algorithms_picture.PICTURE.read_text() == algorithms_picture.drawn(), advice
