"""The directory of a demo site, and its management commands."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from project.demo import DemoFailed

__all__ = ["ROOT", "Place"]

ROOT: Final = Path(__file__).resolve().parents[2]
_COMMAND_SECONDS: Final = 60
_NOT_OURS: Final = ("GUNICORN_CMD_ARGS", "WEB_CONCURRENCY", "DJANGO_SETTINGS_MODULE")
"""Environment variables that would change the site."""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory with the files of a site: database, state of limits, log."""

    directory: Path
    debug: bool = False
    sends_alerts: bool = False

    @property
    def log(self) -> Path:
        """The log of the server."""
        return self.directory / "server.log"

    @property
    def mail(self) -> Path:
        """Where the mails of alerts are files."""
        return self.directory / "mail"

    def environment(self) -> dict[str, str]:
        """The environment for every process of the site."""
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        return (
            kept
            | {
                "DJANGO_SETTINGS_MODULE": "project.settings",
                "LIMITS_DEMO_DATABASE": str(self.directory / "db.sqlite3"),
                "LIMITS_DEMO_STATE_DIR": str(self.directory / "state"),
                "LIMITS_DEMO_DEBUG": "true" if self.debug else "false",
                "PYTHONUNBUFFERED": "1",
            }
            | ({"LIMITS_DEMO_MAIL_DIR": str(self.mail)} if self.sends_alerts else {})
        )

    def manage(self, *arguments: str, **environment: str) -> str:
        """Run a command of `manage.py` and return its output. Raises DemoFailed with its output if it fails."""
        try:
            done = subprocess.run(
                [sys.executable, "manage.py", *arguments],
                cwd=ROOT,
                env=self.environment() | environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise DemoFailed(f"manage.py {arguments[0]} failed:\n{error.stderr or error.stdout}") from error
        except subprocess.TimeoutExpired as error:
            raise DemoFailed(f"manage.py {arguments[0]} took longer than {_COMMAND_SECONDS} seconds") from error
        return done.stdout
