"""The code of the documentation, checked by mypy and pyright as the code of a user."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import ROOT, WITH_CODE, blocks, file_of, name

pytestmark = pytest.mark.product

COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
MYPY: Final = """
[mypy]
plugins = mypy_django_plugin.main
check_untyped_defs = True
allow_redefinition = True
disable_error_code = import-untyped, no-redef
[mypy.plugins.django-stubs]
django_settings_module = project.settings
"""
PYRIGHT: Final = {"extraPaths": [str(ROOT)], "reportMissingModuleSource": False, "reportRedeclaration": False}
OF_OTHERS: Final = {
    "assert app.register_task(Summarize())",  # Celery has no types
    "connection.schema_name",  # of django-tenants, which has no types
    "exception_handlers={LimitExceeded: rejected}",  # Starlette takes handlers of every exception only
    "summarize.using(",  # a decorated function is a task
}
"""Code whose errors are about the types of other packages."""

Errors = dict[tuple[str, int], str]
"""The message for each page and line."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module for each page, whose lines are those of the page."""
    folder = tmp_path_factory.mktemp("pages")
    for page in WITH_CODE:
        lines = [""] * (page.read_text().count("\n") + 1)
        for block in blocks(page, "python"):
            if file_of(block) is None:
                code = block.text.splitlines()
                lines[block.line - 1 : block.line - 1 + len(code)] = code
        (folder / module_of(page)).write_text("\n".join(lines) + "\n")
    return folder


def module_of(page: Path) -> str:
    return re.sub(r"\W", "_", name(page)) + ".py"


def in_visible_code(errors: Errors) -> list[str]:
    """The errors in code that readers see, and that are about types of the package."""
    shown = []
    for page in WITH_CODE:
        text = page.read_text()
        hidden = {
            number
            for comment in COMMENT.finditer(text)
            for number in range(text.count("\n", 0, comment.start()), text.count("\n", 0, comment.end()) + 2)
        }
        for (module, line), message in errors.items():
            code = text.splitlines()[line - 1] if module == module_of(page) else ""
            if module == module_of(page) and line not in hidden and not any(other in code for other in OF_OTHERS):
                shown.append(f"{name(page)}:{line}: {message}: {code.strip()}")
    return shown


def test_mypy_accepts_the_code_of_the_pages(folder: Path) -> None:
    (folder / "mypy.ini").write_text(MYPY)
    cache = ROOT / ".mypy_cache" / "pages"
    options = ["--config-file=mypy.ini", "--follow-imports=silent", f"--cache-dir={cache}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *sorted(path.name for path in folder.glob("*.py"))],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^(\w+\.py):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1].startswith(("Found", "Success")), done.stdout + done.stderr
    assert in_visible_code({(module, int(line)): message for module, line, message in found}) == []


def test_pyright_accepts_the_code_of_the_pages(folder: Path) -> None:
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(WITH_CODE)
    errors = {
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1): found["message"].splitlines()[0]
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    }
    assert in_visible_code(errors) == []
