"""Stores keep no identifier of an entity in clear, although usage is shown by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from django.test import override_settings
from pytest_django import DjangoDbBlocker
from redis import Redis

from limits_app.acquiring.store import CountingStore
from limits_app.engine.counting import seal, unseal
from limits_app.engine.limits import CallLimit, QuotaLimit
from limits_app.engine.runtime import installed, present
from limits_app.stores.database import DatabaseStore
from limits_app.stores.process import ProcessStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import counting
from tests.servers.redis import redis_server
from tests.stores.database.databases import ALIAS, PATIENT, database, sqlite_in
from tests.stores.redis.support import store_on

ENTITY = "user:alice@example.org"
HOUR_US = 3_600_000_000
PARTS = [b"alice", b"example.org"]


def named(store: CountingStore) -> set[str | None]:
    """The entities of all counts."""
    found = set()
    while (batch := store.collect_counts()) is not None:
        found |= {count.entity for count in batch.counts}
        store.forget_counts(batch.name)
    return found


@contextmanager
def kept(kind: str, clock: FakeClock, directory: Path) -> Iterator[tuple[CountingStore, Callable[[], bytes]]]:
    """A store, and what reads everything that it keeps."""
    match kind:
        case "process":
            with closing(ProcessStore(directory, map_megabytes=1, clock=clock)) as store:
                yield store, (directory / "state" / "data.mdb").read_bytes
        case "redis":
            with (
                redis_server() as server,
                closing(store_on(server, clock=clock)) as store,
                Redis(port=server.port) as client,
            ):
                yield store, lambda: b"".join([key + (client.dump(key) or b"") for key in client.scan_iter()])
        case _:
            with (
                database(sqlite_in(directory)),
                closing(DatabaseStore(ALIAS, clock=clock, **PATIENT)) as store,
            ):
                yield store, lambda: b"".join([path.read_bytes() for path in directory.glob("limits.sqlite3*")])


@pytest.mark.parametrize("kind", ["process", "redis", "database"])
def test_a_store_has_no_identifiers(
    kind: str, clock: FakeClock, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), kept(kind, clock, tmp_path) as (store, content):
        limits = counting(store, CallLimit(100, 60), QuotaLimit("x", 100, "month"), entity=ENTITY)
        for hours, collects in ((0, False), (1, True), (1, False)):
            clock.move(hours * HOUR_US)
            limits.try_acquire({"x": 1}).release()
            if collects:
                store.collect_counts()
        found = content()
        assert found
        assert not any(part in found for part in PARTS)
        assert named(store) == {ENTITY}


@pytest.mark.parametrize("name", ["", "user:7", "Łódź \ud800", "x" * 255, None])
def test_sealed_text_is_opened_again(name: str | None) -> None:
    sealed = seal(name)
    assert sealed == seal(name)
    assert unseal(sealed) == name


def test_names_are_read_with_a_former_secret_and_stay_unreadable_with_another() -> None:
    with installed(replace(present(), secrets=lambda: [b"old"])):
        sealed = seal(ENTITY)
    with installed(replace(present(), secrets=lambda: [b"new", b"old"])):
        assert unseal(sealed) == ENTITY
        assert seal(ENTITY) != sealed
    with installed(replace(present(), secrets=lambda: [b"new"])):
        assert unseal(sealed) == f"unreadable:{sealed[:32]}" if sealed else False


def test_the_secrets_are_those_of_the_site() -> None:
    with override_settings(SECRET_KEY="one", SECRET_KEY_FALLBACKS=["two"]):
        assert [*present().secrets()] == ["one", "two"]
