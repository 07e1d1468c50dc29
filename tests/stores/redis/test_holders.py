"""Holders of permits that are killed, frozen or held up, and machines whose clocks are wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from threading import Event
from time import monotonic

import pytest

from limits_app.core.hooks import HOOKS
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, Limit, ResourceLimit
from limits_app.core.quota import QuotaLimit
from limits_app.stores.redis import RedisStore, moments, open_redis_store
from tests.servers.redis import RedisServer
from tests.stores.redis.support import PATIENT, prefix, store_on
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, Running, holders, limits_of, running, used

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

LEASE = 2.0
DB = ResourceLimit("db", 1)
HOUR = 3600


def holding(pipe: Connection, url: str, keys: str) -> None:
    """Hold a permit until told to give it back; tell when it was lost, too."""
    HOOKS.lease_lost.append(lambda claim: pipe.send("lost"))
    store = open_redis_store(url=url, prefix=keys, lease_seconds=LEASE, **PATIENT)
    held = limits_of(store, DB).acquire(timeout=PATIENCE)
    pipe.send("holds")
    pipe.recv()
    held.release()
    pipe.send("released")
    pipe.recv()


@pytest.fixture
def store(redis: RedisServer) -> Iterator[RedisStore]:
    """A store with short leases."""
    store = RedisStore(url=redis.url, prefix=prefix(), lease_seconds=LEASE, **PATIENT)
    yield store
    store.close()


@pytest.fixture
def limits(store: RedisStore) -> LimitSet:
    return limits_of(store, DB)


@pytest.fixture
def holder(redis: RedisServer, store: RedisStore) -> Iterator[Running]:
    """Another process, which holds the permit."""
    with running(partial(holding, url=redis.url, keys=store.prefix)) as holder:
        assert holder.hear() == "holds"
        yield holder


def signalled(holder: Running, what: signal.Signals) -> None:
    assert holder.process.pid is not None
    os.kill(holder.process.pid, what)


def test_the_permit_of_a_killed_holder_is_back_within_the_lease(holder: Running, limits: LimitSet) -> None:
    assert not limits.try_acquire()
    killed = holder.kill()
    with limits.acquire(timeout=PATIENCE):
        assert monotonic() - killed < LEASE + 1


def test_a_holder_that_was_frozen_past_its_lease_has_lost_it_and_takes_nothing_back(
    holder: Running, limits: LimitSet
) -> None:
    signalled(holder, signal.SIGSTOP)
    with limits.acquire(timeout=PATIENCE) as mine:
        signalled(holder, signal.SIGCONT)
        assert holder.hear() == "lost"
        assert not limits.try_acquire({"db": 1})
        holder.pipe.send("give it back")
        assert holder.hear() == "released"
        assert holders(limits) == 1
        assert not limits.try_acquire({"db": 1})
        assert limits.store.renew([mine]) == []
    assert holders(limits) == 0


def test_a_holder_that_was_held_up_for_less_than_its_lease_keeps_the_permit(holder: Running, limits: LimitSet) -> None:
    for _ in range(2):
        signalled(holder, signal.SIGSTOP)
        Event().wait(LEASE * 0.4)  # longer than from one renewal to the next
        signalled(holder, signal.SIGCONT)
        Event().wait(LEASE * 0.4)
        assert not limits.try_acquire()
    holder.pipe.send("give it back")
    assert holder.hear() == "released"
    assert limits.try_acquire()


@pytest.fixture(params=[-HOUR, HOUR], ids=["an_hour_behind", "an_hour_ahead"])
def elsewhere(
    request: pytest.FixtureRequest, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisStore]:
    """A store on a machine whose clock is wrong by an hour, and whose server's is right."""
    monkeypatch.setattr(moments, "time_ns", lambda: time.time_ns() + request.param * 10**9)
    store = store_on(redis)
    yield store
    store.close()


@pytest.mark.parametrize("limit", [CallLimit(10, 60), QuotaLimit("calls", 10, period="hour")], ids=["rate", "quota"])
def test_a_machine_whose_clock_is_wrong_gets_nothing_more(
    redis: RedisServer, elsewhere: RedisStore, limit: Limit
) -> None:
    right = RedisStore(url=redis.url, prefix=elsewhere.prefix, **PATIENT)
    mine, theirs = limits_of(right, limit), limits_of(elsewhere, limit)
    requested = {limit.key: 10}
    assert theirs.try_acquire(requested)
    assert not mine.try_acquire(requested)
    assert not theirs.try_acquire(requested)
    assert used(theirs, limit.key) == pytest.approx(used(mine, limit.key), abs=1)
    right.close()


def test_a_machine_whose_clock_is_wrong_lends_permits_for_as_long_as_others(
    redis: RedisServer, elsewhere: RedisStore
) -> None:
    right = RedisStore(url=redis.url, prefix=elsewhere.prefix, **PATIENT)
    mine, theirs = limits_of(right, DB), limits_of(elsewhere, DB)
    held = theirs.try_acquire()
    assert not mine.try_acquire()
    assert elsewhere.renew([held]) == []
    assert not mine.try_acquire()
    held.release()
    with mine.try_acquire() as taken:
        assert taken
        assert not theirs.try_acquire()
        assert right.renew([taken]) == []
    right.close()
