"""Stores keep no identifier of an entity in clear, although usage is shown by name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from django.test import override_settings
from pytest_django import DjangoDbBlocker
from redis import Redis

from limits_app.core.counting import seal, unseal
from limits_app.core.limits import CallLimit, QuotaLimit
from limits_app.core.modes import HOOKS
from limits_app.core.store import CountingStore
from limits_app.stores.database import DatabaseStore
from limits_app.stores.process import ProcessStore
from limits_app.testing.conformance.contract import counting
from tests.servers.redis import redis_server
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database
from tests.stores.redis.support import store_on

ENTITY = "user:alice@example.org"
HOUR_US = 3_600_000_000
PARTS = [b"alice", b"example.org"]


def use(store: CountingStore, times: Sequence[int], moments: list[int]) -> None:
    """Count usage in each of some hours."""
    limits = counting(store, CallLimit(100, 60), QuotaLimit("x", 100, "month"), entity=ENTITY)
    for hour in times:
        moments[0] += hour * HOUR_US
        limits.try_acquire({"x": 1}).release()


def named(store: CountingStore) -> set[str | None]:
    """The entities of all counts."""
    found = set()
    while (batch := store.collect_counts()) is not None:
        found |= {count.entity for count in batch.counts}
        store.forget_counts(batch.name)
    return found


def test_the_file_of_the_process_store_has_no_identifiers(tmp_path: Path) -> None:
    moments = [1_800_000_000_000_000]
    with closing(ProcessStore(tmp_path, map_megabytes=1, clock=lambda: moments[0])) as store:
        use(store, [0, 1], moments)
        store.collect_counts()
        use(store, [1], moments)
        content = (tmp_path / "state" / "data.mdb").read_bytes()
        assert not any(part in content for part in PARTS)
        assert named(store) == {ENTITY}


def test_redis_has_no_identifiers(tmp_path: Path) -> None:
    moments = [1_800_000_000_000_000]
    with redis_server() as server, closing(store_on(server, clock=lambda: moments[0])) as store:
        use(store, [0, 1], moments)
        store.collect_counts()
        use(store, [1], moments)
        with Redis(port=server.port) as client:
            content = b"".join([key + (client.dump(key) or b"") for key in client.scan_iter()])
        assert content
        assert not any(part in content for part in PARTS)
        assert named(store) == {ENTITY}


def test_a_database_store_has_no_identifiers(sqlite: Settings, django_db_blocker: DjangoDbBlocker) -> None:
    moments = [1_800_000_000_000_000]
    with django_db_blocker.unblock(), database(sqlite):
        store = DatabaseStore(ALIAS, clock=lambda: moments[0], **PATIENT)
        use(store, [0, 1], moments)
        store.collect_counts()
        use(store, [1], moments)
        content = b"".join([path.read_bytes() for path in Path(sqlite["NAME"]).parent.glob("limits.sqlite3*")])
        assert not any(part in content for part in PARTS)
        assert named(store) == {ENTITY}
        store.close()


@pytest.mark.parametrize("name", ["", "user:7", "Łódź \ud800", "x" * 255, None])
def test_what_is_sealed_can_be_read_again(name: str | None) -> None:
    sealed = seal(name)
    assert sealed == seal(name)
    assert unseal(sealed) == name


def test_names_are_read_with_a_former_secret_and_stay_unreadable_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HOOKS, "secrets", lambda: [b"old"])
    sealed = seal(ENTITY)
    monkeypatch.setattr(HOOKS, "secrets", lambda: [b"new", b"old"])
    assert unseal(sealed) == ENTITY
    assert seal(ENTITY) != sealed
    monkeypatch.setattr(HOOKS, "secrets", lambda: [b"new"])
    assert unseal(sealed) == f"unreadable:{sealed[:32]}" if sealed else False


def test_the_secrets_are_those_of_the_site() -> None:
    with override_settings(SECRET_KEY="one", SECRET_KEY_FALLBACKS=["two"]):
        assert HOOKS.secrets() == [b"one", b"two"]
