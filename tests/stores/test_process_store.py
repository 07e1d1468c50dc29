"""The process store, inside: what it remembers, and what it reads that others have written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.waiting import ThreadWaiter
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import Blocked, CallLimit, LimitDefinition, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores import codecs
from limits_app.stores.process import ProcessStore, open_process_store, records
from limits_app.stores.process.records import PreparedScopes
from limits_app.stores.process.state_file import StateFile
from limits_app.stores.process.waking import ProcessWaking
from limits_app.stores.steps import Steps
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import claim_of, collected, counting, taken
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, entries, file_of, holders, limits_of, running, used

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

DAY = 86_400
ALL: list[LimitDefinition] = [
    *[RateLimit(str(algorithm), 10, DAY, algorithm) for algorithm in RateLimitAlgorithm],
    CallLimit(9.5, 60, RateLimitAlgorithm.GCRA, burst=20),
    ResourceLimit("db", 3, max_hold_seconds=1.5),
    ResourceLimit("gpu", 1),
]


def writing(pipe: Connection, directory: Path) -> None:
    """Use limits that no other process has heard of."""
    limits = limits_of(ProcessStore(directory, map_megabytes=2), *ALL)
    acquired = limits.try_acquire({str(algorithm): 4 for algorithm in RateLimitAlgorithm})
    pipe.send(bool(acquired))
    pipe.recv()


def test_limits_of_another_process_are_read_from_the_file(process_store: ProcessStore) -> None:
    changed = limits_of(process_store, RateLimit("gcra", 12, DAY), RateLimit("new", 1, 1), ResourceLimit("gpu", 2))
    with running(writing, process_store.directory) as other:
        assert other.hear()
        assert used(changed, "gcra") == pytest.approx(4, abs=0.01)
        assert holders(changed, "gpu") == 1
        assert changed.try_acquire({"gcra": 8, "new": 1})
        assert not changed.try_acquire({"gcra": 1})


def test_a_reset_reads_them_too(process_store: ProcessStore) -> None:
    with running(writing, process_store.directory) as other:
        assert other.hear()
        limits = limits_of(process_store, *ALL)
        process_store.reset([limits.scoped[0].scope.key])
        assert used(limits, "sliding_window") == 0
        assert holders(limits, "gpu") == 1


@pytest.fixture
def forget_schemas(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From now on definitions have to be read from the file; at most so many of them are remembered."""

    def forget(most: int = 1000) -> None:
        monkeypatch.setattr(records, "_CODECS", codecs.Codecs(codecs.Codec, most=most))

    return forget


def test_a_record_whose_definitions_are_lost_counts_as_unused(
    process_store: ProcessStore, forget_schemas: Callable[[], None]
) -> None:
    forget_schemas()
    with running(writing, process_store.directory) as other:
        assert other.hear()
    with file_of(process_store).open().begin(write=True) as txn:
        for key in [bytes(key) for key, _ in txn.cursor() if bytes(key).startswith(b"d")]:
            txn.delete(key)
    limits = limits_of(process_store, RateLimit("gcra", 12, DAY))
    assert used(limits, "gcra") == 0
    assert limits.try_acquire({"gcra": 12})
    assert not limits.try_acquire({"gcra": 1})


def test_a_scope_whose_definitions_are_lost_is_collected_when_its_limits_are_known_again(
    process_store: ProcessStore, forget_schemas: Callable[[], None]
) -> None:
    assert counting(process_store, CallLimit(5, DAY)).try_acquire()
    process_store.close()
    reopened = ProcessStore(process_store.directory, map_megabytes=2)
    forget_schemas()
    with file_of(reopened).open().begin(write=True) as txn:
        for key in [bytes(key) for key, _ in txn.cursor() if bytes(key).startswith(b"d")]:
            txn.delete(key)
    assert collected(reopened) == {}
    assert counting(reopened, CallLimit(5, DAY)).try_acquire()
    assert list(collected(reopened).values()) == [2_000]
    reopened.close()


