"""Three regions of two accounts each, and more demand than they have: all of it is used, and none of it twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import cycle
from selectors import DefaultSelector, SelectorKey
from typing import Final

import pytest

from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.stores.memory import MemoryStore

CALLERS: Final = 1000
MINUTE: Final = 60.0
MINUTES: Final = [3, pytest.param(10, marks=pytest.mark.release)]
ANSWER_SECONDS: Final = 10.0
QUOTA: Final = {"call_count": 500, "input": 400_000, "output": 100_000}
"""Of each account in each region, per minute."""
MEMBERS: Final = [f"{region}/{account}" for region in ("us-east-1", "us-west-2", "eu-west-1") for account in (1, 2)]
SIZES: Final = [(input_, output) for input_ in (760, 800, 840) for output in (190, 200, 210)]
"""Of requests, whose mean uses all three limits of a member up together."""
LARGEST: Final = {"input": 840, "output": 210}


class Leaps(DefaultSelector):
    """Where an event loop would sleep, its time leaps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class Simulation(asyncio.SelectorEventLoop):
    """An event loop in which minutes take as long as what happens in them."""

    def __init__(self) -> None:
        self.leaps = Leaps()
        super().__init__(self.leaps)

    def time(self) -> float:
        return self.leaps.now

    def clock(self) -> int:
        """The time for a store."""
        return 10**15 + round(self.leaps.now * 1_000_000)


class Demand:
    """A thousand callers, each of which asks again as soon as it has its answer."""

    def __init__(self, pool: LimitPool, minutes: int) -> None:
        self.pool = pool
        self.minutes = minutes
        self.loop = asyncio.get_running_loop()
        self.served: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
        self.asked: Counter[str] = Counter()
        self.idle_while_somebody_waited: list[float] = []

    async def caller(self, sizes: Iterator[tuple[int, int]]) -> None:
        while True:
            input_, output = next(sizes)
            self.asked["requests"] += 1
            async with await self.pool.aacquire({"input": input_, "output": output}) as acquisition:
                member = str(acquisition.config["member"])
                self.served[member].append((self.loop.time(), input_, output))
                self.asked["answers"] += 1
                await asyncio.sleep(ANSWER_SECONDS)
                acquisition.update({"input": input_, "output": output})

    async def observer(self) -> None:
        """Look again and again whether somebody waits though a member could serve anybody."""
        while True:
            await asyncio.sleep(0.7919)
            if self.pool[0].store.line.busy and any(one.peek(LARGEST).allowed for one in self.pool):
                self.idle_while_somebody_waited.append(self.loop.time())

    async def run(self) -> None:
        sizes = cycle(random.sample(SIZES * 1000, len(SIZES) * 1000))
        tasks = [asyncio.create_task(self.caller(sizes)) for _ in range(CALLERS)]
        tasks.append(asyncio.create_task(self.observer()))
        done, _ = await asyncio.wait(tasks, timeout=self.minutes * MINUTE)
        assert not done, "nobody fails"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def most_in_a_minute(served: list[tuple[float, int, int]]) -> dict[str, int]:
    """The most that was used within any minute, by limit."""
    most = dict.fromkeys(QUOTA, 0)
    used, oldest = [0, 0, 0], 0
    for time, input_, output in served:
        used = [used[0] + 1, used[1] + input_, used[2] + output]
        while served[oldest][0] <= time - MINUTE:
            _, gone_input, gone_output = served[oldest]
            used = [used[0] - 1, used[1] - gone_input, used[2] - gone_output]
            oldest += 1
        most = {key: max(before, now) for (key, before), now in zip(most.items(), used, strict=True)}
    return most


@pytest.mark.slow
@pytest.mark.parametrize("load_balancing", ["round_robin", "least_loaded"])
@pytest.mark.parametrize("minutes", MINUTES)
def test_all_quotas_are_used_up_and_none_is_exceeded(load_balancing: str, minutes: int) -> None:
    random.seed(6)
    with asyncio.Runner(loop_factory=Simulation) as runner:
        store = MemoryStore(clock=runner.get_loop().clock)  # type: ignore[attr-defined]
        window = RateLimitAlgorithm.SLIDING_WINDOW
        limits = [
            CallLimit(QUOTA["call_count"], MINUTE, window),
            *[RateLimit(key, QUOTA[key], MINUTE, window) for key in ("input", "output")],
        ]
        sets = [LimitSet(limits, store=store, config={"member": member}) for member in MEMBERS]
        demand: list[Demand] = []

        async def use() -> None:
            demand.append(Demand(LimitPool(sets, load_balancing), minutes))
            await demand[0].run()

        runner.run(use())
    served, asked = demand[0].served, demand[0].asked
    assert sorted(served) == sorted(MEMBERS)
    for requests in served.values():
        used = {
            "call_count": len(requests),
            "input": sum(r[1] for r in requests),
            "output": sum(r[2] for r in requests),
        }
        for key, quota in QUOTA.items():
            assert used[key] >= 0.99 * minutes * quota
            assert most_in_a_minute(requests)[key] <= quota
    assert asked["requests"] - asked["answers"] <= CALLERS
    assert demand[0].idle_while_somebody_waited == []
