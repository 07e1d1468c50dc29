"""Applies a limits file, and is sent a signal in the middle of writing limits: `python -m ... FILE SIGNAL`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django

django.setup()

from django.core.management import execute_from_command_line  # noqa: E402 - after Django is set up
from django.db import connection  # noqa: E402 - likewise


def main(file: str, name: str) -> None:
    def interrupt(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        done = execute(sql, params, many, context)
        if sql.startswith('INSERT INTO "limits_app_limit"'):
            os.kill(os.getpid(), signal.Signals[name])
        return done

    with connection.execute_wrapper(interrupt):
        execute_from_command_line(["manage.py", "limits", "apply", file])


if __name__ == "__main__":
    main(*sys.argv[1:])
