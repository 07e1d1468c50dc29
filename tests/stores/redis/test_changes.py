"""Limits that change while other callers use them: the script that decides carries the use over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import short_key
from limits_app.engine.limits import LimitDefinition, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.redis import RedisClusterStore, RedisStore
from limits_app.stores.redis.commands import RedisCommand
from limits_app.testing import FakeClock
from tests.servers.redis import RedisServer
from tests.stores.redis.support import PATIENT, changes_of, names_of, prefix, record, scoped, scripts_run
from tests.stores.support import connections_of, limits_of, used

HOUR = 3600
KINDS: list[LimitDefinition] = [
    *[RateLimit("tokens", 100, HOUR, algorithm) for algorithm in RateLimitAlgorithm],
    QuotaLimit.per_month("tokens", 100, "Asia/Tokyo"),
    QuotaLimit.per_session("tokens", 100, HOUR),
]


@pytest.mark.parametrize("new", KINDS, ids=str)
def test_a_change_costs_one_more_call_once(store: RedisStore, client: Redis, new: LimitDefinition) -> None:
    for number, old in enumerate(KINDS):
        before, after = [limits_of(store, limit, entity=f"{number}") for limit in (old, new)]
        assert before.try_acquire({"tokens": 5})
        calls = scripts_run(client)
        assert after.try_acquire({"tokens": 1})
        assert scripts_run(client) - calls <= 3, "a script that the server does not have yet is run twice"
        calls = scripts_run(client)
        assert after.try_acquire({"tokens": 1})
        assert scripts_run(client) == calls + 1
        assert used(after, "tokens") == pytest.approx(7, abs=0.1)


def test_a_process_with_only_the_new_limits_keeps_the_use(redis: RedisServer) -> None:
    name = prefix()
    for number, (old, new) in enumerate((old, new) for old in KINDS for new in KINDS):
        first, second = (RedisStore(url=redis.url, prefix=name, **PATIENT) for _ in range(2))
        assert limits_of(first, old, entity=f"{number}").try_acquire({"tokens": 40})
        after = limits_of(second, new, entity=f"{number}")
        assert not after.try_acquire({"tokens": 70})
        assert after.try_acquire({"tokens": 50})
        for store in (first, second):
            store.close()


@pytest.mark.parametrize("new", KINDS, ids=str)
@pytest.mark.parametrize("on_cluster", [False, True], ids=["server", "cluster"])
def test_forgotten_log_entries_are_not_carried_over(
    redis: RedisServer, request: pytest.FixtureRequest, new: LimitDefinition, *, on_cluster: bool
) -> None:
    clock = FakeClock()
    options = {"prefix": prefix(), "clock": clock, **PATIENT}
    if on_cluster:
        store: RedisStore = RedisClusterStore(url=request.getfixturevalue("cluster")[0].url, **options)
    else:
        store = RedisStore(url=redis.url, **options)
    old = limits_of(store, RateLimit("tokens", 100, HOUR, RateLimitAlgorithm.SLIDING_WINDOW))
    for _ in range(3):
        held = old.try_acquire({"tokens": 10})
        clock.advance(HOUR * 0.4)
    changed = limits_of(store, new)
    assert used(changed, "tokens") == pytest.approx(20, abs=0.1), "the first ones have expired"
    held.update({"tokens": 14})
    held.release()
    assert changed.try_acquire({"tokens": 1})
    assert used(changed, "tokens") == pytest.approx(25, abs=0.1)
    store.close()


def test_a_rejected_request_applies_the_new_limits(store: RedisStore, client: Redis) -> None:
    old, new = [limits_of(store, RateLimit("tokens", 10, window)) for window in (1, 10 * HOUR)]
    assert old.try_acquire({"tokens": 10})
    assert not new.try_acquire({"tokens": 5})
    assert client.ttl(record(store, new)) > 10 * HOUR, "the state is kept as long as the new limit needs it"


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_threads_with_different_definitions_are_admitted_the_capacity(
    store: RedisStore, algorithm: RateLimitAlgorithm
) -> None:
    sets = [limits_of(store, RateLimit("tokens", 60, window, algorithm)) for window in (24 * HOUR, 48 * HOUR)]

    def take(number: int) -> int:
        return sum(bool(sets[(number + turn) % 2].try_acquire({"tokens": 1})) for turn in range(30))

    with ThreadPoolExecutor(4) as executor:
        assert sum(executor.map(take, range(4))) == 60


def test_a_claim_over_two_scopes_is_settled_when_one_of_them_has_changed(store: RedisStore) -> None:
    limits = [RateLimit("tokens", 100, HOUR), ResourceLimit("db", 2)]
    family = LimitSet.composed([scoped(store, *limits, entity=who) for who in ("one", "two", "three")], store)
    held = family.try_acquire({"tokens": 10})
    changed = limits_of(store, RateLimit("tokens", 50, HOUR), entity="one")
    assert changed.try_acquire({"tokens": 1})
    connections_of(store).run(_deleting(store, "three"))
    held.update({"tokens": 4})
    held.release()
    assert used(changed, "tokens") == pytest.approx(5, abs=0.1)
    assert used(limits_of(store, *limits, entity="two"), "tokens") == pytest.approx(4, abs=0.1)
    assert used(limits_of(store, *limits, entity="two"), "db") == 0


def test_a_lease_that_has_ended_is_not_given_back_under_other_limits(store: RedisStore) -> None:
    held = limits_of(store, ResourceLimit("db", 2)).try_acquire().claim
    store.settle(held, changes_of(held, {}))
    held.settled = False
    wider = limits_of(store, ResourceLimit("db", 3))
    other = wider.try_acquire()
    store.settle(held, changes_of(held, {}))
    assert used(wider, "db") == 1
    other.release()


def test_debt_of_an_old_definition_is_charged_to_its_own_calendar(store: RedisStore) -> None:
    old, new = limits_of(store, RateLimit("tokens", 100, HOUR)), limits_of(store, QuotaLimit.per_month("tokens", 50))
    held = old.try_acquire({"tokens": 10})
    assert new.try_acquire({"tokens": 1})
    held.update({"tokens": 30})
    held.release()
    assert used(new, "tokens") == pytest.approx(31, abs=1)


def test_limits_that_never_stop_changing_are_an_error(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (limits_of(store, RateLimit("tokens", most, HOUR)) for most in (10, 20))
    held = old.try_acquire({"tokens": 5})
    assert new.try_acquire({"tokens": 1})
    monkeypatch.setattr("limits_app.stores.redis.store._MOST_ATTEMPTS", 0)
    held.update({"tokens": 1})
    with pytest.raises(StoreUnavailable, match="keep changing"):
        held.release()
    with pytest.raises(StoreUnavailable, match="keep changing"):
        old.try_acquire({"tokens": 1})


def test_permits_of_an_evicted_record_stay_with_their_holders(store: RedisStore) -> None:
    limits = limits_of(store, ResourceLimit("db", 1))
    held = limits.try_acquire()
    connections_of(store).run(_deleting(store, "someone"))
    assert not limits.try_acquire({"db": 1})
    connections_of(store).run(_deleting(store, "someone"))
    held.release()
    assert used(limits, "db") == 0
    with limits.try_acquire() as other:
        assert other


def _deleting(store: RedisStore, who: str) -> Any:
    scope = scoped(store, entity=who).scope.key
    return RedisCommand(b"DEL", names_of(store).scope(short_key(scope)))
