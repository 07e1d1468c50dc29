"""Databases for sites that run as programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psycopg

from tests.servers.postgres import PostgresServer

_ROOT = Path(__file__).parents[2]
_SECONDS = 120
_PATIENCE_SECONDS = 20


def database(server: PostgresServer, name: str) -> dict[str, object]:
    """The settings of a new database."""
    own = {**server.settings, "NAME": name}
    address = {"host": str(own["HOST"]), "port": str(own["PORT"]), "user": str(own["USER"])}
    with psycopg.connect(**address, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]  # a name of the tests
    return own


def seen(program: str, databases: object, *arguments: str) -> dict[str, Any]:
    """What a program prints."""
    command = [sys.executable, "-m", f"tests.tenants.{program}", json.dumps(databases), *arguments]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def until(is_true: Callable[[], object]) -> bool:
    """Wait for what a background thread does; returns whether it has come true in time."""
    ends = monotonic() + _PATIENCE_SECONDS
    while not is_true():
        if monotonic() > ends:
            return False
        sleep(0.05)
    return True
