"""The tests of a project that has installed the app: unchanged, in sessions of their own, by Django's test runner."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copy, rmtree
from typing import Any, Final

import pytest

from tests.servers.postgres import postgres_server

ROOT: Final = Path(__file__).resolve().parents[2]
HOST: Final = Path(__file__).parent / "host"
SECONDS: Final = 120

pytestmark = pytest.mark.timeout(240)


class Project:
    """The host project with a development database and settings of its own."""

    def __init__(self, database: dict[str, Any], state: Path, store: str = "process") -> None:
        self._command = [sys.executable, str(HOST / "manage.py")]
        stores = {"default": {"KIND": store}}
        self._environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "SHOP_DATABASE": json.dumps(database),
            "SHOP_LIMITS": json.dumps({"STATE_DIR": str(state), "STORES": stores}),
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            [*self._command, *arguments],
            cwd=HOST,
            env=self._environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        """Run a command to its end and return its output; it must succeed."""
        return output_of(self.start(*arguments))


def output_of(command: subprocess.Popen[str]) -> str:
    """Return the output of a command that must succeed."""
    output, _ = command.communicate(timeout=SECONDS)
    assert command.returncode == 0, output
    return output


def on_sqlite(directory: Path) -> Project:
    """A project on SQLite with the default store."""
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(directory / "shop.sqlite3")}
    return Project(database, directory / "state")


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A development database with the tables of a project on SQLite."""
    directory = tmp_path_factory.mktemp("migrated")
    on_sqlite(directory).run("migrate", "--verbosity", "0")
    return directory / "shop.sqlite3"


@pytest.fixture
def sqlite(migrated: Path, tmp_path: Path) -> Project:
    """A project on SQLite whose development database has its tables."""
    copy(migrated, tmp_path)
    return on_sqlite(tmp_path)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project on PostgreSQL with its store there."""
    with postgres_server() as server:
        project = Project(server.settings, tmp_path_factory.mktemp("state"), store="database")
        project.run("migrate", "--verbosity", "0")
        yield project


@pytest.mark.release
def test_suite_passes_again_and_again(sqlite: Project, tmp_path: Path) -> None:
    rmtree(tmp_path / "state", ignore_errors=True)
    for _ in range(2):
        assert "OK" in sqlite.run("test", "shop")
    with sqlite3.connect(tmp_path / "shop.sqlite3") as connection:
        for table in ("denial", "usagesnapshot", "codelimits"):
            assert connection.execute(f"SELECT count(*) FROM limits_app_{table}").fetchone() == (0,)  # noqa: S608
    assert not (tmp_path / "state").exists()


def test_suite_passes_in_parallel_and_in_any_order(sqlite: Project) -> None:
    assert "OK" in sqlite.run("test", "shop", "--parallel", "2", "--shuffle", "7")


@pytest.mark.release
@pytest.mark.parametrize("options", [[], ["--parallel", "2"]])
def test_suite_passes_on_a_database_store(postgres: Project, options: list[str]) -> None:
    # Django drops the test database at the end, which fails while a connection is open.
    assert "OK" in postgres.run("test", "shop", "--noinput", *options)


@pytest.mark.release
def test_two_runs_at_the_same_time_share_nothing(sqlite: Project, postgres: Project) -> None:
    for output in map(
        output_of, [sqlite.start("test", "shop") for _ in range(2)] + [postgres.start("test", "shop", "--noinput")]
    ):
        assert "OK" in output


@pytest.mark.parametrize("missing", ["host", "mail", "outbox", "setting"])
def test_parts_of_a_test_environment_are_no_test_runner(missing: str, tmp_path: Path) -> None:
    lines = {
        "host": "settings.ALLOWED_HOSTS = ['testserver']",
        "mail": "settings.EMAIL_BACKEND = 'django.core.mail.backends.locmem.EmailBackend'",
        "outbox": "mail.outbox = []",
    }
    code = f"""
import django
from django.core import mail
from django.conf import settings
settings.configure(INSTALLED_APPS=['limits_app'], LIMITS={{'TESTING': {missing != "setting"}}})
django.setup()
{chr(10).join(line for name, line in lines.items() if name != missing)}
from limits_app.conf import test_runner
assert test_runner.current_test() is None
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_detected_test_runner_is_a_warning_of_a_deployment(sqlite: Project) -> None:
    code = """
from django.core.management import call_command
from django.test.utils import setup_test_environment
setup_test_environment()
call_command("check", "--deploy", "--tag", "limits_app")
"""
    assert "limits_app.W068" in sqlite.run("shell", "-c", code)


def test_rejections_of_tests_are_never_written(sqlite: Project, tmp_path: Path) -> None:
    code = """
from django.test.utils import setup_test_environment, teardown_test_environment
from limits_app import CallLimit, limits
from limits_app.usage.denial_counter import denials
setup_test_environment()
limits.acquire("orders", default_limits=[CallLimit.per_hour(1)]).release()
assert not limits.try_acquire("orders", default_limits=[CallLimit.per_hour(1)])
assert denials.waiting == 1
teardown_test_environment()
denials.flush()
"""
    sqlite.run("shell", "-c", code)
    with sqlite3.connect(tmp_path / "shop.sqlite3") as connection:
        assert connection.execute("SELECT count(*) FROM limits_app_denial").fetchone() == (0,)
