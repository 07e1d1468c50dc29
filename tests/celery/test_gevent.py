"""A Celery worker with a gevent pool: tasks that wait for a limit in their greenlet keep no other task waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.celery.site import CelerySite, celery_site

pytestmark = pytest.mark.product

WAITING = 6
SECONDS = 60


@pytest.fixture(scope="module")
def site() -> Iterator[CelerySite]:
    """A site with one worker of many greenlets."""
    with celery_site() as site:
        site.prepare()
        site.start_worker(50, "--pool=gevent")
        site.until_ready()
        yield site


def test_tasks_that_wait_in_a_greenlet_let_others_run(site: CelerySite) -> None:
    waiting = [site.send("wait_for_desk", number) for number in range(WAITING)]
    said = [site.send("say", number) for number in range(20)]
    assert sorted(result.get(SECONDS) for result in said) == list(range(20))
    assert sorted(result.get(SECONDS) for result in waiting) == list(range(WAITING))
    assert len(site.lines("sat")) == WAITING
    last_said = max(moment for _, moment in site.lines("said"))
    last_sat = max(moment for _, moment in site.lines("sat"))
    assert last_said < last_sat, "the others did not wait for the desk"


def test_limited_tasks_run_under_gevent(site: CelerySite) -> None:
    results = [site.send("work", "bulk", number) for number in range(60)]
    assert sorted(result.get(SECONDS) for result in results) == list(range(60))
    held = [site.send("hold", 0.05) for _ in range(3)]
    assert [result.get(SECONDS) for result in held] == [0, 0, 0]
