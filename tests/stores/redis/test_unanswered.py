"""A caller without an answer, or interrupted, holds nothing: amounts the server may have charged are settled later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest
from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import RateLimit, ResourceLimit
from limits_app.engine.plan import Claim
from limits_app.stores.recovery import PendingWork
from limits_app.stores.redis import RedisStore, verbs
from limits_app.stores.redis.exactly_once import Unanswered
from tests.servers.redis import RedisServer
from tests.stores.redis.support import Keeper, calm_down, changes_of, claimed, hurry
from tests.stores.support import limits_of, used

YEAR = 366 * 86_400
TOKENS = RateLimit("tokens", 100, YEAR)


class Interruption(Exception):
    """The exception of a signal handler."""


@pytest.fixture
def keeper(store: RedisStore) -> Keeper:
    return Keeper(store)


@pytest.fixture
def taken(store: RedisStore) -> LimitSet:
    """Limits of which 20 tokens are used, and whose scripts the server has."""
    limits = limits_of(store, TOKENS, ResourceLimit("db", 5))
    acquisition = limits.try_acquire({"tokens": 20})
    acquisition.update({"tokens": 20})
    acquisition.release()
    return limits


@contextmanager
def frozen(redis: RedisServer, store: RedisStore) -> Iterator[None]:
    """The server takes what it is sent, and answers when it goes on, which is too late."""
    hurry(store, connections=2)
    redis.freeze()
    try:
        yield
    finally:
        redis.resume()
        calm_down(store)


async def cancelled(verb: Coroutine[Any, Any, object]) -> None:
    """Cancel a task as soon as it has sent its call."""
    task = asyncio.create_task(verb)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def settled_once(limits: LimitSet, keeper: Keeper, tokens: float) -> None:
    """What is kept is settled, and a second time changes nothing."""
    for _ in range(2):
        keeper.catch_up()
        assert used(limits, "tokens") == pytest.approx(tokens, abs=0.1)
        assert used(limits, "db") == 0


async def connected(store: RedisStore, limits: LimitSet) -> None:
    """Have a connection for tasks."""
    other = claimed(limits, {"tokens": 1})
    assert await store.aacquire(other)
    await store.asettle(other, changes_of(other, {"tokens": 0}))


@pytest.mark.parametrize("settles", [True, False])
def test_a_cancelled_call_that_is_not_answered_is_kept_and_charges_in_the_end_what_was_used(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper, *, settles: bool
) -> None:
    claim = claimed(taken, {"tokens": 50})
    if settles:
        assert store.acquire(claim)

    async def scenario() -> None:
        await connected(store, taken)
        with frozen(redis, store):
            used = changes_of(claim, {"tokens": 5})
            await cancelled(store.asettle(claim, used) if settles else store.aacquire(claim))
            await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(scenario())
    assert [one for one, _ in keeper.kept] == [claim]
    settled_once(taken, keeper, 25 if settles else 20)


@pytest.mark.parametrize("amount", [50, 90])
@pytest.mark.parametrize("how", ["thread", "task", "first in thread", "first in task"])
def test_a_request_that_is_not_answered_charges_nothing_in_the_end(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper, how: str, amount: int
) -> None:
    other = limits_of(store, TOKENS, entity="other")
    assert store.acquire_first([claimed(taken, {"tokens": 0, "db": 0}), claimed(other, {"tokens": 0})])
    ask: dict[str, Callable[[Sequence[Claim]], object]] = {
        "thread": lambda claims: store.acquire(claims[0]),
        "task": lambda claims: asyncio.run(_awaited(store.aacquire(claims[0]))),
        "first in thread": store.acquire_first,
        "first in task": lambda claims: asyncio.run(_awaited(store.aacquire_first(claims))),
    }
    claims = [claimed(taken, {"tokens": amount}), claimed(other, {"tokens": amount})]
    with frozen(redis, store), pytest.raises(StoreUnavailable):
        ask[how](claims)
    settled_once(taken, keeper, 20)
    assert used(other, "tokens") == pytest.approx(0, abs=0.1)


async def _awaited(verb: Coroutine[Any, Any, object]) -> object:
    return await verb


def test_a_call_that_arrives_after_it_was_withdrawn_is_not_executed(store: RedisStore, taken: LimitSet) -> None:
    claim = claimed(taken, {"tokens": 50})
    plan = store._prepared(claim.plan)
    call = store._calls.acquire([claim], plan.acquire)
    call.begin(store._slots)
    call.is_withdrawn = True
    assert store._connections.run(call) == b"W"
    call.is_withdrawn = False
    assert store._connections.run(call) == b"W"
    assert used(taken, "tokens") == pytest.approx(20, abs=0.1)


def test_a_call_that_arrives_after_its_repetition_is_not_executed_again(store: RedisStore, taken: LimitSet) -> None:
    claim = claimed(taken, {"tokens": 50})
    plan = store._prepared(claim.plan)
    call = store._calls.acquire([claim], plan.acquire)
    assert store._connections.run(call) == store._connections.run(call)
    assert call.slot is not None
    earlier = store._calls.acquire([claim], plan.acquire)
    earlier.slot, earlier.number = call.slot, call.number - 1
    store._connections.run(earlier)
    assert used(taken, "tokens") == pytest.approx(70, abs=0.1)


def test_a_server_that_forgot_what_it_admitted_is_refunded_nothing(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper
) -> None:
    with frozen(redis, store), pytest.raises(StoreUnavailable):
        store.acquire(claimed(taken, {"tokens": 50}))
    with Redis(port=redis.port) as client:
        client.flushall()
    settled_once(taken, keeper, 0)


def test_what_cannot_be_found_out_yet_is_asked_again(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper
) -> None:
    with frozen(redis, store):
        with pytest.raises(StoreUnavailable):
            store.acquire(claimed(taken, {"tokens": 50}))
        with pytest.raises(StoreUnavailable):
            keeper.catch_up()
    settled_once(taken, keeper, 20)


@pytest.mark.parametrize("first", [False, True])
def test_a_store_on_its_own_settles_what_is_in_doubt_before_the_next_request(
    store: RedisStore, redis: RedisServer, taken: LimitSet, *, first: bool
) -> None:
    other = limits_of(store, TOKENS, entity="other")
    assert store.acquire_first([claimed(taken, {"tokens": 0, "db": 0}), claimed(other, {"tokens": 0})])
    claims = [claimed(taken, {"tokens": 50}), claimed(other, {"tokens": 50})]
    with frozen(redis, store), pytest.raises(StoreUnavailable):
        store.acquire_first(claims) if first else store.acquire(claims[0])
    assert len(store._unfinished) == (2 if first else 1)
    with taken.try_acquire({"tokens": 80}) as acquisition:
        assert acquisition
        acquisition.update({"tokens": 0})
    assert len(store._unfinished) == 0


@contextmanager
def replies(act: Callable[[int, object], object]) -> Iterator[None]:
    """Call a function with the number and the value of every reply of the server, instead of which it may raise."""
    read, numbers = Connection.read_response, count()

    def reading(connection: Connection, *given: Any, **named: Any) -> Any:
        try:
            reply = read(connection, *given, **named)
        except ResponseError as error:
            reply = error
        act(next(numbers), reply)
        if isinstance(reply, Exception):
            raise reply
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "read_response", reading)
        yield


def interruption(at: int) -> Callable[[int, object], None]:
    """Interrupt what waits for the reply with a number."""

    def act(number: int, _: object) -> None:
        if number == at:
            raise Interruption

    return act


def interruption_when_done(_: int, reply: object) -> None:
    """Interrupt what waits for the reply of a script that has changed something."""
    if isinstance(reply, bytes) and reply[:1] in {b"A", b"N"}:
        raise Interruption


@pytest.mark.parametrize("first", [False, True])
def test_an_interrupted_request_charges_nothing_in_the_end(
    store: RedisStore, taken: LimitSet, keeper: Keeper, *, first: bool
) -> None:
    other = limits_of(store, TOKENS, entity="other")
    assert store.acquire_first([claimed(taken, {"tokens": 0, "db": 0}), claimed(other, {"tokens": 0})])
    claims = [claimed(taken, {"tokens": 50}), claimed(other, {"tokens": 50})]
    with replies(interruption(0)), pytest.raises(Interruption):
        store.acquire_first(claims) if first else store.acquire(claims[0])
    assert [one for one, _ in keeper.kept] == claims[: 2 if first else 1]
    settled_once(taken, keeper, 20)


def test_a_request_that_is_interrupted_while_its_script_is_loaded_charges_nothing_in_the_end(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper
) -> None:
    for nth in range(11):
        with Redis(port=redis.port) as client:
            client.script_flush()
        claim = claimed(taken, {"tokens": 10})
        with suppress(Interruption), replies(interruption(nth)):
            store.acquire(claim)
        if claim.admitted:
            store.settle(claim, [-amount for amount in claim.amounts])
        settled_once(taken, keeper, 20)


@pytest.mark.parametrize("repeated", [Interruption, OutOfMemoryError("maxmemory"), NoPermissionError("no access")])
def test_a_request_whose_reply_was_lost_and_that_fails_when_it_is_repeated_charges_nothing_in_the_end(
    store: RedisStore, taken: LimitSet, keeper: Keeper, repeated: Exception
) -> None:
    def act(number: int, _: object) -> None:
        raise ConnectionResetError if number == 0 else repeated

    claim = claimed(taken, {"tokens": 50})
    with replies(act), pytest.raises((Interruption, StoreUnavailable)):
        store.acquire(claim)
    assert claim.admitted is None
    assert [one for one, _ in keeper.kept] == [claim]
    assert used(taken, "tokens") == pytest.approx(70, abs=0.1)
    settled_once(taken, keeper, 20)


def test_a_withdrawal_that_is_refused_is_sent_again(store: RedisStore, taken: LimitSet, keeper: Keeper) -> None:
    with replies(interruption(0)), pytest.raises(Interruption):
        store.acquire(claimed(taken, {"tokens": 50}))

    def refuse(_: int, reply: object) -> None:
        if isinstance(reply, bytes) and reply[:1] in {b"A", b"N"}:
            raise NoPermissionError("no access")

    with replies(refuse), pytest.raises(StoreUnavailable, match="NOPERM"):
        keeper.catch_up()
    settled_once(taken, keeper, 20)


def test_a_claim_of_which_nothing_is_known_settles_nothing(store: RedisStore, taken: LimitSet, keeper: Keeper) -> None:
    held = claimed(taken, {"tokens": 50})
    assert store.acquire(held)
    unknown = claimed(taken, {"tokens": 50})
    store.settle(unknown, [-amount for amount in unknown.amounts])
    assert unknown.settled
    assert used(taken, "tokens") == pytest.approx(70, abs=0.1)
    assert used(taken, "db") == 1
    store.settle(held, [-amount for amount in held.amounts])
    settled_once(taken, keeper, 20)


def test_a_settlement_that_was_interrupted_is_done_once(store: RedisStore, taken: LimitSet) -> None:
    held = taken.try_acquire({"tokens": 50})
    held.update({"tokens": 10})
    with replies(interruption(0)), pytest.raises(Interruption):
        held.release()
    assert not held.claim.settled
    held.release()
    assert used(taken, "tokens") == pytest.approx(30, abs=0.1)
    assert used(taken, "db") == 0


def test_a_cancel_while_an_unanswered_one_is_withdrawn_in_vain_refunds_nothing_more(
    store: RedisStore, taken: LimitSet
) -> None:
    held, work = taken.try_acquire({"tokens": 15}), PendingWork()
    with replies(interruption(0)), pytest.raises(Interruption):
        held.cancel()
    work.add(held.claim, [-amount for amount in held.claim.amounts])

    def cancel_and_refuse(_: int, reply: object) -> None:
        if isinstance(reply, bytes) and reply[:1] in {b"A", b"N"}:
            held.cancel()
            raise NoPermissionError("no access")

    with replies(cancel_and_refuse), pytest.raises(StoreUnavailable, match="NOPERM"):
        work.run(store)
    work.run(store)
    assert held.claim.settled
    assert used(taken, "tokens") == pytest.approx(20, abs=0.1)
    assert used(taken, "db") == 0


def test_a_settlement_under_changed_limits_that_was_interrupted_is_done_once(store: RedisStore) -> None:
    old, new = (limits_of(store, RateLimit("tokens", most, YEAR), ResourceLimit("db", 5)) for most in (100, 200))
    held = old.try_acquire({"tokens": 50})
    held.update({"tokens": 10})
    assert new.try_acquire({"tokens": 1, "db": 0})
    with replies(interruption_when_done), pytest.raises(Interruption):
        held.release()
    held.release()
    assert used(new, "tokens") == pytest.approx(11, abs=0.1)
    assert used(new, "db") == 0


def test_an_interruption_before_anything_was_sent_leaves_nothing_in_doubt(
    store: RedisStore, taken: LimitSet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise Interruption

    store._connections.close()
    monkeypatch.setattr(Connection, "connect", interrupted)
    with pytest.raises(Interruption):
        store.acquire(claimed(taken, {"tokens": 50}))
    assert not keeper.kept


def test_an_interrupted_question_leaves_nothing_in_doubt(store: RedisStore, keeper: Keeper) -> None:
    assert store.version() == 0
    with replies(interruption(0)), pytest.raises(Interruption):
        store.version()
    assert not keeper.kept


def test_a_release_while_a_cancelled_one_is_continued_changes_nothing(
    store: RedisStore, redis: RedisServer, taken: LimitSet, keeper: Keeper
) -> None:
    acquisition = taken.try_acquire({"tokens": 50})
    acquisition.update({"tokens": 0})

    async def scenario() -> None:
        await connected(store, taken)
        redis.freeze()
        try:
            await cancelled(acquisition.arelease())
            acquisition.release()
        finally:
            redis.resume()

    asyncio.run(scenario())  # which waits for threads
    assert not keeper.kept
    assert used(taken, "tokens") == pytest.approx(20, abs=0.1)


def test_a_cancelled_settlement_that_is_not_answered_is_logged_where_nothing_keeps_it(
    store: RedisStore, redis: RedisServer, taken: LimitSet, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        claim = claimed(taken, {"tokens": 50})
        assert await store.aacquire(claim)
        with frozen(redis, store):
            await cancelled(store.asettle(claim, changes_of(claim, {"tokens": 5})))
            await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(scenario())
    assert "a cancelled request could not be settled: Redis does not answer" in caplog.text


def test_a_server_that_was_silent_once_is_asked_again(store: RedisStore) -> None:
    def act(number: int, _: object) -> None:
        if number == 0:
            raise TimeoutError

    assert store.version() == 0
    with replies(act):
        assert store.version() == 0
    assert store.version() == 0


def test_a_server_that_hangs_up_or_is_silent_is_given_up(store: RedisStore) -> None:
    asked = []

    def act(number: int, _: object) -> None:
        asked.append(number)
        raise TimeoutError

    assert store.version() == 0
    with replies(act), pytest.raises(Unanswered, match="does not answer"):
        store.version()
    assert len(asked) == 2


def test_calls_in_doubt_are_bounded(
    store: RedisStore, taken: LimitSet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "_MOST_UNFINISHED", 2)
    for _ in range(3):
        with replies(interruption_when_done), pytest.raises(Interruption):
            store.acquire(claimed(taken, {"tokens": 1}))
    assert list(store._unfinished) == [claim for claim, _ in keeper.kept[1:]]
