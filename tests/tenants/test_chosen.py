"""Sites that choose a schema or a database for each request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.postgres import PostgresServer
from tests.tenants import support

EXPECTED = {
    "admitted": [2, 10],
    "known": [True, True],
    "others": [2, 3],
    "rejections": [{"user:1": 10, "user:2": 10}, {"user:1": 2, "user:2": 9}],
    "usage": [{"user:1": 2, "user:2": 2}, {"user:1": 10, "user:2": 3}],
}


def test_schemas_of_a_search_path_are_apart(server: PostgresServer) -> None:
    databases = {"default": support.database(server, "search_path")}
    assert support.seen("chosen_site", databases, "schemas", "entered") == EXPECTED


def two_databases(directory: Path) -> dict[str, dict[str, str]]:
    """The settings of two databases."""
    engine = "django.db.backends.sqlite3"
    return {name: {"ENGINE": engine, "NAME": str(directory / name)} for name in ("default", "bolt")}


def test_databases_that_a_router_chooses_are_apart(tmp_path: Path) -> None:
    assert support.seen("chosen_site", two_databases(tmp_path), "databases", "entered") == EXPECTED


@pytest.mark.release
def test_threads_that_cannot_enter_a_database_write_to_it(tmp_path: Path) -> None:
    found = support.seen("chosen_site", two_databases(tmp_path), "databases", "")
    assert found == {name: value for name, value in EXPECTED.items() if name != "known"}