def test_a_record_without_definitions_is_deleted_when_space_is_needed(process_store: ProcessStore) -> None:
    with file_of(process_store).open().begin(write=True) as txn:
        txn.put(b"?" * 16, b"!" * 40)
        for number in range(1000):
            txn.put(b"filler" + number.to_bytes(4), b"!" * 1000)
    for number in range(50):
        assert limits_of(process_store, CallLimit(5, DAY), entity=f"{number}").try_acquire()
    assert entries(process_store, b"?" * 16) == []


def test_a_record_of_limits_that_are_not_known_yet_counts_as_unused(process_store: ProcessStore) -> None:
    limits = limits_of(process_store, CallLimit(5, DAY))
    assert limits.try_acquire()
    (scope,) = [key for key in entries(process_store, b"") if len(key) == 16]
    with file_of(process_store).open().begin(write=True) as txn:
        txn.put(scope, b"newer..." + b"\0" * 16)
        txn.put(b"dnewer...", b'[10000000, [["a later kind", "call_count", 5, 86400]]]')
    assert used(limits) == 0
    assert limits.try_acquire()


def test_a_log_that_is_lost_counts_as_empty(process_store: ProcessStore) -> None:
    limits = limits_of(process_store, RateLimit("x", 10, DAY, RateLimitAlgorithm.SLIDING_WINDOW))
    assert limits.try_acquire({"x": 4})
    with file_of(process_store).open().begin(write=True) as txn:
        for key in [bytes(key) for key, _ in txn.cursor() if len(key) > 16 and key[16:17] == b"g"]:
            txn.delete(key)
    assert used(limits, "x") == 4
    assert not limits.try_acquire({"x": 7})
    assert limits.try_acquire({"x": 6})


def test_blocked_values_are_read_by_others(process_store: ProcessStore) -> None:
    with running(blocking, process_store.directory) as other:
        assert other.hear() == "blocked"
    assert limits_of(process_store, CallLimit(5, DAY)).try_acquire()
    assert not limits_of(process_store, Blocked()).try_acquire()


def blocking(pipe: Connection, directory: Path) -> None:
    """Use a scope, and then refuse everything in it."""
    store = ProcessStore(directory, map_megabytes=2)
    assert limits_of(store, CallLimit(5, DAY)).try_acquire()
    blocked = limits_of(store, Blocked())
    claim = claim_of(blocked)
    assert not store.acquire(claim)
    pipe.send("blocked")


def test_threads_that_need_a_name_or_a_file_first_get_the_same(process_store: ProcessStore) -> None:
    file = file_of(process_store)
    with ThreadPoolExecutor(4) as executor:
        # Nobody gets further than to see that there is none.
        with file.fork_lock:
            names = [executor.submit(file.identity) for _ in range(2)]
            opened = [executor.submit(file.open) for _ in range(2)]
            assert not Event().wait(0.05)
        assert len({name.result(PATIENCE) for name in names}) == 1
        assert len({id(one.result(PATIENCE)) for one in opened}) == 1


def test_reopening_a_closed_store_is_harmless(process_store: ProcessStore) -> None:
    limits = limits_of(process_store, CallLimit(5, DAY))
    assert limits.try_acquire()
    for _ in range(2):
        file_of(process_store).close()
    assert used(limits) == pytest.approx(1, abs=0.01)


class ClosedMeanwhile(StateFile):
    """A state file that another thread closes while somebody begins to wait."""

    def identity(self) -> bytes:
        name = super().identity()
        self.close()
        return name


def test_a_wait_that_begins_while_the_file_is_closed_polls(tmp_path: Path) -> None:
    steps = Steps(lambda claim, changes: None)
    file = ClosedMeanwhile(tmp_path, 1, steps, lambda: None, on_open=lambda: None, transfer=lambda *_: None)
    line, waiter = ProcessWaking(file).line, ThreadWaiter()
    line.enqueue(waiter, [("scope", "key")])
    assert line.scopes() == ["scope"]
    line.leave(waiter)
    assert not line.busy
    file.close()


