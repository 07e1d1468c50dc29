"""The README and the tutorial work for a person who has nothing else: they are followed command by command."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pytest

from tests.docs.pages import DOCS, ROOT, Block, blocks, file_of, name
from tests.packaging.environments import clean_environment
from tests.servers.machine import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.release]

SECTION: Final = "Quickstart"
FIVE_MINUTES: Final = 300.0
CLONED: Final = "limits-app"
"""What the README calls the clone."""

_NOT_CLONED: Final = shutil.ignore_patterns(
    ".*", "__pycache__", "mutants", "build", "dist", "*.sqlite3*", "node_modules"
)


class Shell:
    """A shell into which somebody types, in a folder; what it prints is on its way back, command by command."""

    def __init__(self, typed: IO[str], printed: IO[str], port: int) -> None:
        self._typed = typed
        self._printed = printed
        self._port = port
        self._done = 0

    def run(self, command: str) -> str:
        """Give a command and wait until it is done; gives what it printed. AssertionError if it failed."""
        command = command.replace("8000", str(self._port)).replace("runserver &", f"runserver {self._port} &")
        self._done += 1
        end = f"--done-{self._done}-"
        self._typed.write(f"{command}\necho; echo {end}$?\n")
        self._typed.flush()
        printed = ""
        for line in self._printed:
            if line.startswith(end):
                assert line.removeprefix(end).strip() == "0", f"$ {command}\n{printed}"
                break
            printed += line
        else:
            raise AssertionError(f"the shell ended with $ {command}\n{printed}")
        if command.endswith("&"):
            self._wait_for_the_server()
        return printed

    def _wait_for_the_server(self) -> None:
        """As people do, who see in their terminal when it listens."""
        for _ in range(600):
            with socket.socket() as visitor:
                if visitor.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("no server came up within 30 seconds")


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    """Open a shell in a folder, in an environment in which nothing is set up; what it started ends with the block."""
    assert shutil.which("curl"), "the README asks with curl: install it, for example by apt-get install curl"
    environment = clean_environment(folder)
    path = [
        str(Path(sys.base_prefix) / "bin"),
        *(part for part in environment["PATH"].split(":") if "venv" not in part),
    ]
    with subprocess.Popen(
        ["bash"],
        cwd=folder,
        env=environment | {"PATH": ":".join(path), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Shell(process.stdin, process.stdout, free_ports()[0])
        finally:
            os.killpg(process.pid, signal.SIGKILL)


_LOGGED: Final = re.compile(r"\[\d\d/\w{3}/\d{4} ")


def clone(folder: Path) -> None:
    """Put the repository where the README expects it."""
    shutil.copytree(ROOT, folder / CLONED, ignore=_NOT_CLONED)


def follow(page: Path, typist: Shell, folder: Path, *, below: str | None = None) -> None:
    """Do what a page says, from its top or `below` a heading on; what it shows as printed has to be printed."""
    for block in blocks(page, "console", "python", below=below):
        file = file_of(block)
        if block.language == "console":
            _type(block, typist)
        elif file is not None:
            with (folder / file).open("a") as written:
                written.write(f"\n\n{block.text}")


def _type(block: Block, typist: Shell) -> None:
    for command, *expected in _commands(block.text):
        printed = typist.run(command)
        # The log of a server that runs beside may go on where a page without a last line break ends.
        lines = _LOGGED.sub(r"\n\g<0>", printed).splitlines()
        for line in expected:
            found = next((at for at, one in enumerate(lines) if _matches(line, one)), None)
            assert found is not None, f"{name(block.page)}: $ {command}\nprinted no {line!r}, but\n{printed}"
            lines = lines[found + 1 :] if _is_ordered(expected) else lines


def _commands(text: str) -> Iterator[list[str]]:
    """Each command with the lines that it is to print."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        yield part.splitlines()


def _matches(shown: str, printed: str) -> bool:
    return re.fullmatch(re.escape(shown).replace(re.escape("..."), ".*"), printed.strip()) is not None


def _is_ordered(expected: list[str]) -> bool:
    """Headers come in any order; everything else in that of the page."""
    return not any(": " in line for line in expected)


def test_a_newcomer_sees_a_first_refusal_within_five_minutes(tmp_path: Path) -> None:
    clone(tmp_path)
    begun = time.monotonic()
    with shell(tmp_path) as typist:
        follow(ROOT / "README.md", typist, tmp_path, below=SECTION)
        assert time.monotonic() - begun < FIVE_MINUTES
        follow(DOCS / "tutorial.md", typist, tmp_path)
