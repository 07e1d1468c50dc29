"""The suite itself: it finds stores that are wrong, and is found where users look for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import pytest

from limits_app.acquiring.store import Store
from limits_app.engine.change_log import Change
from limits_app.engine.claims import Claim
from limits_app.engine.limits import QuotaLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.plan import Amounts
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock, StoreConformance
from limits_app.testing.conformance.concurrency import WaiterClock, waiting
from limits_app.testing.conformance.contract import give_back, limits_of, taken

C = TypeVar("C", bound=Claim)


class CountsRefusals(MemoryStore):
    """Amounts what it refuses."""

    def acquire(self, claim: Claim) -> bool:
        admitted = super().acquire(claim)
        if not admitted:
            counted = Claim(claim.plan, claim.amounts, claim.version)
            counted.decided_at = claim.decided_at
            super().settle(counted, claim.amounts)
        return admitted


class SettlesAgain(MemoryStore):
    """Takes a settlement that comes twice for two."""

    def settle(self, claim: Claim, changes: Amounts) -> None:
        claim.settled = False
        super().settle(claim, changes)


class ForgetsWhen(MemoryStore):
    """Settles as if everything had been taken just now."""

    def settle(self, claim: Claim, changes: Amounts) -> None:
        claim.decided_at = self.clock()
        super().settle(claim, changes)


class NeverLosesALease(MemoryStore):
    """Says that everything was renewed."""

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        super().renew(claims)
        return []


class ReportsNoLoss(MemoryStore):
    """Does not report that a lease had run out before the release."""

    def settle(self, claim: Claim, changes: Amounts) -> None:
        claim.lose_lease = lambda: None  # type: ignore[method-assign]
        super().settle(claim, changes)


class ChoosesBlindly(MemoryStore):
    """Asks in the order given, whatever is wanted."""

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        return super().acquire_first(claims, failover=failover)


class ForgetsEverything(MemoryStore):
    """Takes permits away when it is reset."""

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        for scope in scopes:
            self._records.pop(scope, None)


class HasNoVersions(MemoryStore):
    """Takes old limits for new ones."""

    def advance_version(self, changes: Collection[Change] = (), namespace: str = "") -> int:
        return 1


class WakesNobody(MemoryStore):
    """Gives back in silence."""

    def settle(self, claim: Claim, changes: Amounts) -> None:
        line, self.line = self.line, type(self.line)()
        super().settle(claim, changes)
        self.line = line


class RunsAhead(MemoryStore):
    """Reads a clock that is a microsecond fast."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self._now = lambda: clock() if len(self) == 0 else clock() + 1


WRONG: dict[str, tuple[Callable[[FakeClock], Store], Callable[[StoreConformance, Store, FakeClock], None]]] = {
    "counts_refusals": (
        lambda clock: CountsRefusals(clock=clock),
        lambda suite, store, clock: suite.test_no_limit_is_charged_when_one_refuses(store, clock, 1),
    ),
    "settles_again": (
        lambda clock: SettlesAgain(clock=clock),
        lambda suite, store, clock: suite.test_settling_a_claim_again_changes_nothing(store, -3),
    ),
    "forgets_when": (
        lambda clock: ForgetsWhen(clock=clock),
        lambda suite, store, clock: suite.test_a_refund_counts_in_its_period_and_debt_in_that_of_its_report(
            store, clock, QuotaLimit.per_day("units", 10)
        ),
    ),
    "never_loses_a_lease": (
        lambda clock: NeverLosesALease(clock=clock),
        lambda suite, store, clock: suite.test_renewal_never_revives_a_lease_that_has_ended(store, clock),
    ),
    "reports_no_loss": (
        lambda clock: ReportsNoLoss(clock=clock),
        lambda suite, store, clock: suite.test_the_callback_of_a_lost_lease_may_use_the_store(store, clock),
    ),
    "chooses_blindly": (
        lambda clock: ChoosesBlindly(clock=clock),
        lambda suite, store, clock: suite.test_the_emptiest_has_the_largest_free_share(store),
    ),
    "forgets_everything": (
        lambda clock: ForgetsEverything(clock=clock),
        lambda suite, store, clock: suite.test_a_reset_forgets_the_use_and_leaves_permits_with_their_holders(
            store, RateLimitAlgorithm.GCRA
        ),
    ),
    "runs_ahead": (
        RunsAhead,
        lambda suite, store, clock: suite.test_two_thousand_refills_do_not_drift(
            store, clock, RateLimitAlgorithm.TOKEN_BUCKET
        ),
    ),
}


@pytest.mark.parametrize(("make", "test"), WRONG.values(), ids=WRONG)
def test_a_wrong_store_fails(
    make: Callable[[FakeClock], Store], test: Callable[[StoreConformance, Store, FakeClock], None]
) -> None:
    clock = FakeClock()
    with pytest.raises(AssertionError):
        test(StoreConformance(), make(clock), clock)
    test(StoreConformance(), MemoryStore(clock=clock), clock)


def test_a_store_without_versions_fails() -> None:
    with pytest.raises(pytest.fail.Exception):
        StoreConformance().test_old_and_unknown_limits_are_stale_and_charge_nothing(HasNoVersions(clock=FakeClock()))


def test_a_store_that_wakes_no_waiter_fails() -> None:
    clock = WaiterClock()
    store = clock.store = WakesNobody(clock=clock)
    limits = limits_of(store, ResourceLimit("db", 1))
    claim = taken(limits)
    with waiting(clock, lambda: limits.acquire(timeout=10**5)) as waiter:
        give_back(limits, claim)
        with pytest.raises(TimeoutError):
            waiter.result(0.1)


def test_missing_fixtures_are_skipped_or_reported() -> None:
    suite = StoreConformance()
    with pytest.raises(NotImplementedError, match="make_store"):
        suite.make_store(FakeClock())
    with pytest.raises(pytest.skip.Exception, match="count_entries"):
        suite.test_peeks_resets_and_refusals_keep_nothing(MemoryStore(clock=FakeClock()))
    with pytest.raises(pytest.skip.Exception, match="open_store"):
        suite.test_processes_are_admitted_exactly_the_capacity("fork")


@pytest.mark.parametrize("module", ["limits_app.testing", "limits_app.testing.conformance"])
def test_it_is_where_users_look_for_it(module: str) -> None:
    package = importlib.import_module(module)
    assert package.StoreConformance is StoreConformance
    assert "StoreConformance" in package.__all__
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = package.Nonsense
