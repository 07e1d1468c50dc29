"""Idempotency keys: a repeated request is admitted, and charged once; after a failure its key is refunded with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from limits_app import (
    CallLimit,
    InvalidRequest,
    LimitExceeded,
    LimitTimeout,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
    limits,
)
from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.store import Store
from limits_app.services.idempotency import IdempotentRequest
from limits_app.signals import limit_exceeded
from limits_app.stores.database import DatabaseStore
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.redis import RedisClusterStore, RedisStore
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.replacing import at_next_call
from tests.servers import shared
from tests.services.pool_rows import make_pool, serve
from tests.stores.database.databases import ALIAS
from tests.stores.redis.support import PATIENT, prefix
from tests.stores.support import until


@pytest.fixture
def _time_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    put_store(monkeypatch, MemoryStore())


def used(resource: str = "api", entity: str | None = "user:1", key: str = "call_count") -> float:
    return limits.status(resource, entity=entity).limits[key]["used"]


def test_the_warning_of_an_unknown_key_names_only_keys_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    limits.set_resource_limits("orders", [CallLimit(10, 3600)])
    limits.acquire("orders", entity="user:1", requested={"typo": 1}, idempotency_key="order 8").release()
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["call_count"]


def test_the_second_time_is_admitted_and_not_charged() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600), RateLimit("tpm", 100, 3600)])
    for _ in range(3):
        with limits.acquire("api", entity="user:1", requested={"tpm": 40}, idempotency_key="order 7") as acquisition:
            assert acquisition.successful
            acquisition.update({"tpm": 25})
    assert used() == 1
    assert used(key="tpm") == 25


def test_keys_are_those_of_one_entity_and_resource() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600)])
    limits.set_resource_limits("other", [CallLimit(10, 3600)])
    limits.acquire("api", entity="user:1", idempotency_key="a")
    limits.acquire("api", entity="user:1", idempotency_key="b")
    limits.acquire("api", entity="user:2", idempotency_key="a")
    limits.acquire("other", entity="user:1", idempotency_key="a")
    limits.acquire("api", idempotency_key="a")
    assert [used(), used(entity="user:2"), used("other"), used(entity=None)] == [2, 1, 1, 1]


def test_repeated_rejected_request_is_charged(clock: FakeClock) -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60, RateLimitAlgorithm.FIXED_WINDOW)])
    assert limits.try_acquire("api", entity="user:1")
    assert not limits.try_acquire("api", entity="user:1", idempotency_key="a")
    with pytest.raises(LimitExceeded):
        limits.acquire("api", entity="user:1", idempotency_key="a")
    clock.advance(60)
    assert limits.try_acquire("api", entity="user:1", idempotency_key="a")
    assert not limits.try_acquire("api", entity="user:1", idempotency_key="b")
    assert limits.try_acquire("api", entity="user:1", idempotency_key="a")


def test_a_repeated_request_is_no_refusal(heard: Callable[..., list[object]]) -> None:
    told = heard(limit_exceeded)
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    for _ in range(3):
        repeated = limits.try_acquire("api", idempotency_key="a")
    assert not limits.try_acquire("api", idempotency_key="b")
    assert len(told) == 1
    assert repeated.outcome.allowed
    assert repeated.acquisitions == {}
    repeated.update({"call_count": 5})
    repeated.release()
    repeated.cancel()


def test_a_key_is_remembered_for_the_time_in_the_settings(settings: Any, clock: FakeClock) -> None:
    settings.LIMITS = {**settings.LIMITS, "IDEMPOTENCY_SECONDS": 100}
    limits.set_resource_limits("api", [CallLimit(10, 3600, RateLimitAlgorithm.FIXED_WINDOW)])
    limits.acquire("api", entity="user:1", idempotency_key="a")
    clock.advance(99)
    limits.acquire("api", entity="user:1", idempotency_key="a")
    assert used() == 1
    clock.advance(1)
    limits.acquire("api", entity="user:1", idempotency_key="a")
    assert used() == 2


def test_a_key_that_cannot_be_is_an_error() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600)])
    with pytest.raises(InvalidRequest, match="idempotency key"):
        limits.acquire("api", idempotency_key="")


def test_key_of_several_resources_is_the_same_in_any_order() -> None:
    for name in ("api", "reports"):
        limits.set_resource_limits(name, [CallLimit(10, 3600)])

    def ask(*names: str) -> list[float]:
        assert limits.acquire(dict.fromkeys(names), entity="user:1", idempotency_key="a")
        return [used(), used("reports")]

    assert ask("api", "reports") == [1, 1]
    assert ask("reports", "api") == [1, 1]
    assert ask("api") == [2, 1]
    assert ask("reports") == [2, 2]
    assert limits.acquire("api", entity="user:1", idempotency_key="a")
    assert used() == 2


def test_a_resource_that_a_pool_serves_is_charged_once() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 100, 3600)])
    serve("api", make_pool({"eu": [CallLimit(10, 3600)], "us": [CallLimit(10, 3600)]}, name="claude"))
    for _ in range(4):
        assert limits.acquire("api", entity="user:1", requested={"tpm": 10}, idempotency_key="a")
    members = limits.pool("claude").get_stats()["limit_sets"]
    assert sorted(stats["call_count"]["used"] for stats in members) == [0, 1]


def test_permits_are_not_held_twice() -> None:
    limits.set_resource_limits("api", [ResourceLimit("db", 2)])
    with limits.acquire("api", idempotency_key="a"), limits.acquire("api", idempotency_key="a") as again:
        assert again.successful
        assert used(entity=None, key="db") == 1
    assert used(entity=None, key="db") == 0


def test_policies_in_the_shadow_are_tried_once() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600)])
    limits.set_entity_limits("user:1", [CallLimit(1, 3600)], resource="api", enforcement="shadow")
    for _ in range(3):
        assert not limits.acquire("api", entity="user:1", idempotency_key="a").outcome.shadowed
    assert limits.acquire("api", entity="user:1", idempotency_key="b").outcome.shadowed


@pytest.mark.usefixtures("_time_that_passes")
def test_a_request_that_waits_is_charged_once() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 0.5)])
    limits.acquire("api", entity="user:1", timeout=None, idempotency_key="a")
    limits.acquire("api", entity="user:1", timeout=5, idempotency_key="a")
    with pytest.raises(LimitTimeout):
        limits.acquire("api", entity="user:1", timeout=0.01, idempotency_key="b")


@pytest.mark.usefixtures("_time_that_passes")
def test_tasks_are_charged_once() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 0.1)])

    async def ask() -> None:
        assert await limits.atry_acquire("api", entity="user:1", idempotency_key="a")
        assert await limits.atry_acquire("api", entity="user:1", idempotency_key="a")
        assert await limits.aacquire("api", entity="user:1", idempotency_key="a")
        assert await limits.aacquire("api", entity="user:1", timeout=5, idempotency_key="a")
        with pytest.raises(LimitExceeded):
            await limits.aacquire("api", entity="user:1", idempotency_key="b")
        with pytest.raises(LimitTimeout):
            await limits.aacquire("api", entity="user:1", timeout=0.01, idempotency_key="b")

    asyncio.run(ask())


TPM = RateLimit("tpm", 100, 3600, RateLimitAlgorithm.GCRA)


class Failed(Exception):
    """What went wrong with the work."""


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    match request.param:
        case "memory":
            yield MemoryStore(clock=clock)
        case "process":
            yield ProcessStore(tmp_path, clock=clock, map_megabytes=4)
        case "database":
            request.getfixturevalue("second_database")
            store = DatabaseStore(ALIAS)
            yield store
            store.close()
        case "cluster":
            store = RedisClusterStore(url=shared.cluster()[0].url, prefix=prefix(), **PATIENT)
            yield store
            store.close()
        case _:
            store = RedisStore(url=shared.redis().url, prefix=prefix(), **PATIENT)
            yield store
            store.close()


every_store = pytest.mark.parametrize("opened", ["memory", "process", "database", "redis", "cluster"], indirect=True)


@pytest.fixture
def site(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put_store(monkeypatch, opened)


def charged(key: str = "tpm") -> int:
    """What is used, without the little that has come back in the meantime."""
    return round(used(key=key))


def ask(amount: int = 60, key: str = "k") -> Any:
    return limits.acquire("api", entity="user:1", requested={"tpm": amount}, idempotency_key=key)


def fail(usage: int | None = None) -> bool:
    """Fail in the block, after some usage was reported; says whether the request was charged."""
    acquisition = ask()
    with suppress(Failed), acquisition:
        if usage is not None:
            acquisition.update({"tpm": usage})
        raise Failed
    return "tpm" in acquisition.acquisitions


@every_store
@pytest.mark.usefixtures("site")
def test_a_retry_after_a_failure_is_charged_once() -> None:
    limits.set_resource_limits("api", [TPM])
    assert fail()
    assert charged() == 0
    for _ in range(3):
        with ask() as acquisition:
            acquisition.update({"tpm": 50})
        assert charged() == 50


@every_store
@pytest.mark.usefixtures("site")
def test_cancelled_request_frees_its_key() -> None:
    limits.set_resource_limits("api", [TPM])
    ask().cancel()
    assert charged() == 0

    async def ask_and_cancel() -> None:
        acquisition = await limits.aacquire("api", entity="user:1", requested={"tpm": 60}, idempotency_key="k")
        assert acquisition.acquisitions
        await acquisition.acancel()

    asyncio.run(ask_and_cancel())
    assert charged() == 0
    ask()
    ask()
    assert charged() == 60


def test_a_failure_that_gives_something_back_gives_the_key_back_and_one_that_gives_nothing_keeps_it() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 1000, 3600)])
    assert fail(usage=25)
    assert charged() == 25
    assert fail(usage=60)
    assert charged() == 85
    assert not fail()
    assert charged() == 85


@pytest.mark.parametrize("algorithm", [one for one in RateLimitAlgorithm if not one.refunds])
def test_key_stays_used_where_no_charge_is_refunded(algorithm: RateLimitAlgorithm) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 100, 3600, algorithm)])
    assert fail()
    assert charged() == 60
    assert not fail()
    assert charged() == 60


def test_a_key_of_several_resources_and_of_a_pool_is_given_back_too() -> None:
    limits.set_resource_limits("api", [TPM])
    serve("mail", make_pool({"eu": [TPM], "us": [TPM]}, name="claude"))

    def ask_both() -> Any:
        resources = {"api": {"tpm": 10}, "mail": {"tpm": 20}}
        return limits.acquire(resources, entity="user:1", idempotency_key="k")

    for _ in range(2):
        ask_both().cancel()
        assert charged() == 0
    ask_both()
    ask_both()
    assert charged() == 10
    members = limits.pool("claude").get_stats()["limit_sets"]
    assert sorted(stats["tpm"]["used"] for stats in members) == [0, 20]


SLOTS = ResourceLimit("slots", 2)
UPLOADS = QuotaLimit.per_day("bytes", 5000)


def upload(size: float = 40, key: str = "upload 3", **options: Any) -> Any:
    return limits.try_acquire("files", entity="user:1", requested={"bytes": size, **options}, idempotency_key=key)


def stats(key: str, resource: str = "files") -> float:
    return limits.status(resource, entity="user:1").limits[key]["used"]


@every_store
@pytest.mark.usefixtures("site")
def test_key_belongs_to_amounts() -> None:
    limits.set_resource_limits("files", [UPLOADS, SLOTS, CallLimit(1000, 86_400)])
    upload().release()
    for other in ({"size": 4000}, {"size": 39}, {"slots": 2}, {"call_count": 3}, {"size": 0}):
        with pytest.raises(
            InvalidRequest, match=r"idempotency key 'upload 3' was used for a request of files with other"
        ):
            upload(**other)
    assert [round(stats(key)) for key in ("bytes", "call_count", "slots")] == [40, 1, 0]
    assert upload(40.0), "an equal amount of another type"
    assert upload(4000, key="upload 4")
    assert stats("bytes") == 4040


@every_store
@pytest.mark.usefixtures("site")
def test_repetitions_take_permits() -> None:
    limits.set_resource_limits("files", [UPLOADS, SLOTS])
    running = [upload() for _ in range(6)]
    assert [bool(one) for one in running] == [True, True, False, False, False, False]
    assert [status.key for status in running[2].outcome.violations] == ["slots"]
    assert [stats("bytes"), stats("slots")] == [40, 2]
    running[0].release()
    assert stats("slots") == 1
    again = upload()
    assert again.acquisitions.keys() == {"slots"}
    again.update({"bytes": 30})
    again.cancel()
    running[1].release()
    assert [stats("bytes"), stats("slots")] == [40, 0]
    with pytest.raises(InvalidRequest):
        upload(41)


@every_store
@pytest.mark.usefixtures("site")
def test_repetitions_that_race_take_permits_and_one_charge(opened: Store) -> None:
    limits.set_resource_limits("files", [UPLOADS, SLOTS])
    sizes = [40, 40, 4000] * 8
    barrier = Barrier(len(sizes))

    def run(size: int) -> object:
        barrier.wait()
        try:
            return upload(size)
        except InvalidRequest as error:
            return error

    with ThreadPoolExecutor(len(sizes)) as pool:
        results = list(pool.map(run, sizes))
    acquired = [isinstance(result, Acquisition) and bool(result) for result in results]
    [size] = {size for size, is_acquired in zip(sizes, acquired, strict=True) if is_acquired}
    assert stats("slots") == sum(acquired)
    # On a cluster, requests that are rejected may take permits from others for a moment.
    if sum(acquired) == 1 and isinstance(opened, RedisClusterStore):
        results.append(upload(size))
    assert stats("slots") == 2
    assert stats("bytes") == size
    assert not upload(size)


def test_repetition_that_waits_is_charged_after_the_first_request_failed() -> None:
    limits.set_resource_limits("files", [TPM, ResourceLimit("slots", 1)])
    first = limits.acquire("files", entity="user:1", requested={"tpm": 30}, idempotency_key="k")

    def repeat() -> Acquisition:
        return limits.acquire("files", entity="user:1", requested={"tpm": 30}, idempotency_key="k", timeout=30)

    with ThreadPoolExecutor(1) as pool:
        repeated = pool.submit(repeat)
        until(lambda: first.limit_set.store.line.busy)
        first.cancel()
        assert repeated.result(timeout=30).acquisitions["tpm"].requested == 30
    assert round(stats("tpm")) == 30


def test_repetition_that_waits_takes_a_permit_and_is_not_charged() -> None:
    limits.set_resource_limits("files", [TPM, ResourceLimit("slots", 1)])

    async def repeat() -> Acquisition:
        return await limits.aacquire("files", requested={"tpm": 30}, idempotency_key="k", timeout=30)

    async def both() -> None:
        first = await repeat()
        repeated = asyncio.create_task(repeat())
        await asyncio.to_thread(until, lambda: first.limit_set.store.line.busy)
        await first.arelease()
        assert (await repeated).acquisitions.keys() == {"slots"}
        assert not await limits.atry_acquire("files", requested={"tpm": 30}, idempotency_key="k")
        await (await repeated).arelease()

    asyncio.run(both())
    used = limits.status("files").limits
    assert [round(used[key]["used"]) for key in ("tpm", "slots")] == [30, 0]


@pytest.mark.parametrize("is_async", [False, True])
def test_repetition_begins_again_where_its_key_is_refunded_meanwhile(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.set_resource_limits("files", [TPM, SLOTS])
    first = limits.acquire("files", requested={"tpm": 30}, idempotency_key="k")

    def cancelled(repeats: Callable[..., bool], request: IdempotentRequest, acquisition: Acquisition) -> bool:
        is_repeated = repeats(request, acquisition)
        first.cancel()
        return is_repeated

    at_next_call(monkeypatch, IdempotentRequest, "_repeats", cancelled)
    if is_async:
        repeated = asyncio.run(limits.atry_acquire("files", requested={"tpm": 30}, idempotency_key="k"))
    else:
        repeated = limits.try_acquire("files", requested={"tpm": 30}, idempotency_key="k")
    assert repeated.acquisitions.keys() == {"tpm", "slots"}
    assert [round(limits.status("files").limits[key]["used"]) for key in ("tpm", "slots")] == [30, 1]


def test_lost_permits_are_taken_again_by_a_repetition(clock: FakeClock) -> None:
    limits.set_resource_limits("files", [UPLOADS, ResourceLimit("slots", 1)])
    lost = upload()
    lost.limit_set.store.renewer.discard(lost.claim)  # as when its process was killed
    assert not upload()
    clock.advance(11)
    again = upload()
    assert again
    assert stats("slots") == 1
    lost.release()
    assert stats("slots") == 1, "the permit belongs to the repetition"


def test_blocked_entity_cannot_repeat_a_request() -> None:
    limits.set_resource_limits("files", [UPLOADS])
    upload().release()
    limits.set_entity_limits("user:1", [], resource="files", effect="blocked")
    assert upload().outcome.blocked
    limits.delete_entity_limits("user:1", resource="files")
    assert upload()


def test_repetition_takes_permits_of_a_pool() -> None:
    limits.set_resource_limits("files", [UPLOADS])
    serve(
        "files",
        make_pool({"eu": [ResourceLimit("slots", 1), TPM], "us": [ResourceLimit("slots", 1), TPM]}, name="disks"),
    )
    requested = {"bytes": 7, "tpm": 30}
    running = [limits.try_acquire("files", entity="user:1", requested=requested, idempotency_key="k") for _ in range(4)]
    assert [bool(one) for one in running] == [True, True, False, False]
    members = limits.pool("disks").get_stats()["limit_sets"]
    assert [member["slots"]["used"] for member in members] == [1, 1]
    assert sorted(round(member["tpm"]["used"]) for member in members) == [0, 30]
    assert stats("bytes") == 7


def test_repetition_takes_permits_of_several_resources_whose_amounts_are_the_same() -> None:
    limits.set_resource_limits("files", [UPLOADS, SLOTS])
    limits.set_resource_limits("mail", [TPM, ResourceLimit("senders", 5)])

    def both(size: int = 20) -> Acquisition:
        shares = {"mail": {"tpm": 10}, "files": {"bytes": size, "slots": 2}}
        return limits.try_acquire(shares, entity="user:1", idempotency_key="k")

    first = both()
    assert not both()
    with pytest.raises(InvalidRequest, match=r"files, mail|mail, files"):
        both(21)
    first.release()
    assert both().acquisitions.keys() == {"files:slots", "mail:senders"}
    assert [stats("slots"), stats("bytes"), stats("senders", "mail"), round(stats("tpm", "mail"))] == [2, 20, 1, 10]


def test_repetition_takes_permits_in_shadow_mode() -> None:
    limits.set_resource_limits("files", [UPLOADS])
    limits.set_entity_limits("user:1", [ResourceLimit("slots", 2), TPM], resource="files", enforcement="shadow")
    running = [
        limits.try_acquire("files", entity="user:1", requested={"bytes": 8, "tpm": 60}, idempotency_key="k")
        for _ in range(3)
    ]
    assert [[status.key for status in one.outcome.shadowed] for one in running] == [[], [], ["slots"]]
    assert [one.companion.tried.acquisitions.keys() for one in running[:2]] == [{"tpm", "slots"}, {"slots"}]
    assert stats("bytes") == 8


def test_amounts_of_a_function_belong_to_the_key() -> None:
    limits.set_resource_limits("files", [UPLOADS])
    sizes = [12, 12, 13]

    def request() -> Acquisition:
        return limits.try_acquire("files", requested=lambda _: {"bytes": sizes.pop(0)}, idempotency_key="k")

    assert [bool(request()), bool(request())] == [True, True]
    with pytest.raises(InvalidRequest, match="'bytes': 13"):
        request()
    assert limits.status("files").limits["bytes"]["used"] == 12


def test_invalid_amounts_are_named_with_a_key_too() -> None:
    limits.set_resource_limits("files", [UPLOADS])
    for amounts in ({"bytes": -1}, {"bytes": 1.5}, {"bytes": "many"}, ["bytes"]):
        with pytest.raises(InvalidRequest, match=r"bytes|must map"):
            limits.try_acquire("files", requested=amounts, idempotency_key="k")


def test_a_key_is_as_long_taken_after_it_was_given_back(clock: FakeClock, settings: Any) -> None:
    settings.LIMITS = {**settings.LIMITS, "IDEMPOTENCY_SECONDS": 7}
    limits.set_resource_limits("api", [RateLimit("tpm", 1000, 10**6)])
    clock.advance(3)
    fail()
    ask()
    assert charged() == 60
    clock.advance(6.999999)
    ask()
    assert charged() == 60
    clock.advance(0.000001)
    ask()
    assert charged() == 120
