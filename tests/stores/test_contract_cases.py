"""The contract of failure, as docs/stores.md states it: failures that servers, networks and disks bring about."""

from __future__ import annotations

import asyncio
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from threading import Barrier
from time import monotonic
from typing import Any, Final

import psycopg
import pymysql
import pytest
from redis import Redis

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.acquiring.store import Store
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import IDEMPOTENCY_LEVEL, amounts_scope, idempotency_scope, scope_of
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.resilient import ResilientStore
from limits_app.stores.slices import sliced
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import limits_of
from tests.interruptions import interrupt_anywhere
from tests.stores.contract.chaos import attempted, onlooker, resilient, rounds, settled
from tests.stores.contract.ledger import amounts_of, limits_for
from tests.stores.contract.places import SERVERS, Place
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, running, until

pytestmark = [
    pytest.mark.usefixtures("without_circuit_breaker"),
    pytest.mark.filterwarnings(MULTI_THREADED_FORK),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of an interrupted finalizer
]

DAY: Final = 86_400
UNITS: Final = QuotaLimit("units", 10**12, "day")
LOST: Final = (1, 1000)
"""How many replies are lost one after the other."""
servers = pytest.mark.parametrize("place", SERVERS, indirect=True)


def used(limits: LimitSet, key: str = "units") -> int:
    """How much of a limit is used."""
    return round(limits.get_stats()[key]["used"])


def lose(place: Place, replies: int, passes: int = 0) -> None:
    """Lose so many replies from now on, after some that pass."""
    for way in place.ways:
        way.lose(passes, replies, arrives=True)


def heal(place: Place) -> None:
    for way in place.ways:
        way.heal()


# Signal handlers.


@pytest.mark.parametrize(
    ("place", "within_us"),
    [("memory", 97), ("process", 197), ("sqlite", 997), ("redis", 1497)],
    indirect=["place"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_exception_of_a_real_signal_leaves_no_lock_and_charges_at_most_once(place: Place, within_us: int) -> None:
    clock, entity, told, sent = FakeClock(), "quota signals", 0, 0
    with onlooker(place, limits_for) as looks:
        store, opened = resilient(place, clock), place.open(clock)
        looking = limits_for(opened, entity)
        limits = limits_for(store, entity)

        def steps() -> None:
            nonlocal told, sent
            sent += 1
            acquired = attempted(lambda: limits.try_acquire({"units": 1, "db": 0}))
            told += bool(acquired)
            if acquired:
                acquired.release()
                permit = attempted(lambda: limits.try_acquire({"units": 0, "db": 1}))
                if permit:
                    permit.release()

        ends = monotonic() + 0.5
        while monotonic() < ends:
            interrupt_anywhere(steps, times=50, within_us=within_us)
            looks.check(looking, entity, clock())
        settled(store)
        assert told <= used(looking) <= sent
        assert sum(amounts_of(opened, entity)) == used(looking) * 1000
        clock.advance(11)
        assert looking.try_acquire({"units": 0, "db": 3}), "permits are taken after their lease"
        store.retire()


# Tasks.


@pytest.mark.parametrize("place", ["redis", "cluster"], indirect=True)
def test_cancelled_tasks_hold_permits_no_longer_than_the_answer_takes(place: Place) -> None:
    # Replies are late, and none is too late: what it has decided would keep the permits.
    store, looking = resilient(place, FakeClock(), reply_seconds=PATIENCE), place.open(FakeClock())
    permits, number = ResourceLimit("db", 100), 100
    limits, seen = limits_of(store, permits), limits_of(looking, permits)
    limits.try_acquire().release()

    async def cancel_all() -> None:
        tasks = [asyncio.create_task(limits.atry_acquire()) for _ in range(number)]
        for way in place.ways:
            way.delay(0.05)
        await asyncio.sleep(0.03)
        for task in tasks:
            task.cancel()
        heal(place)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):  # this one was quicker
                await result.arelease()
        assert any(task.cancelled() for task in tasks)
        await asyncio.to_thread(until, lambda: not used(seen, "db"))

    # No lease ends meanwhile: the clock stands still.
    asyncio.run(cancel_all())
    assert seen.try_acquire({"db": number})
    store.retire()


# Connections.


def close_all_connections(place: Place, request: pytest.FixtureRequest) -> None:
    """Have the servers of a place close the connections of all clients."""
    match place.name:
        case "postgres":
            server = request.getfixturevalue("postgres")
            with psycopg.connect(f"host=127.0.0.1 port={server.port} user=limits dbname=postgres") as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )
        case "mariadb":
            found = request.getfixturevalue("mariadb").settings
            options = {"host": found["HOST"], "port": int(found["PORT"]), "user": found["USER"], "ssl_disabled": True}
            with pymysql.connect(**options) as admin, admin.cursor() as cursor:
                cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()")
                for (number,) in cursor.fetchall():
                    cursor.execute(f"KILL {number}")
        case _:
            found = request.getfixturevalue("redis" if place.name == "redis" else "cluster")
            for server in found if isinstance(found, list) else [found]:
                with Redis(port=server.port) as admin:
                    admin.client_kill_filter(_type="normal", skipme=True)


