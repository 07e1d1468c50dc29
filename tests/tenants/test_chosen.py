"""Sites that choose a schema or a database for each request."""

from __future__ import annotations

from pathlib import Path

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
    assert support.seen("chosen_site", databases, "schemas") == EXPECTED


def test_databases_that_a_router_chooses_are_apart(tmp_path: Path) -> None:
    engine = "django.db.backends.sqlite3"
    databases = {name: {"ENGINE": engine, "NAME": str(tmp_path / name)} for name in ("default", "bolt")}
    assert support.seen("chosen_site", databases, "databases") == EXPECTED
