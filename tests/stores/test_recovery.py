"""Recovery: what is done for a store that is available again."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from limits_app.engine.change_log import ALL, EVERYTHING, ROWS, Change
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import RateLimit
from limits_app.engine.plan import Amounts
from limits_app.stores.memory import MemoryStore
from limits_app.stores.recovery import PendingWork
from tests.acquiring.sets import used
from tests.stores.support import limits_of

TPM = RateLimit("tpm", 10, 86_400)


class Failing(MemoryStore):
    """Raises the error that a test sets, if any."""

    error: BaseException | None = None

    def settle(self, claim: Claim, changes: Amounts) -> None:
        self._fail()
        super().settle(claim, changes)

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        self._fail()
        return super().advance_version(changes, namespace)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def store() -> Failing:
    return Failing()


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), KeyboardInterrupt()])
def test_a_release_that_cannot_be_settled_is_kept(store: Failing, error: BaseException) -> None:
    limits, work = limits_of(store, TPM), PendingWork()
    claim = limits.try_acquire({"tpm": 4}).claim
    work.add(claim, [-amount for amount in claim.amounts])
    store.error = error
    with pytest.raises(type(error)):
        work.run(store)
    assert claim.released
    assert not claim.settled
    assert len(work) == 1
    store.error = None
    work.run(store)
    assert round(used(limits)["tpm"]) == 0


def test_a_release_that_is_added_twice_is_settled_once(store: Failing) -> None:
    limits, work = limits_of(store, TPM), PendingWork()
    limits.try_acquire({"tpm": 4}).release()
    claim = limits.try_acquire({"tpm": 4}).claim
    refund = [-amount for amount in claim.amounts]
    work.add(claim, refund)
    work.add(claim, refund)
    assert len(work) == 1
    work.run(store)
    work.add(claim, refund)
    work.run(store)
    assert round(used(limits)["tpm"]) == 4


def test_a_release_that_is_being_delivered_is_not_sent_again_by_its_holder() -> None:
    class Busy(Failing):
        """The holder cancels while the store settles what was kept."""

        times = 0

        def settle(self, claim: Claim, changes: Amounts) -> None:
            self.times += 1
            held.cancel()
            super().settle(claim, changes)

    store, work = Busy(), PendingWork()
    limits = limits_of(store, TPM)
    held = limits.try_acquire({"tpm": 7})
    work.add(held.claim, [-amount for amount in held.claim.amounts])
    store.error = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        work.run(store)
    store.error = None
    work.run(store)
    assert store.times == 2
    assert held.claim.settled
    assert round(used(limits)["tpm"]) == 0


def test_a_release_that_fails_for_another_reason_does_not_hold_up_the_next_ones(
    store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    limits, work = limits_of(store, TPM), PendingWork()
    bad, good = (limits.try_acquire({"tpm": amount}).claim for amount in (1, 2))
    work.add(bad, [])
    work.add(good, [-amount for amount in good.amounts])
    work.run(store)
    assert not work
    assert "could not be settled" in caplog.text
    assert round(used(limits)["tpm"]) == 1


def test_oldest_release_is_dropped_when_the_queue_is_full(store: Failing) -> None:
    limits, work = limits_of(store, TPM), PendingWork(most=2)
    for amount in (1, 2, 4):
        claim = limits.try_acquire({"tpm": amount}).claim
        work.add(claim, [-amount for amount in claim.amounts])
    assert len(work) == 2
    work.run(store)
    assert round(used(limits)["tpm"]) == 1


def test_the_version_is_advanced_once_and_before_the_releases(store: Failing) -> None:
    work, version = PendingWork(), store.version()
    work.announce([ALL])
    assert work
    store.error = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        work.run(store)
    store.error = None
    work.run(store)
    advanced = store.version()
    assert advanced != version
    work.run(store)
    assert store.version() == advanced


def test_changes_that_wait_are_announced_together_in_their_namespace(store: Failing) -> None:
    work, clients = PendingWork(), [Change.of_client(bytes([place]) * 8) for place in range(1, 66)]
    before = {name: store.advance_version((ALL,), name) for name in ("", "tenant", "many")}
    work.announce(clients[:1])
    work.announce([clients[1], clients[0], ROWS])
    work.announce(clients[:1], "tenant")
    for change in clients:
        work.announce([change], "many")
    store.error = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        work.run(store)
    store.error = None
    work.run(store)
    assert not work
    expected = {"": (clients[0], clients[1], ROWS), "tenant": (clients[0],), "many": (EVERYTHING,)}
    assert {name: store.changes_since(before[name], name) for name in before} == {
        name: (store.version(name), changes) for name, changes in expected.items()
    }


def test_change_during_an_announcement_is_announced() -> None:
    first, second = (Change.of_client(bytes([place]) * 8) for place in (1, 2))
    work = PendingWork()

    class Busy(MemoryStore):
        def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
            if second not in changes:
                work.announce([second], namespace)
            return super().advance_version(changes, namespace)

    store = Busy()
    version = MemoryStore.advance_version(store)
    work.announce([first])
    work.run(store)
    assert store.changes_since(version) == (store.version(), (first, second))
    assert not work