@servers
def test_connections_that_were_closed_while_idle_degrade_no_request(
    place: Place, request: pytest.FixtureRequest
) -> None:
    number, store = 64, ResilientStore("straight", lambda _: opened)
    opened = place.open(FakeClock())
    limits, barrier = limits_of(store.open(), UNITS), Barrier(number)

    def acquire(_: int) -> bool:
        barrier.wait(PATIENCE)
        return bool(limits.try_acquire({"units": 1}))

    async def acquire_in_tasks() -> list[Acquisition]:
        return await asyncio.gather(*[limits.atry_acquire({"units": 1}) for _ in range(number)])

    async def twice_in_tasks() -> None:
        assert all(await acquire_in_tasks())
        await asyncio.to_thread(close_all_connections, place, request)
        assert all(await acquire_in_tasks())

    with ThreadPoolExecutor(number) as executor:
        assert all(executor.map(acquire, range(number)))
        close_all_connections(place, request)
        assert all(executor.map(acquire, range(number)))
    asyncio.run(twice_in_tasks())
    assert used(limits) == 4 * number
    store.retire()


# Lost replies.


@pytest.mark.parametrize("load_balancing", ["round_robin", "least_loaded", "failover"])
@servers
def test_a_pool_whose_reply_is_lost_tries_no_other_member(place: Place, load_balancing: str) -> None:
    clock = FakeClock()
    store, looking = resilient(place, clock), place.open(clock)
    for number, random in enumerate(rounds(0.5)):
        names = [f"{load_balancing} {number} {member}" for member in range(3)]
        pool = LimitPool([limits_of(store, UNITS, entity=name) for name in names], load_balancing)
        seen = [limits_of(looking, UNITS, entity=name) for name in names]
        certain = 0
        for digit in range(6):
            lose(place, random.choice((0, *LOST)), random.choice((0, 0, 1, 3)))
            certain |= bool(attempted(partial(pool.try_acquire, {"units": 10**digit}))) << digit
            heal(place)
        settled(store)
        total = sum(used(limits) for limits in seen)
        digits = [total // 10**digit % 10 for digit in range(6)]
        for digit, charged in enumerate(digits):
            assert charged in ({1} if certain >> digit & 1 else {0, 1}), (digits, certain)
    store.retire()


@pytest.mark.parametrize("replies", LOST)
@servers
def test_a_pool_whose_reply_is_lost_does_not_try_another_store(place: Place, replies: int) -> None:
    store, elsewhere = resilient(place, FakeClock()), MemoryStore(clock=FakeClock())
    sets = [limits_of(store, UNITS), limits_of(elsewhere, UNITS)]
    pool = LimitPool(sets, "failover")
    pool.try_acquire({"units": 1})
    lose(place, replies)
    acquired = attempted(lambda: pool.try_acquire({"units": 1}))
    heal(place)
    assert acquired is None or acquired
    assert used(sets[1]) == 0
    settled(store)
    assert 1 + bool(acquired) <= used(sets[0]) <= 2
    store.retire()


@pytest.mark.parametrize("replies", LOST)
@servers
def test_an_extension_whose_reply_is_lost_leaves_the_acquisition_as_before(place: Place, replies: int) -> None:
    clock = FakeClock()
    store, looking = resilient(place, clock), place.open(clock)
    limits = [UNITS, ResourceLimit("db", 5)]
    mine, seen = limits_of(store, *limits), limits_of(looking, *limits)
    acquired = mine.try_acquire({"units": 1, "db": 1})

    def extend(units: int) -> bool:
        acquired.extend({"units": units, "db": 1})
        return True

    lose(place, replies)
    extended = 10 * bool(attempted(lambda: extend(10)))
    heal(place)
    assert acquired
    assert not acquired.is_released
    assert acquired.acquisitions["units"].requested == 1 + extended
    assert extend(100)
    acquired.update({"units": 101 + extended})
    acquired.release()
    settled(store)
    assert used(seen) in {101 + extended, 111}
    assert used(seen, "db") <= (0 if extended else 1)
    clock.advance(11)
    assert seen.try_acquire({"units": 0, "db": 5}), "permits are taken after their lease"
    store.retire()


@pytest.mark.parametrize("place", ["cluster"], indirect=True)
def test_an_idempotency_key_is_never_charged_without_its_amounts(place: Place) -> None:
    clock = FakeClock()
    store, looking = resilient(place, clock), place.open(clock)
    once = schema_of((CallLimit(1, DAY, RateLimitAlgorithm.TOKEN_BUCKET),), store.lease_us)
    tokens = schema_of((RateLimit("tokens", 10, DAY),), store.lease_us)

    def key_is_charged_last(entity: str, parts: list[ScopedLimits], keyed: list[ScopedLimits]) -> None:
        # In this order: meanwhile the key may be refunded, and then the amounts.
        amounts = [used(LimitSet.composed([part], looking), "tokens") for part in parts]
        is_charged = any(used(LimitSet.composed([one], looking), "idempotency:call_count") for one in keyed)
        assert not is_charged or all(amounts), f"the key of {entity} is charged, and of the amounts {amounts}"
        assert all(amount in {0, 2} for amount in amounts), amounts

    for number, random in enumerate(rounds(1.0)):
        entity = f"ann {number}"
        parts = [ScopedLimits(scope_of("api", f"{entity} {part}"), tokens) for part in range(3)]
        key = idempotency_scope("api", entity, "order")
        keyed = [
            ScopedLimits(scope, once, IDEMPOTENCY_LEVEL, prefix="idempotency:")
            for scope in (key, amounts_scope(key, {}))
        ]
        limits = LimitSet.composed([*keyed, *parts], store)
        for way in place.ways:
            way.lose(random.randint(0, 2), random.choice(LOST), arrives=random.random() < 0.7)
        acquired = attempted(partial(limits.try_acquire, {"tokens": 2}))
        heal(place)
        key_is_charged_last(entity, parts, keyed)
        if acquired:
            for way in place.ways:
                way.lose(random.randint(0, 2), random.choice(LOST), arrives=random.random() < 0.7)
            acquired.cancel()
            heal(place)
            key_is_charged_last(entity, parts, keyed)
        settled(store)
        key_is_charged_last(entity, parts, keyed)
    store.retire()


@pytest.mark.parametrize("place", ["redis", "postgres"], indirect=True)
def test_slices_with_lost_replies_admit_no_more_than_the_limit(place: Place) -> None:
    clock, capacity = FakeClock(), 2_000
    limits, slice_us = sliced([(QuotaLimit("units", capacity, "day"), 2)])
    looking = place.open(clock)

    def hot(store: Store, entity: str) -> LimitSet:
        schema = schema_of(limits, store.lease_us)
        return LimitSet.composed([ScopedLimits(scope_of("hot", entity), schema, slice_us=slice_us)], store)

    stores = [resilient(place, clock) for _ in range(2)]
    for number, random in enumerate(rounds(1.0)):
        told, entity = 0, f"slices {number}"
        processes = [hot(store, entity) for store in stores]
        while True:
            lose(place, random.choice((0, 0, *LOST)), random.choice((0, 3)))
            results = [attempted(partial(random.choice(processes).try_acquire, {"units": 1})) for _ in range(100)]
            heal(place)
            told += sum(map(bool, results))
            if any(result is not None and not result for result in results):
                break
        for store in stores:
            store.return_all_slices()
            settled(store)
        assert told <= capacity
        assert told <= used(hot(looking, entity)) <= capacity
        clock.advance(2 * DAY)
        assert hot(looking, entity).try_acquire({"units": capacity})
    for store in stores:
        store.retire()


# Disks.


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_admitted_amounts_are_charged_on_a_disk_that_is_full_at_times(place: Place) -> None:
    clock, entity = FakeClock(), "fixed_window disk"
    for random in rounds(0):
        with running(_on_a_full_disk, place, random.randrange(10**12)) as process:
            told, sent, errors = process.hear()  # type: ignore[misc]
        limits = limits_for(place.open(clock), entity)
        assert errors
        assert told <= used(limits) <= sent
        assert limits.try_acquire({"units": 1, "db": 3})


def _on_a_full_disk(pipe: Connection, place: Place, seed: int) -> None:
    """Acquire while files may grow by a little at times; says how much was told, sent, and how often that failed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    random, told, sent, errors = Random(seed), 0, 0, 0
    store = resilient(place, FakeClock())
    limits = limits_for(store, "fixed_window disk")
    assert limits.try_acquire({"units": 0, "db": 0})
    ends = monotonic() + 1
    while monotonic() < ends:
        file = Path(_sqlite_file(place))
        wal = file.with_name(f"{file.name}-wal")
        size = max(wal.stat().st_size if wal.exists() else 0, 4096)
        _limit_files(size + random.randint(0, 8192) if random.random() < 0.7 else resource.RLIM_INFINITY)
        for _ in range(10):
            sent += 1
            acquired = attempted(lambda: limits.try_acquire({"units": 1, "db": 1}))
            errors += acquired is None
            told += bool(acquired)
            if acquired:
                acquired.release()
        _limit_files(resource.RLIM_INFINITY)
    settled(store)
    pipe.send((told, sent, errors))


def _limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _sqlite_file(place: Place) -> str:
    from django.db import connections

    return str(connections["limits_straight"].settings_dict["NAME"])


def test_a_disk_without_room_for_the_file_is_an_error_and_no_crash(tmp_path: Path) -> None:
    with running(_opens_on_a_full_disk, tmp_path) as process:
        assert process.hear() == "unavailable"
        assert process.hear() is True
        assert process.ended() == 0


def _opens_on_a_full_disk(pipe: Connection, directory: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _limit_files(100_000)
    try:
        ProcessStore(directory, map_megabytes=2)
    except StoreUnavailable:
        pipe.send("unavailable")
    _limit_files(resource.RLIM_INFINITY)
    pipe.send(bool(limits_of(ProcessStore(directory, map_megabytes=2), UNITS).try_acquire({"units": 1})))


def test_a_full_file_rejects_new_clients_charges_nothing_and_keeps_the_limits_of_the_others(tmp_path: Path) -> None:
    clock = FakeClock()
    store = ProcessStore(tmp_path, map_megabytes=1, clock=clock)
    known, told = limits_of(store, QuotaLimit("units", 500, "day"), ResourceLimit("db", 1), entity="known"), 0
    for number in range(100_000):
        told += bool(attempted(lambda: known.try_acquire({"units": 1, "db": 0})))
        if attempted(partial(_first, store, f"client {number}")) is None:
            break
    else:
        pytest.fail("the file is never full")
    assert used(limits_of(store, UNITS, entity=f"client {number}")) == 0
    while acquired := attempted(lambda: known.try_acquire({"units": 1, "db": 0})):
        told += bool(acquired)
    assert told <= 500
    assert used(known) == told
    store.close()


def _first(store: Store, entity: str) -> Any:
    return limits_of(store, UNITS, entity=entity).try_acquire({"units": 1})
