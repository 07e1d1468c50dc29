"""The demo site, served by its own processes to a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from project.demo.place import Place
from project.demo.server import Server
from tests.browser.chromium import DESKTOP, Browser, browser
from tests.browser.seed import ADMIN


class RestrictedPlace(Place):
    """A site that forbids what does not come from itself."""

    __slots__ = ()

    def environment(self) -> dict[str, str]:
        """The environment for every process of the site."""
        return {**Place.environment(self), "DJANGO_SETTINGS_MODULE": "tests.browser.settings"}


def new_site(directory: Path) -> Place:
    """A site of its own in a directory, with the data that it starts with."""
    place = RestrictedPlace(directory, debug=True)
    fill_site(place)
    return place


def fill_site(place: Place) -> None:
    """Create the database of a site, with the data that it starts with."""
    place.manage("migrate", "--verbosity=0")
    place.manage("shell", "--verbosity=0", "--command", "from tests.browser.seed import seed; seed()")


@contextmanager
def logged_in(place: Place) -> Iterator[Browser]:
    """A browser of an administrator who is logged in."""
    with Server(place) as server, browser(server.address.url, place.directory / "profile") as window:
        window.log_in(ADMIN)
        yield window


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The site of all modules that leave its limits in force."""
    return new_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def served(place: Place) -> Iterator[Browser]:
    """The browser of these modules."""
    with logged_in(place) as window:
        yield window


@pytest.fixture
def window(served: Browser) -> Iterator[Browser]:
    """The browser at its usual size, which is to have no complaints in the end."""
    served.resize(DESKTOP)
    served.darken(False)
    served.complaints()
    yield served
    assert served.complaints() == []
