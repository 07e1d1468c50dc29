"""The benchmark of real traffic measures what it says: the sites, the load and the programs, in tiny rounds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.load import Target, python_load, wrk_load
from benchmarks.server import served, traffic
from benchmarks.site import PATH, USER_HEADER, Site

pytestmark = pytest.mark.product

GENERATORS = [python_load] + [wrk_load] * (shutil.which("wrk") is not None)
IN_MEMORY = {"KIND": "memory"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site.on_sqlite() as site:
        yield site


@pytest.mark.release
def test_contenders_take_turns_under_load(site: Site) -> None:
    contenders = {"throttle": replace(site, view="our throttle"), "limited": site.limited(IN_MEMORY)}
    samples = traffic(contenders, [3], rounds=1, seconds=0.3, load=python_load)
    for name in contenders:
        [turn] = samples[3].turns[name]
        assert 0 < turn.figure < (turn.p99 or 0)
    assert samples[3].speed("limited", "throttle").median > 0


@pytest.mark.release
def test_load_fails_where_the_named_user_is_rejected(site: Site) -> None:
    site.run("rows_of_users", 1, 1)
    with served(site.limited()) as server:
        rejected = Target(server.port, PATH, USER_HEADER, first=1, users=1)
        for generator in GENERATORS:
            assert generator(replace(rejected, first=2), 0.1).requests > 0
            with pytest.raises(AssertionError, match=r"429|failed"):
                generator(rejected, 0.1)


@pytest.mark.release
def test_writing_is_measured() -> None:
    with Site.on_sqlite() as site:
        written = site.run("written", 2)
    with Site.on_sqlite() as site:
        applied = site.run("applied", 3)
    assert [len(times) for times in written.values()] == [2, 2]
    assert min(applied.values()) > 0


@pytest.mark.release
def test_first_requests_are_measured(site: Site) -> None:
    in_memory = site.limited(IN_MEMORY)
    site.run("entities", 10)
    assert in_memory.run("memory", 30)["bytes"] > 0
    assert len(in_memory.run("first_requests", 3)["request"]["second"]) == 3
    site.run("rows_of_users", 2, 1000)
    assert min(in_memory.run("first_acquires", 1, 2)["queries"]) > 0
    assert in_memory.run("unmatched", 3)["calls"] is None
    others = site.run("others", 2, 3)
    assert [len(others[kind]["rest"]) for kind in ("changed", "rolled back")] == [2, 2]
    assert others["queries"] == [0, 0]
