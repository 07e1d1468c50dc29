"""Limits that change while other callers use them."""

from __future__ import annotations

from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import short_key
from limits_app.engine.limits import RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.redis import RedisStore
from limits_app.stores.redis.calls import Command
from tests.stores.redis.support import changes_of, names_of, scoped
from tests.stores.support import connections_of, limits_of, used

HOUR = 3600


@pytest.fixture
def meddled(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[LimitSet]:
    """Sets from which somebody takes a call whenever records were loaded; each is taken from once."""
    meddlers: list[LimitSet] = []
    load = store._records.load

    def load_and_meddle(*given: Any) -> Any:
        loaded = load(*given)
        if meddlers:
            assert meddlers.pop().try_acquire({"tokens": 1})
        return loaded

    monkeypatch.setattr(store._records, "load", load_and_meddle)
    return meddlers


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


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_what_others_take_while_limits_are_followed_is_counted(
    store: RedisStore, meddled: list[LimitSet], algorithm: RateLimitAlgorithm
) -> None:
    old, new = (limits_of(store, RateLimit("tokens", most, HOUR, algorithm)) for most in (10, 20))
    held = old.try_acquire({"tokens": 5})
    meddled.append(old)
    assert new.try_acquire({"tokens": 2})
    meddled.append(new)
    held.update({"tokens": 7})
    held.release()
    meddled.append(new)
    store.reset([new.scoped[0].scope.key], ["unheard of"])
    assert used(new, "tokens") == pytest.approx(5 + 1 + 2 + 1 + 2 + 1, abs=0.1)


def test_limits_that_never_stop_changing_are_an_error(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (limits_of(store, RateLimit("tokens", most, HOUR)) for most in (10, 20))
    held = old.try_acquire({"tokens": 5})
    assert new.try_acquire({"tokens": 1})
    for module in ("store", "records"):
        monkeypatch.setattr(f"limits_app.stores.redis.{module}._MOST_ATTEMPTS", 0)
    held.update({"tokens": 1})
    with pytest.raises(StoreUnavailable, match="faster"):
        held.release()
    with pytest.raises(StoreUnavailable, match="faster"):
        old.try_acquire({"tokens": 1})
    with pytest.raises(StoreUnavailable, match="faster"):
        store.reset([old.scoped[0].scope.key])


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
    return Command(b"DEL", names_of(store).scope(short_key(scope)))
