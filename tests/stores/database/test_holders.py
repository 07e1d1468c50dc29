"""Holders of permits that are killed or frozen, and machines whose clocks are wrong, on every database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, monotonic_ns

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.limits import CallLimit
from limits_app.stores.database import DatabaseStore, transaction
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, PATIENT, Settings, use
from tests.stores.holding import LEASE, Holders
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, Running, limits_of, until, used

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

HOUR = 3600


def open_in(settings: Settings) -> Store:
    """The store with short leases, in whatever process."""
    use(settings)
    return DatabaseStore(ALIAS, lease_seconds=LEASE, **PATIENT)


class TestHolders(Holders):
    @pytest.fixture
    def short(self, open_store: Open) -> Store:
        """A store with short leases."""
        return open_store(lease_seconds=LEASE)

    @pytest.fixture
    def open_there(self, settings: Settings) -> Callable[[], Store]:
        return partial(open_in, settings)

    def test_a_permit_released_by_another_process_admits_a_waiting_request(
        self, holder: Running, limits: LimitSet
    ) -> None:
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(limits.acquire, timeout=PATIENCE)
            until(lambda: limits.store.line.busy)
            holder.pipe.send("give it back")
            assert holder.hear() == "released"
            started = monotonic()
            with waiting.result(PATIENCE):
                assert monotonic() - started < 1


@pytest.mark.parametrize("seconds", [-HOUR, HOUR], ids=["an_hour_back", "an_hour_forward"])
def test_a_machine_whose_clock_jumps_gets_nothing_more_and_decides_no_later(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    right, wrong = (limits_of(open_store(), CallLimit(10, 600)) for _ in range(2))
    for _ in range(5):  # then it goes by what it has written, without reading
        assert wrong.try_acquire({"call_count": 2})
    with monkeypatch.context() as patched:
        patched.setattr(transaction, "monotonic_ns", lambda: monotonic_ns() + seconds * 10**9)
        for _ in range(3):
            assert not wrong.try_acquire()
    assert not right.try_acquire()
    assert used(right) == pytest.approx(10, abs=0.5)
