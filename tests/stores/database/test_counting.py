"""Counting in a database: locked rows, concurrent collectors, lost replies, and counts that are not collected."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.db import connections, transaction

from limits_app.engine import HOUR_US, engine
from limits_app.engine.claims import Claim
from limits_app.engine.counting import KEPT_HOURS, Batch
from limits_app.engine.keys import scope_of, short_key
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.models import LayoutDefinition, ScopeCount, ScopeState
from limits_app.stores.database import DatabaseStore, counts
from limits_app.stores.database.connections import namespace_id
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import claim_of, counting, in_scope, limits_in, settle, taken
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, in_step
from tests.stores.support import Loser, again, connections_of, until, used

YEAR = 366 * 86_400
FIXED = RateLimitAlgorithm.FIXED_WINDOW


def collected(store: DatabaseStore) -> dict[str | None, int]:
    """Everything that was counted, in thousandths, by entity."""
    found: Counter[str | None] = Counter()
    while (batch := store.collect_counts()) is not None:
        for count in batch.counts:
            found[count.entity] += sum(count.amounts.values())
        store.forget_counts(batch.name)
    return dict(found)


def test_more_than_a_row_can_hold_is_counted(open_store: Open) -> None:
    store = open_store()
    limits = counting(store, RateLimit("tokens", 1, YEAR))
    for _ in range(2):
        claim = taken(limits, {"tokens": 0})
        settle(limits, claim, {"tokens": 10**12})
        store.reset([limits.scoped[0].scope.key])
    assert collected(store) == {"someone": 2 * 10**15}


def test_a_locked_row_is_waited_for_and_delays_no_other_caller(open_store: Open) -> None:
    store = open_store(lock_timeout=10)
    sets = {name: counting(store, CallLimit(9, YEAR), entity=name) for name in ("locked", "free")}
    for limits in sets.values():
        taken(limits)
    scope = short_key(sets["locked"].scoped[0].scope.key)
    free = ScopeState._default_manager.using(ALIAS).exclude(scope=scope)
    with ThreadPoolExecutor(1) as executor:
        with transaction.atomic(using=ALIAS), connections[ALIAS].cursor() as cursor:
            cursor.execute("UPDATE limits_app_state SET label = label WHERE scope = %s", [scope])
            found = executor.submit(collected, store)
            if not connections_of(store).kind.is_local:  # a server has more than one writer at a time
                until(lambda: free.filter(counting=None).exists())
                taken(sets["free"])
            assert not found.done()
        assert found.result(20)["locked"] == 1_000
    assert taken(sets["free"]).admitted


def test_concurrent_collectors_receive_the_same_batch(open_store: Open) -> None:
    one, other = open_store(), open_store()
    for store in (one, other):
        taken(counting(store, CallLimit(9, YEAR)))
    first = one.collect_counts()
    # The other has looked for one before the first had made it.
    make = partial(counts.make_batch, namespace_id(b""), 0, is_full=False)
    assert first is not None
    assert in_step(other, make) == first == other.collect_counts()
    other.forget_counts(first.name)
    assert in_step(other, make) is None
    assert one.collect_counts() is None


def test_collectors_have_their_own_batches_and_take_each_count_once(open_store: Open) -> None:
    stores = [open_store() for _ in range(3)]
    for number in range(30):
        taken(counting(stores[0], CallLimit(9, YEAR), entity=f"{number}"))
    first = stores[0].collect_counts("", 0)
    taken(counting(stores[0], CallLimit(9, YEAR), entity="later"))
    second = stores[1].collect_counts("", 1)
    assert first is not None
    assert second is not None
    assert stores[2].collect_counts("", 0) == first
    assert stores[2].collect_counts("", 1) == second
    assert sorted(str(count.entity) for count in first.counts) == sorted(map(str, range(30)))
    assert [count.entity for count in second.counts] == ["later"]
    stores[1].forget_counts(first.name)
    assert stores[0].collect_counts("", 0) is None
    assert stores[0].collect_counts("", 1) == second


def test_usage_that_is_counted_meanwhile_is_left_to_the_next_round(open_store: Open) -> None:
    store = open_store(clock=FakeClock())
    names, together = [f"{number}" for number in range(1_200)], 60
    scopes = [in_scope(store, scope_of("api", name), CallLimit(99, YEAR), counts=True) for name in names]
    sets = [limits_in(store, *scopes[first : first + together]) for first in range(0, len(scopes), together)]
    for limits in sets:
        taken(limits)
    seen = Counter[str | None]()
    while (batch := store.collect_counts()) is not None:
        seen.update([count.entity for count in batch.counts])
        for limits in sets:
            taken(limits)
        store.forget_counts(batch.name)
        if not batch.is_full:
            break
    assert seen == dict.fromkeys(names, 1)


def test_counts_equal_charges_when_a_fifth_of_the_replies_is_lost(lossy_store: DatabaseStore, loser: Loser) -> None:
    limits = counting(lossy_store, RateLimit("units", 10**6, YEAR))
    loser.share = 0.2
    found: dict[str, Batch] = {}

    def collect() -> None:
        while (batch := lossy_store.collect_counts()) is not None:
            found[batch.name] = batch
            lossy_store.forget_counts(batch.name)

    for number in range(200):
        claim = claim_of(limits, {"units": 10})
        again(lambda claim=claim: lossy_store.acquire(claim))  # type: ignore[misc]  # bound now
        again(lambda claim=claim: settle(limits, claim, {"units": -4}))  # type: ignore[misc]  # bound now
        if number % 10 == 0:
            again(collect)
    loser.share = 0
    collect()
    counted = sum(sum(count.amounts.values()) for batch in found.values() for count in batch.counts)
    assert counted == pytest.approx(1000 * used(limits, "units"), abs=1000)
    assert counted >= 200 * 6_000


def test_counts_beyond_the_size_of_a_row_are_kept(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_FULL_USAGE_PARTS", 2)
    store = open_store(clock=FakeClock())
    limits = counting(store, RateLimit("units", 100, YEAR, FIXED))
    claims = [taken(limits, {"units": 5}) for _ in range(3)]
    for claim in claims:
        settle(limits, claim, {"units": 2})
    assert collected(store) == {"someone": 21_000}


def test_only_the_claim_that_is_chosen_is_counted(open_store: Open) -> None:
    store = open_store()
    tight, wide = (counting(store, CallLimit(most, YEAR), entity=str(most)) for most in (1, 9))
    claims: list[Claim] = [claim_of(limits) for limits in (tight, wide)]
    for _ in range(3):
        store.acquire_first(claims)
    assert collected(store) == {"1": 1_000, "9": 2_000}


def test_counting_scope_is_idle_when_its_counts_are_too_old(open_store: Open) -> None:
    clock = FakeClock()
    store = open_store(clock=clock)
    rows = ScopeState._default_manager.using(ALIAS)

    def come(*names: object) -> None:
        for name in names:
            taken(counting(store, CallLimit(3, 1), entity=f"{name}"))

    come("old")
    clock.move(3 * HOUR_US)
    come(*range(100))
    assert rows.count() == 101
    clock.move((KEPT_HOURS + 1) * HOUR_US)
    come(*range(100, 400))
    assert rows.count() == 300
    assert sum(collected(store).values()) == 300_000


def test_what_cannot_be_read_stays_where_it_is(open_store: Open) -> None:
    taken(counting(open_store(), CallLimit(3, YEAR)))
    LayoutDefinition._default_manager.using(ALIAS).all().delete()
    assert open_store().collect_counts() is None
    assert ScopeState._default_manager.using(ALIAS).exclude(counting=None).count() == 1


def test_old_counts_are_swept_once_an_hour(open_store: Open) -> None:
    clock = FakeClock()
    store = open_store(clock=clock)
    limits = counting(store, CallLimit(10**6, YEAR))
    for _ in range(3):
        taken(limits)
        clock.move(HOUR_US)
    assert ScopeCount._default_manager.using(ALIAS).count() == 2
    clock.move((KEPT_HOURS + 2) * HOUR_US)
    taken(limits)
    assert ScopeCount._default_manager.using(ALIAS).count() == 0
    assert collected(store) == {"someone": 1_000}


def test_a_request_deletes_a_few_hundred_old_counts_and_later_ones_the_rest(open_store: Open) -> None:
    clock = FakeClock()
    store = open_store(clock=clock)
    limits = counting(store, CallLimit(10**6, YEAR))
    rows = ScopeCount._default_manager.using(ALIAS)
    for _ in range(2):
        taken(limits)
        clock.move(HOUR_US)
    [row] = rows.all()
    row_count = 600
    about = {name: getattr(row, name) for name in ("hour", "label", "amounts", "namespace")}
    rows.bulk_create([ScopeCount(**about) for _ in range(row_count - 1)])
    left = []
    clock.move((KEPT_HOURS + 2) * HOUR_US)
    for who in (limits, *(counting(store, CallLimit(3, 1), entity=name) for name in ("first", "second"))):
        taken(who)
        left.append(rows.count())
    assert left == [row_count + 1 - 256, row_count + 1 - 512, 0]
