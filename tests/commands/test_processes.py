"""Commands in processes of their own, as shells start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from limits_app import limits
from limits_app.engine.limits import RateLimit
from limits_app.management.commands.limits import SUBCOMMANDS
from limits_app.management.limits.subcommand import Subcommand
from tests.commands.running import run
from tests.docs.pages import ROOT
from tests.replacing import type_in

COMMAND = [sys.executable, str(ROOT / "manage.py"), "limits"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A site of its own, with a database that nobody has migrated."""
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "LIMITS_DEMO_DATABASE": str(tmp_path / "db.sqlite3"),
        "LIMITS_DEMO_STATE_DIR": str(tmp_path / "state"),
    }


@contextmanager
def started(environment: Mapping[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs until the block ends, at most."""
    with subprocess.Popen(
        [*COMMAND, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # nothing, if it has ended


def test_a_site_from_its_first_minute_to_ctrl_c(environment: Mapping[str, str]) -> None:
    with started(environment, "resource", "set", "api", "rpm=5/min") as early:
        _, err = early.communicate(timeout=300)
        assert (early.returncode, "manage.py migrate" in err, "Traceback" in err) == (1, True, False)
    migrate = [sys.executable, str(ROOT / "manage.py"), "migrate", "-v0"]
    subprocess.run(migrate, env=environment, check=True, cwd=ROOT, timeout=300)
    with started(environment, "resource", "set", "api", "rpm=5/min", "--format", "csv") as setting:
        out, err = setting.communicate(timeout=300)
        assert (setting.returncode, err) == (0, "")
        assert out.endswith("create,policy resource api,limit rpm,,rpm=5/min\n")
    with started(environment, "top", "--interval", "1h") as top:
        assert top.stdout is not None
        assert top.stdout.readline().split()[:2] == ["resource", "entity"]
        top.stdout.readline()
        top.send_signal(signal.SIGINT)
        _, err = top.communicate(timeout=300)
        assert (top.returncode, "Traceback" in err) == (0, False)


def test_a_reader_that_has_seen_enough_is_no_error_worth_a_traceback(environment: Mapping[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [*COMMAND, "export", "--schema"]
    with subprocess.Popen(
        words, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        os.close(writing)
        _, err = process.communicate(timeout=300)
        assert (process.returncode, err) == (1, "")


def test_a_full_disk_is_reported_without_a_traceback(environment: Mapping[str, str]) -> None:
    words = [*COMMAND, "export", "--schema"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            words, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=300, check=False
        )
    assert (done.returncode, done.stderr) == (1, "CommandError: Reading or writing failed: No space left on device.\n")


def test_interrupting_a_confirmation_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            raise KeyboardInterrupt

    limits.set_resource_limits("api", [RateLimit("rpm", 5, 60)])
    type_in(monkeypatch, Impatient())
    ran = run("resource delete api")
    assert (ran.code, ran.err.endswith("Interrupted.\n")) == (130, True)
    assert run("resource get api").code == 0


def leaves(subcommands: Mapping[str, Subcommand], path: str = "") -> dict[str, Subcommand]:
    """Every subcommand that runs, by its words."""
    found: dict[str, Subcommand] = {}
    for name, one in subcommands.items():
        words = f"{path} {name}".strip()
        found |= leaves(one.verbs, words) if one.verbs else {words: one}
    return found


def test_help_shows_examples_that_could_be_given() -> None:
    for words, subcommand in leaves(SUBCOMMANDS).items():
        helped = run(f"{words} --help")
        assert helped.code == 0, words
        assert subcommand.examples, words
        for example in subcommand.examples:
            assert example.startswith(words)
            assert f"  manage.py limits {example}\n" in helped.out
        assert "exit codes: 0 success" in helped.out, words
