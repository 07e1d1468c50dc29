"""One site with a real broker and two real workers for all tests of this folder that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.celery.site import CelerySite, celery_site


@pytest.fixture(scope="session")
def shared_site() -> Iterator[CelerySite]:
    with celery_site() as site:
        site.prepare()
        site.start_worker(processes=2)
        site.start_worker(processes=2)
        site.until_ready()
        yield site


@pytest.fixture
def site(shared_site: CelerySite) -> CelerySite:
    """The same for everybody, with an empty diary."""
    shared_site.diary.flushdb()
    return shared_site