def test_a_record_that_was_cut_short_counts_as_unused(process_store: ProcessStore) -> None:
    limits = limits_of(process_store, CallLimit(5, DAY))
    assert limits.try_acquire()
    (scope,) = [key for key in entries(process_store, b"") if len(key) == 16]
    with file_of(process_store).open().begin(write=True) as txn:
        txn.put(scope, txn.get(scope, b"")[:-1])
    assert used(limits) == 0
    assert limits.try_acquire()


def test_more_definitions_than_are_remembered_are_read_again(
    process_store: ProcessStore, forget_schemas: Callable[[int], None]
) -> None:
    forget_schemas(3)
    for _ in range(2):
        for capacity in range(10, 30):
            assert limits_of(process_store, CallLimit(capacity, DAY)).try_acquire({"call_count": 0})
    assert limits_of(process_store, CallLimit(11, DAY)).try_acquire()
    assert used(limits_of(process_store, CallLimit(12, DAY))) == pytest.approx(1, abs=0.01)


def test_a_plan_may_be_used_with_two_stores(process_store: ProcessStore, tmp_path: Path) -> None:
    limits = limits_of(process_store, CallLimit(30, DAY))
    plan, amounts = claim_of(limits).plan, claim_of(limits).amounts
    with closing(open_process_store(tmp_path / "other", map_megabytes=1)) as other:
        for store in (process_store, other, process_store):
            assert store.acquire(Claim(plan, amounts))
            assert isinstance(plan.store_cache, PreparedScopes)
    assert used(limits) == pytest.approx(2, abs=0.01)


def test_more_scopes_than_are_remembered_are_looked_after(process_store: ProcessStore) -> None:
    for number in range(1030):
        limits = limits_of(process_store, ResourceLimit("db", 1), entity=f"{number}")
        held = limits.try_acquire()
        assert not limits_of(process_store, ResourceLimit("db", 1), entity=f"{number}").try_acquire()
        held.release()
    assert len(process_store._reclaimed_at) <= 1024


def test_verbs_on_a_damaged_file_are_errors(tmp_path: Path, clock: FakeClock) -> None:
    store = ProcessStore(tmp_path, map_megabytes=1, clock=clock)
    limits = limits_of(store, RateLimit("x", 10, DAY), ResourceLimit("db", 1))
    acquired = limits.try_acquire({"x": 1})
    assert file_of(store).environment is not None
    # What another thread would find if this one closed the file at the wrong moment.
    file_of(store).environment.close()
    for verb in (limits.get_stats, store.version, store.advance_version, lambda: store.renew([acquired.claim])):
        with pytest.raises(StoreUnavailable, match="cannot be used"):
            verb()
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        limits.try_acquire({"x": 1})
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        acquired.cancel()
    assert not acquired.claim.settled
    file_of(store).environment = None
    acquired.cancel()
    assert (used(limits, "x"), holders(limits)) == (0, 0)
    store.close()


def test_counts_of_more_than_64_bits_are_added_up_elsewhere(process_store: ProcessStore) -> None:
    schema = schema_of((RateLimit("bytes", 10**12, 3600),), process_store.lease_us, counts_usage=True)
    limits = LimitSet.composed([ScopedLimits(scope_of("tests", "huge"), schema)], process_store)
    claims = [taken(limits, {"bytes": 1}) for _ in range(3)]
    for claim in claims:
        process_store.settle(claim, [2**62])
    batch = process_store.collect_counts()
    assert batch is not None
    counted = sum(count.amounts["bytes"] for count in batch.counts)
    expected = 3 * (2**62 + schema.rules[0].parts_per_unit) * 1000 // schema.rules[0].parts_per_unit
    assert expected - 6 <= counted <= expected, "each count is rounded down"
