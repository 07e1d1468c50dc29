"""The complete project of the page about Celery: its files are written, and its commands are given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, file_of
from tests.servers.redis import redis_server

PAGE = DOCS / "celery.md"
SECTION = "A complete project"


@pytest.mark.release  # a site, a worker and a server are started, which takes ten seconds
def test_two_tasks_are_done_and_the_third_one_waits(tmp_path: Path) -> None:
    lines = "".join(block.text for block in blocks(PAGE, "console", below=SECTION)).splitlines()
    _install, start, *commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    with redis_server() as server:
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"} | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "REDIS_URL": server.url.removesuffix("/0"),
        }
        subprocess.run(start, shell=True, cwd=tmp_path, env=environment, check=True)  # noqa: S602 - it is our own page
        for block in blocks(PAGE, "python", below=SECTION):
            with (tmp_path / str(file_of(block))).open("a") as file:
                file.write(f"\n{block.text}")
        printed = tmp_path / "printed"
        with printed.open("wb") as output:
            shell = subprocess.Popen(
                ["bash", "-e", "-c", "\n".join(commands)],
                cwd=tmp_path,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            assert shell.wait(60) == 0, printed.read_text()
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert lines[-1] == "RETRY SUCCESS SUCCESS"
    assert lines[-1] in printed.read_text()
