"""Giving commands as a shell does, in this process, and the database of a site for other processes."""

from __future__ import annotations

import io
import shlex
import sqlite3
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import connection

from limits_app.management.commands.limits import Command


@dataclass(frozen=True)
class Ran:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str
    title: str = ""
    """What Django writes before an error."""

    @property
    def shown(self) -> str:
        """All that a shell shows."""
        return self.out + self.title + self.err


def run(line: str) -> Ran:
    """Give `manage.py limits` the words of a line."""
    return run_words(*shlex.split(line))


def run_words(*words: str) -> Ran:
    """Give `manage.py limits` these words, and take what argparse says too."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code, title = _end(Command(stdout=out, stderr=err, no_color=True), words)
    return Ran(code, out.getvalue(), err.getvalue(), title)


def _end(command: Any, words: tuple[str, ...]) -> tuple[int, str]:
    """The exit code, and what stands before the error, as in `BaseCommand.run_from_argv`."""
    command._called_from_command_line = True
    try:
        options = vars(command.create_parser("manage.py", "limits").parse_args(words))
        command.execute(**options)
    except CommandError as error:
        command.stderr.write(str(error))
        return error.returncode, f"{type(error).__name__}: "
    except SystemExit as end:
        return int(end.code or 0), ""
    return 0, ""


def migrated_database(file: Path) -> Path:
    """Copy the database of the tests, which has all tables, so that no process has to migrate its own."""
    connection.ensure_connection()
    with closing(sqlite3.connect(file)) as copy:
        connection.connection.backup(copy)
    return file
