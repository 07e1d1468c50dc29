"""What every test starts from."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from django.db import connections
from django.test import override_settings
from hypothesis import Phase, settings
from pytest_django import DjangoDbBlocker

from limits_app import signals
from limits_app.conf import test_runner
from limits_app.forgetting import forget_use
from limits_app.policies import read_in_background
from limits_app.usage.writer import write_in_background
from tests.collecting import import_in_turn, without_garbage
from tests.flushing import number_users_apart, quick_flushes, rows_of
from tests.opened import forget_opened
from tests.products import mark
from tests.servers import shared
from tests.stores.database.databases import VENDORS, site_on
from tests.tracing import free_the_tracer_in_children
from tests.turns import turn

# Each run draws other examples, so a quarter is enough for every change; before a release it is the usual number.
# None has a deadline: a busy machine is no failure.
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.register_profile("usual", max_examples=25, deadline=None)
settings.register_profile("quick", max_examples=10, deadline=None)
# A mutant only has to fail: no shrinking, and the same examples for every mutant.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("usual")

# What a shell starts in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

free_the_tracer_in_children()

_TURNS = pytest.StashKey[Path]()
_TURNS_VARIABLE = "LIMITS_TESTS_TURNS"


def pytest_configure(config: pytest.Config) -> None:
    """Processes that share the tests take turns in the directory of the one that has started them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        directory = TemporaryDirectory(prefix="limits-turns-")
        config.add_cleanup(directory.cleanup)
        os.environ[_TURNS_VARIABLE] = directory.name
        # Where process stores without a directory of their own keep their state.
        os.environ["XDG_STATE_HOME"] = directory.name
    config.stash[_TURNS] = Path(os.environ[_TURNS_VARIABLE])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Each process collects all tests, so this has to be quick."""
    with without_garbage():
        import_in_turn(session.config.rootpath, session.config.args)
        return (yield)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that need a server or another product are left out of some runs."""
    mark(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What has to be alone comes last, when there are fewest to wait for."""
    items.sort(key=_has_to_be_alone)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """What measures time is alone, also among the processes that share the tests and start servers for them."""
    with turn(item.config.stash[_TURNS], alone=_has_to_be_alone(item)):
        return (yield)


def _has_to_be_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Databases whose tables are emptied quickly after tests with real transactions."""
    with django_db_blocker.unblock():
        made = {alias: rows_of(alias) for alias in connections}
        for alias in connections:
            number_users_apart(alias)
    with quick_flushes(made):
        yield


@pytest.fixture(scope="session", autouse=True)
def _shared_servers() -> Iterator[None]:
    """End the servers that tests share with the last of them."""
    yield
    shared.close()


@pytest.fixture(scope="session", autouse=True)
def _real_stores() -> Iterator[None]:
    """Use the stores of the settings, as no host project's tests do."""
    with test_runner.ignored():
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """Hash the passwords of throw-away users without the work that protects real ones."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """Whose turn it is in a pool, what was refused, that a store was down: what one test did is no other test's."""
    write_in_background(False)
    read_in_background(False)
    yield
    forget_use()
    forget_opened()


@pytest.fixture
def announced() -> Iterator[list[str]]:
    """The databases whose changes were announced, in order."""
    heard: list[str] = []

    def hear(using: str, **details: object) -> None:
        heard.append(using)

    signals.limits_changed.connect(hear)
    yield heard
    signals.limits_changed.disconnect(hear)


@pytest.fixture(params=VENDORS)
def site_database(request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """A database of each vendor with all that the app stores, to which each thread has a connection of its own."""
    with django_db_blocker.unblock(), site_on(request.param, tmp_path):
        yield request.param
