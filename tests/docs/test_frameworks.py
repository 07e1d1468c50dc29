"""The recipe for FastAPI works in a process without Django's settings, as far as it says so."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.docs.pages import DOCS, ROOT, blocks


def test_limit_sets_limit_fastapi_without_settings() -> None:
    code = [block.text for block in blocks(DOCS / "howto" / "fastapi.md", "python")]
    without_django = code[: next(number for number, text in enumerate(code) if "django.setup()" in text)]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", "\n".join(without_django)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
