"""Whoever is not answered holds nothing: what a server may have admitted, or not settled, is made up for later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from limits_app.stores.redis.commands import Call
from limits_app.stores.redis.links import Link
from redis import Redis

from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import RateLimit, ResourceLimit
from limits_app.core.plan import Claim
from limits_app.stores.redis import RedisStore
from limits_app.testing.conformance.contract import claim_of
from tests.servers.redis import RedisServer
from tests.stores.redis.support import Keeper, calm_down, changes_of, claimed, hurry, limits_of, used

YEAR = 366 * 86_400
TOKENS = RateLimit("tokens", 100, YEAR)


@pytest.fixture
def keeper(store: RedisStore) -> Keeper:
    return Keeper(store)


@pytest.fixture
def taken(store: RedisStore) -> LimitSet:
    """Limits of which 20 tokens are used, whose plan the store has met, and which tasks have a link for."""
    limits = limits_of(store, TOKENS, ResourceLimit("db", 5), {"tokens": 1})

    async def take() -> None:
        acquisition = await limits.atry_acquire({"tokens": 20})
        acquisition.update({"tokens": 20})
        await acquisition.arelease()

    asyncio.run(take())
    store._tasks._open()
    return limits


@contextmanager
def frozen(redis: RedisServer, store: RedisStore) -> Iterator[None]:
    """The server takes what it is sent, and answers when it goes on, which is too late."""
    hurry(store, links=2)
    redis.freeze()
    try:
        yield
    finally:
        redis.resume()
        calm_down(store)


async def cancelled(verb: Coroutine[Any, Any, object]) -> None:
    """Cancel a task as soon as it has asked."""
    task = asyncio.create_task(verb)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def settled_once(limits: LimitSet, keeper: Keeper, tokens: float) -> None:
    """What is kept makes up for what was not answered, and a second time for nothing."""
    keeper.catch_up()
    assert used(limits, "tokens") == pytest.approx(tokens, abs=0.1)
    assert used(limits, "db") == 0


@pytest.mark.parametrize("known", ["task", "prepared", "unprepared"])
def test_what_a_cancelled_task_could_not_settle_is_kept(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper, known: str
) -> None:
    claim = claimed(taken, {"tokens": 50})
    assert store.acquire(claim)
    changes = changes_of(claim, {"tokens": 5})
    with frozen(redis, store):
        if known == "unprepared":
            store._prepared._plans.clear()
        if known == "prepared":
            store._tasks.close()
        asyncio.run(cancelled(store.asettle(claim, changes)))
    assert [one for one, _ in keeper.kept] == [claim]
    settled_once(taken, keeper, 25)


def test_what_a_cancelled_task_settles_is_settled_although_it_had_no_connection_yet(
    store: RedisStore, taken: LimitSet, keeper: Keeper
) -> None:
    claim, busy = claimed(taken, {"tokens": 50}), Event()
    assert store.acquire(claim)
    store._tasks.close()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, busy.wait)
        await cancelled(store.asettle(claim, changes_of(claim, {"tokens": 5})))
        loop.call_later(0.02, busy.set)

    asyncio.run(scenario())  # which waits for threads
    assert claim.settled
    assert not keeper.kept
    assert used(taken, "tokens") == pytest.approx(25, abs=0.1)


def test_a_settlement_that_needs_a_second_question_is_kept_when_that_is_not_answered(
    store: RedisStore, redis: RedisServer, keeper: Keeper
) -> None:
    old = limits_of(store, RateLimit("tokens", 100, YEAR), {"tokens": 1})
    claim = claimed(old, {"tokens": 50})

    async def scenario() -> None:
        assert await store.aacquire(claim)
        assert limits_of(store, RateLimit("tokens", 200, YEAR)).try_acquire({"tokens": 1})

    asyncio.run(scenario())
    reply, prepared = b"C", store._prepared.plan(claim.plan)
    assert store._settling.begin(claim)
    with frozen(redis, store):
        store._settled_unheard(claim, [-10 * claim.plan.limits[0].scale], prepared, reply)
    assert [one for one, _ in keeper.kept] == [claim]
    keeper.catch_up()
    assert used(old, "tokens") == pytest.approx(41, abs=0.1)


@pytest.mark.parametrize("known", [True, False])
def test_a_cancelled_task_that_is_never_answered_is_charged_nothing_in_the_end(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper, *, known: bool
) -> None:
    with frozen(redis, store):
        claim = claimed(taken, {"tokens": 50}) if known else claim_of(taken, {"tokens": 50})
        asyncio.run(cancelled(store.aacquire(claim)))
    if known:  # else nobody was asked
        assert [one for one, _ in keeper.kept] == [claim]
    settled_once(taken, keeper, 20)


@pytest.mark.parametrize("amount", [50, 90])
@pytest.mark.parametrize("way", ["thread", "task", "first in thread", "first in task"])
def test_whoever_is_not_answered_is_charged_nothing_in_the_end(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper, way: str, amount: int
) -> None:
    other = limits_of(store, TOKENS, entity="other")
    ask: dict[str, Callable[[Sequence[Claim]], object]] = {
        "thread": lambda claims: store.acquire(claims[0]),
        "task": lambda claims: asyncio.run(_awaited(store.aacquire(claims[0]))),
        "first in thread": store.acquire_first,
        "first in task": lambda claims: asyncio.run(_awaited(store.aacquire_first(claims))),
    }

    def claims() -> list[Claim]:
        return [claimed(taken, {"tokens": amount}), claimed(other, {"tokens": amount})]

    store._prepared.choice(claims(), emptiest_first=False, failover=True)
    with frozen(redis, store), pytest.raises(StoreUnavailable):
        ask[way](claims())
    assert len(keeper.kept) == (2 if "first" in way else 1)
    settled_once(taken, keeper, 20)
    assert used(other, "tokens") == pytest.approx(0, abs=0.1)


async def _awaited(verb: Coroutine[Any, Any, object]) -> object:
    return await verb


def test_a_server_that_forgot_what_it_admitted_is_given_nothing_back(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper
) -> None:
    with frozen(redis, store), pytest.raises(StoreUnavailable):
        store.acquire(claimed(taken, {"tokens": 50}))
    with Redis(port=redis.port) as client:
        client.flushall()
    store._prepared._defined.clear()
    assert taken.try_acquire({"tokens": 30}).cancel() is None
    settled_once(taken, keeper, 0)


def test_what_cannot_be_found_out_yet_is_asked_for_again(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper
) -> None:
    with frozen(redis, store):
        with pytest.raises(StoreUnavailable):
            store.acquire(claimed(taken, {"tokens": 50}))
        with pytest.raises(StoreUnavailable):
            keeper.catch_up()
    settled_once(taken, keeper, 20)


def test_a_store_that_nobody_watches_over_keeps_nothing(store: RedisStore, redis: RedisServer, taken: LimitSet) -> None:
    with frozen(redis, store), pytest.raises(StoreUnavailable):
        store.acquire(claimed(taken, {"tokens": 50}))
    assert not store._unanswered


def test_a_cancelled_task_whose_server_refuses_to_work_has_nothing_to_give_back(
    store: RedisStore, taken: LimitSet, keeper: Keeper
) -> None:
    store._abandoned([claimed(taken, {"tokens": 50})], lambda _: None, StoreUnavailable("Redis refuses: READONLY"))
    assert not keeper.kept


class Interruption(Exception):
    """What a signal handler raises."""


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Have whoever waits for a reply interrupted, when the server has done what it was asked."""

    def interrupted(link: Link, call: Call, again: bool = False) -> object:
        exchange(link, call, again)
        raise Interruption

    exchange = Link.exchange
    return lambda: monkeypatch.setattr(Link, "exchange", interrupted)


