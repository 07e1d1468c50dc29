"""Timed blocks: a block that begins once, is not extended, ends by itself or by a reset, and is shared by processes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from limits_app.acquiring import Acquisition, LimitSet, Store, TimedBlock, rejected_acquisition
from limits_app.engine import HOUR
from limits_app.engine.errors import NeverAdmissible
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import ALGORITHMS, KEY, Contract, limits_in, scoped

SECONDS = 600


class BlockedClient:
    """The limits of one client, with their block; requests are charged as integrations do it."""

    def __init__(self, store: Store, *limits: object, entity: str = "one") -> None:
        part = scoped(store, *limits, entity=entity)  # type: ignore[arg-type]  # definitions
        self.block = TimedBlock(store, part.scope, SECONDS)
        self.limits = limits_in(store, part, self.block.scoped)
        self.part, self.store = part, store

    def request(self, amounts: Mapping[str, int] | None = None, *, begins: bool = True) -> Acquisition:
        """Charge a request, which begins the block where it is rejected for it."""
        acquired = self.limits.try_acquire({**(amounts or {}), self.block.key: 0})
        if begins and not acquired and self.block.begins_with(acquired):
            self.block.start()
        return acquired

    def respond(self, acquired: Acquisition, *, counts: bool) -> None:
        """End a request whose response counts or not."""
        if counts:
            self.block.count(acquired)
            acquired.release()
        else:
            acquired.undo(has_run=True)


class TimedBlocks(Contract):
    """Blocks that URL rules begin, on every store."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_block_lasts_its_time_and_is_not_extended(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        client = BlockedClient(store, CallLimit(5, 10, algorithm))
        for _ in range(5):
            assert client.request()
        clock.advance(1)
        assert not client.request({"call_count": 5})
        for seconds in (0, 11, SECONDS - 13):
            clock.advance(seconds)
            assert not client.request()
        clock.advance(1)
        rejected = client.request()
        assert rejected.outcome.binding is not None
        assert rejected.outcome.binding.retry_after == 1
        assert [status.level for status in rejected.outcome.violations] == ["block"]
        clock.advance(1)
        admitted = client.request()
        assert admitted
        assert [status.level for status in admitted.outcome.passed] == ["set"]

    def test_a_block_is_of_one_client(self, store: Store) -> None:
        clients = [BlockedClient(store, CallLimit(1, HOUR), entity=name) for name in ("one", "two")]
        assert clients[0].request()
        assert not clients[0].request()
        assert clients[1].request()

    def test_a_reset_ends_a_block(self, store: Store) -> None:
        client = BlockedClient(store, CallLimit(1, HOUR))
        for _ in range(3):
            client.request()
        store.reset([client.part.key])
        assert not client.request(), "the use is forgotten, and not the block"
        store.reset([client.part.key, client.block.scoped.key])
        assert client.request()

    def test_no_block_begins_without_an_exceeded_limit(self, store: Store) -> None:
        client = BlockedClient(store, CallLimit(5, HOUR), ResourceLimit("db", 1))
        holding = client.request({"db": 1})
        assert not client.request({"db": 1}), "permits are held"
        with pytest.raises(NeverAdmissible) as error:
            client.request({"call_count": 6})
        rejected = rejected_acquisition(error.value)
        assert rejected is not None
        assert not client.block.begins_with(rejected)
        assert not client.request({"call_count": 5}, begins=False), "for instance a request that waits"
        holding.release()
        assert client.request({"db": 1})

    def test_responses_of_a_client_without_limits_that_can_be_exceeded_begin_no_block(self, store: Store) -> None:
        client = BlockedClient(store, ResourceLimit("db", 1), RateLimit(KEY, 1, HOUR, soft=True))
        for _ in range(3):
            client.respond(client.request({KEY: 5}), counts=True)
        assert client.request({KEY: 5})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_responses_that_do_not_count_begin_no_block(self, store: Store, algorithm: RateLimitAlgorithm) -> None:
        client = BlockedClient(store, CallLimit(5, HOUR, algorithm))
        for _ in range(4):
            running = [client.request(begins=False) for _ in range(12)]
            assert sum(map(bool, running)) == 5, "as many as the limit at the same time"
            for acquired in filter(None, running):
                client.respond(acquired, counts=False)
        assert client.request()

    @pytest.mark.parametrize(
        "limit",
        [*[CallLimit(5, HOUR, algorithm) for algorithm in ALGORITHMS], QuotaLimit.per_day("calls", 5)],
        ids=lambda limit: str(getattr(limit, "algorithm", "quota")),
    )
    def test_the_counted_response_that_uses_up_the_limit_begins_the_block(
        self, store: Store, clock: FakeClock, limit: CallLimit | QuotaLimit
    ) -> None:
        client, amounts = BlockedClient(store, limit), {limit.key: 1}
        for _ in range(4):
            client.respond(client.request(amounts), counts=True)
        good = client.request(amounts, begins=False)
        assert good
        assert not client.request(amounts, begins=False), "all of the limit is used up or runs"
        client.respond(good, counts=False)
        bad = client.request(amounts, begins=False)
        assert bad, "no block was begun by requests that run"
        client.respond(bad, counts=True)
        rejected = client.request(amounts, begins=False)
        assert "block" in [status.level for status in rejected.outcome.violations]
        clock.advance(SECONDS - 1)
        store.reset([client.part.key])
        assert not client.request(amounts, begins=False)
        clock.advance(1)
        assert client.request(amounts, begins=False)

    def test_threads_begin_one_block_together(self, store: Store, clock: FakeClock) -> None:
        client, barrier = BlockedClient(store, RateLimit(KEY, 5, HOUR)), Barrier(8)

        def request(_number: int) -> bool:
            barrier.wait()
            return bool(client.request({KEY: 1}))

        with ThreadPoolExecutor(8) as threads:
            admitted = sum(threads.map(request, range(16)))
        assert admitted == 5
        clock.advance(SECONDS - 1)
        store.reset([client.part.key])
        assert not client.request({KEY: 1})
        clock.advance(1)
        assert client.request({KEY: 1})

    def test_a_block_is_seen_by_other_limit_sets_of_the_scope(self, store: Store) -> None:
        first = BlockedClient(store, CallLimit(1, HOUR))
        first.request()
        first.request()
        store.reset([first.part.key])
        second = TimedBlock(store, first.part.scope, SECONDS)
        limits = LimitSet.composed([first.part, second.scoped], store)
        assert not limits.try_acquire({second.key: 0})
