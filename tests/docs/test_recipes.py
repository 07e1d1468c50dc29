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
from redis import Redis

from limits_app import limits
from limits_app.engine.limits import CallLimit
from limits_app.stores.redis import acl_rules
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


@pytest.mark.parametrize("user", ["", "shop"])
def test_a_store_behind_a_sentinel_counts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, transactional_db: None, user: str
) -> None:
    page = DOCS / "howto" / "docker-and-kubernetes.md"
    block = next(block for block in blocks(page, "python") if "SentinelClient" in block.text)
    with redis_sentinel() as (primary, _, sentinel), Redis(port=primary.port) as administrator:
        shown: dict[str, Any] = {"os": os}
        if user:
            monkeypatch.setenv("REDIS_PASSWORD", "secret")
            administrator.execute_command("ACL SETUSER", user, "on", ">secret", *acl_rules("shop:"))
        exec(block.text, shown)  # noqa: S102 - it is our own documentation
        cache = shown["CACHES"]["default"]
        cache["OPTIONS"]["SENTINELS"] = [("127.0.0.1", sentinel.port)]
        cache["LOCATION"] = cache["LOCATION"].replace("//", f"//{user}@") if user else cache["LOCATION"]
        settings.CACHES, settings.LIMITS = shown["CACHES"], shown["LIMITS"]
        twice = CallLimit(2, 3_600)
        admitted = [limits.try_acquire("mail", default_limits=[twice]).successful for _ in range(3)]
        denied = {entry["object"] for entry in administrator.acl_log()}
    assert admitted == [True, True, False]
    assert denied <= {"client"}