@pytest.mark.parametrize("first", [False, True])
def test_who_is_interrupted_is_charged_nothing_in_the_end(
    store: RedisStore,
    taken: LimitSet,
    keeper: Keeper,
    interrupt: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
    *,
    first: bool,
) -> None:
    other = limits_of(store, TOKENS, entity="other")
    claims = [claimed(taken, {"tokens": 50}), claimed(other, {"tokens": 50})]
    store._prepared.choice(claims, emptiest_first=False, failover=True)
    interrupt()
    with pytest.raises(Interruption):
        store.acquire_first(claims) if first else store.acquire(claims[0])
    monkeypatch.undo()
    assert [one for one, _ in keeper.kept] == claims[: 2 if first else 1]
    settled_once(taken, keeper, 20)


def test_who_is_interrupted_before_anything_was_sent_has_nothing_to_give_back(
    store: RedisStore, taken: LimitSet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise Interruption

    monkeypatch.setattr(type(store._links), "open", interrupted)
    store._links._idle.close()
    with pytest.raises(Interruption):
        store.acquire(claimed(taken, {"tokens": 50}))
    assert not keeper.kept


def test_who_is_interrupted_before_the_call_is_numbered_is_not_taken_for_the_one_before(
    store: RedisStore, taken: LimitSet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise Interruption

    assert store.acquire(claimed(taken, {"tokens": 10}))
    monkeypatch.setattr(Link, "exchange", interrupted)
    with pytest.raises(Interruption):
        store.acquire(claimed(taken, {"tokens": 10}))
    monkeypatch.undo()
    keeper.catch_up()
    assert used(taken, "tokens") == pytest.approx(30, abs=0.1)


def test_who_was_interrupted_while_settling_has_nothing_to_do_with_what_comes_after(
    store: RedisStore,
    taken: LimitSet,
    keeper: Keeper,
    interrupt: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, error = taken.try_acquire({"tokens": 50}), Interruption()

    def interrupted(*_: object) -> None:
        raise error

    interrupt()
    with pytest.raises(Interruption):
        store.settle(held, [-amount for amount in held.amounts])
    monkeypatch.setattr(Link, "exchange", interrupted)
    with pytest.raises(Interruption):
        store.acquire(claimed(taken, {"tokens": 10}))
    monkeypatch.undo()
    assert not keeper.kept
    assert used(taken, "tokens") == pytest.approx(20, abs=0.1)


def test_what_is_only_looked_at_needs_no_giving_back(
    store: RedisStore, taken: LimitSet, keeper: Keeper, interrupt: Callable[[], object]
) -> None:
    interrupt()
    with pytest.raises(Interruption):
        store.version()
    assert not keeper.kept


def test_who_releases_while_a_cancelled_task_is_giving_back_does_so_for_nothing(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper
) -> None:
    acquisition = taken.try_acquire({"tokens": 50})
    acquisition.update({"tokens": 0})

    async def scenario() -> None:
        redis.freeze()
        try:
            await cancelled(acquisition.arelease())
            acquisition.release()
        finally:
            redis.resume()

    asyncio.run(scenario())  # which waits for threads
    assert not keeper.kept
    assert used(taken, "tokens") == pytest.approx(20, abs=0.1)
