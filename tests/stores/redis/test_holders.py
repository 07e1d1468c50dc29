"""Holders of permits that are killed, frozen or held up, and machines whose clocks are wrong."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event

import pytest
import time_machine

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.limits import CallLimit, LimitDefinition, QuotaLimit
from limits_app.stores.redis import RedisStore, open_redis_store
from tests.servers.redis import RedisServer
from tests.stores.holding import DB, LEASE, Holders, signalled
from tests.stores.redis.support import PATIENT, store_on
from tests.stores.support import MULTI_THREADED_FORK, Running, limits_of, used

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

HOUR = 3600


class TestHolders(Holders):
    @pytest.fixture
    def short(self, redis: RedisServer) -> Iterator[RedisStore]:
        """A store with short leases."""
        store = store_on(redis, lease_seconds=LEASE)
        yield store
        store.close()

    @pytest.fixture
    def open_there(self, redis: RedisServer, short: RedisStore) -> Callable[[], Store]:
        return partial(open_redis_store, url=redis.url, prefix=short.prefix, lease_seconds=LEASE, **PATIENT)

    def test_a_holder_that_was_held_up_for_less_than_its_lease_keeps_the_permit(
        self, holder: Running, limits: LimitSet
    ) -> None:
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
    with time_machine.travel(time.time() + request.param):
        store = store_on(redis)
        yield store
        store.close()


@pytest.mark.parametrize("limit", [CallLimit(10, 60), QuotaLimit("calls", 10, period="hour")], ids=["rate", "quota"])
def test_a_machine_whose_clock_is_wrong_gets_nothing_more(
    redis: RedisServer, elsewhere: RedisStore, limit: LimitDefinition
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
    assert elsewhere.renew([held.claim]) == []
    assert not mine.try_acquire()
    held.release()
    with mine.try_acquire() as taken:
        assert taken
        assert not theirs.try_acquire()
        assert right.renew([taken.claim]) == []
    right.close()
