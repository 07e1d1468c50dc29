"""Sites with django-tenants: each tenant has counters of its own, and limits of its own where it has the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.servers.postgres import PostgresServer
from tests.tenants import support

pytestmark = pytest.mark.product


def seen(server: PostgresServer, directory: Path, place: str, what: str) -> dict[str, Any]:
    """What the tenants of a site in a database of its own see."""
    own = support.database(server, f"{place}_{what}")
    return support.seen("tenant_site", own, str(directory), place, what)


def test_each_schema_with_tables_has_limits_of_its_own(server: PostgresServer, tmp_path: Path) -> None:
    found = seen(server, tmp_path, "tenant", "configuration")
    assert found == {
        "admitted": [2, 10],
        "known": [True, True],
        "queries of acme": 0,
        "after a change": [0, 10],
        "others": [2, 20],
        "in a task": [[False, True], [False, True]],
    }


def test_schemas_without_tables_share_limits_and_count_apart(server: PostgresServer, tmp_path: Path) -> None:
    found = seen(server, tmp_path, "shared", "configuration")
    assert {**found, "queries of acme": 0} == {
        "admitted": [2, 2],
        "known": [True, True],
        "queries of acme": 0,
        "after a change": [3, 3],
        "others": [5, 5],
        "in a task": [[False, True], [False, True]],
    }


def test_rules_and_blocks_are_those_of_the_tenant(server: PostgresServer, tmp_path: Path) -> None:
    assert seen(server, tmp_path, "tenant", "web") == {
        "before": [[200, 200], [200, 200]],
        "after": [[200, 200, 429], [200, 200, 200]],
        "in tasks": [[429, 429], [200, 200]],
        "blocked": [[429], [403]],
    }


@pytest.mark.release
def test_shared_rules_count_apart_and_shared_blocks_are_for_all(server: PostgresServer, tmp_path: Path) -> None:
    assert seen(server, tmp_path, "shared", "web") == {
        "before": [[200, 200], [200, 200]],
        "after": [[200, 200, 429], [200, 200, 429]],
        "in tasks": [[429, 429], [429, 429]],
        "blocked": [[403], [403]],
    }


@pytest.mark.release
def test_usage_and_rejections_are_written_where_they_were_counted(server: PostgresServer, tmp_path: Path) -> None:
    assert seen(server, tmp_path, "tenant", "background") == {
        "rejections": [{"user:acme": 2}, {"user:bolt": 3}],
        "before": [{}, {}],
        "after one": [{"user:acme": 1}, {}],
        "notes": ["namespace acme:", "namespace bolt:"],
        "after all": [{"user:acme": 1}, {"user:bolt": 1}],
        "named": "entity,bucket,key,admitted,rejected,rejected_share\nuser:bolt,entity,call_count,1,3,0.75\n",
    }
