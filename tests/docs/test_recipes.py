"""The projects and the stores that pages show work: with Celery, with FastAPI and behind a sentinel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from limits_app import limits
from limits_app.engine.limits import CallLimit
from tests.docs.pages import DOCS, ROOT, blocks, file_of
from tests.servers.redis import redis_sentinel, redis_server

pytestmark = pytest.mark.product

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


@pytest.mark.release  # a site is made and migrated, which takes some seconds
def test_keys_have_the_plan_of_the_groups_of_their_user(tmp_path: Path) -> None:
    page, section = DOCS / "howto" / "per-plan.md", "API keys with the plans of groups"
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    lines = "".join(block.text for block in blocks(page, "console", below=section)).splitlines()
    _install, start, *commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    subprocess.run(start, shell=True, cwd=tmp_path, env=environment, check=True)  # noqa: S602 - it is our own page
    for block in blocks(page, "python", below=section):
        with (tmp_path / str(file_of(block))).open("a") as file:
            file.write(f"\n{block.text}")
    command = ["bash", "-e", "-c", "\n".join(commands)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = [line for line in lines if not line.startswith("$ ")]
    assert done.stdout.splitlines()[-len(expected) :] == expected


def test_limit_sets_limit_fastapi_without_settings() -> None:
    code = [block.text for block in blocks(DOCS / "howto" / "fastapi.md", "python")]
    without_django = code[: next(number for number, text in enumerate(code) if "django.setup()" in text)]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", "\n".join(without_django)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_store_behind_a_sentinel_counts(settings: Settings, transactional_db: None) -> None:
    page = DOCS / "howto" / "docker-and-kubernetes.md"
    block = next(block for block in blocks(page, "python") if "SentinelClient" in block.text)
    shown: dict[str, Any] = {"os": os}
    exec(block.text, shown)  # noqa: S102 - it is our own documentation
    with redis_sentinel() as (*_, sentinel):
        shown["CACHES"]["default"]["OPTIONS"]["SENTINELS"] = [("127.0.0.1", sentinel.port)]
        settings.CACHES, settings.LIMITS = shown["CACHES"], shown["LIMITS"]
        twice = CallLimit(2, 3_600)
        admitted = [limits.try_acquire("mail", default_limits=[twice]).successful for _ in range(3)]
    assert admitted == [True, True, False]
