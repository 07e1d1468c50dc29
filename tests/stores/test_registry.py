"""The registry: stores by alias, as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from limits_app.engine.errors import InvalidRequest, StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.stores.database import DatabaseStore, open_database_store
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore, open_process_store
from limits_app.stores.redis import RedisClusterStore, RedisStore, open_redis_store
from limits_app.stores.registry import process_store, shared_store, state_directory, store
from tests.stores.support import limits_of


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A state directory, whose store is closed afterwards."""
    yield tmp_path
    with override_settings(LIMITS={"STATE_DIR": tmp_path, "MAP_MEGABYTES": 2}):
        opened = process_store()
    assert isinstance(opened, ProcessStore)
    opened.close()


def test_the_default_store_is_one_file_for_all_processes(directory: Path) -> None:
    with override_settings(LIMITS={"STATE_DIR": directory, "MAP_MEGABYTES": 2}):
        opened = store()
        assert isinstance(opened, ProcessStore)
        assert store() is opened
        assert store("default") is opened
        assert process_store() is opened
        assert limits_of(opened, CallLimit(1, 60)).try_acquire()
    assert (directory / "state" / "data.mdb").stat().st_size == 2 * 1024 * 1024


def test_an_alias_names_a_kind_and_its_options(directory: Path) -> None:
    limits = {
        "STATE_DIR": directory,
        "MAP_MEGABYTES": 2,
        "STORE": "quick",
        "STORES": {
            "quick": {"KIND": "memory"},
            "apart": {"KIND": "process", "STATE_DIR": directory / "apart", "MAP_MEGABYTES": 1},
        },
    }
    with override_settings(LIMITS=limits):
        quick, apart = store(), store("apart")
        assert isinstance(quick, MemoryStore)
        assert store("quick") is quick
        assert isinstance(apart, ProcessStore)
        assert apart.directory == directory / "apart"
        apart.close()
    assert (directory / "apart" / "state" / "data.mdb").stat().st_size == 1024 * 1024


@pytest.mark.parametrize(
    "caches",
    [
        {},
        {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        {"default": {"BACKEND": "nowhere.Cache"}},
    ],
)
def test_without_redis_the_machines_share_the_database(caches: dict[str, object]) -> None:
    with override_settings(LIMITS={"STORES": {"default": {"KIND": "process"}}}, CACHES=caches):
        assert shared_store() is open_database_store("default")


def test_threads_that_ask_first_get_the_same_store() -> None:
    limits = {"STORE": "new", "STORES": {"new": {"KIND": "memory"}}}
    with override_settings(LIMITS=limits), ThreadPoolExecutor(8) as executor:
        assert len({id(one) for one in executor.map(lambda _: store("new"), range(50))}) == 1


def test_unknown_alias_is_named() -> None:
    with override_settings(LIMITS={}), pytest.raises(ImproperlyConfigured, match="nowhere"):
        store("nowhere")


def test_a_store_that_cannot_be_opened_is_tried_again_next_time(directory: Path) -> None:
    (directory / "state").write_text("in the way")
    with override_settings(LIMITS={"STATE_DIR": directory, "MAP_MEGABYTES": 2}):
        with pytest.raises(StoreUnavailable):
            store()
        (directory / "state").unlink()
        assert isinstance(store(), ProcessStore)


def test_without_a_directory_each_site_of_each_user_has_its_own() -> None:
    with override_settings(LIMITS={}, SECRET_KEY="one"):
        one = state_directory()
        assert one == state_directory()
    with override_settings(LIMITS={}, SECRET_KEY="another"):
        assert state_directory() != one
        assert state_directory().parent == one.parent
    assert "one" not in one.name
    with override_settings(LIMITS={"STATE_DIR": "/somewhere/else"}):
        assert state_directory() == Path("/somewhere/else")


NOWHERE = "redis://127.0.0.1:1"

MAKE: list[Callable[..., object]] = [MemoryStore, DatabaseStore, open_database_store]
MAKE_IN: list[Callable[..., object]] = [ProcessStore, open_process_store]
MAKE_AT: list[Callable[..., object]] = [RedisStore, RedisClusterStore, open_redis_store]


@pytest.mark.parametrize("make", [*MAKE, *MAKE_IN, *MAKE_AT])
def test_a_store_that_would_lend_permits_for_no_time_is_not_made(make: Callable[..., object], tmp_path: Path) -> None:
    place = {"directory": tmp_path / "state"} if make in MAKE_IN else {"url": NOWHERE} if make in MAKE_AT else {}
    for lease_seconds in (0, -1, 1e-7, float("nan"), "10", None):
        with pytest.raises(InvalidRequest, match=r"lease_seconds must be between 0\.001 seconds and 366 days"):
            make(**place, lease_seconds=lease_seconds)
    assert not list(tmp_path.iterdir())
