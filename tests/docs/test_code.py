"""The code of the documentation runs, as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from django.test import override_settings

from limits_app import conf
from tests.docs.pages import ROOT, WITH_CODE, Block, blocks, file_of, name
from tests.nested import WITHOUT_OTHERS

TEST_MODULES = [
    block for page in WITH_CODE for block in blocks(page, "python") if block.text.startswith(("# test_", "# conftest"))
]


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, site: ModuleType) -> None:
    for block in blocks(page, "python"):
        if file_of(block) is None:
            run(block, site)


def run(block: Block, site: ModuleType) -> None:
    """Run one block where the earlier ones ran; settings that it shows must be such as the app accepts."""
    site.__dict__.pop("LIMITS", None)
    padded = "\n" * (block.line - 1) + block.text
    exec(compile(padded, name(block.page), "exec"), site.__dict__)  # noqa: S102 - it is our own documentation
    if "LIMITS" in site.__dict__:
        with override_settings(LIMITS=site.__dict__["LIMITS"]):
            assert conf.problems() == []


def test_the_tests_that_pages_show_pass(tmp_path: Path) -> None:
    """Blocks that begin with the name of a file are put into it; of the suite, a part says that it is run at all."""
    for block in TEST_MODULES:
        file = tmp_path / block.text.split("\n", 1)[0].removeprefix("# ")
        assert not file.exists(), f"{file.name} is there twice"
        file.write_text(block.text)
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": str(ROOT)}
    options = [
        "-q",
        "-p",
        "limits_app.testing.plugin",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        "-o",
        "markers=slow",
        "-k",
        "test_reports or timeline",
    ]
    command = [sys.executable, "-m", "pytest", *WITHOUT_OTHERS, *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
