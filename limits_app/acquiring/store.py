"""The store protocol: the state of limits, changed atomically; and versions of the configuration with their changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol, TypeGuard

from limits_app.acquiring.leases import Renewer
from limits_app.acquiring.waiting import WaitingLine
from limits_app.engine import ALL, Amounts, Batch, Change, Changes, Claim, Clock, RejectionCounts


class Store(Protocol):
    """Keeps the state of limits; each verb is one atomic step over all buckets of a claim.

    A verb whose claim was compiled from another configuration than the store's raises StaleConfiguration,
    and one that fails raises StoreUnavailable; both change nothing.
    """

    clock: Clock
    """The time of the state."""
    line: WaitingLine
    """The waiters of this process; notified of every change that may admit them."""
    renewer: Renewer
    """Renews the permits that this process holds."""
    lease_us: int
    """How long a permit is leased without renewal."""
    poll_us: tuple[int, int] | None
    """The shortest and the longest interval at which a waiter for a permit tries again without being woken (None:
    never). Equal where other processes wake it, so that it only polls for holders that died; else they differ.
    """

    remote: bool
    """Whether another machine answers; then the store is a RemoteStore."""
    counting: bool
    """Whether the store can count the amounts that it admits; then it is a CountingStore."""

    def acquire(self, claim: Claim) -> bool:
        """Charge all amounts of the claim, or none; fill in the decision and return whether it was admitted.

        An amount of 0 is admitted unless the limit is in debt, and charges nothing.
        """

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        """Charge the first of the claims that fits, in one step with the choice; None when none fits.

        They are tried in their order, or with `emptiest_first` by rising `Claim.load` at this time, equal ones in
        their order. Without `failover` only the first claim is tried.
        Decisions are filled in as by `acquire`; `admitted` stays None in claims that were not tried.
        """

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """Add `changes`, one for each limit of the plan, to the charged amounts, and return all permits.

        Positive changes are charged even beyond the limit; negative ones are refunded where the algorithm can, and in
        a plan that is credit whatever the algorithm. Settling a claim again changes nothing; nor do permits whose lease
        has run out. `claim.lose_lease()` is called for those, after the step and outside of locks and transactions.
        """

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Lease the permits of the claims again; return the claims whose lease had run out.

        The longest hold of a permit that began later than now plus this hold starts again, since the clock was set
        back; `claim.note_held_since()` is called for it.
        """

    def peek(self, claim: Claim) -> None:
        """Fill in the time and the states without charging anything."""

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """Forget the use in scopes (by key), of the limits named or of all; permits stay with their holders.

        What processes hold in slices stays charged: what is leased in the scope of `slices_key`, in whole units. What
        was charged before is not refunded any more.
        """

    def version(self, namespace: str = "") -> int:
        """Return the version of the configuration of a namespace; 0 before the first change."""

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        """Make every claim that was compiled before now stale, in every process that shares the store.

        Raises the version, and appends the changes that were announced together to the log, in one step; see
        `ChangeLog.advanced`. A claim is compared with the version of the namespace of its plan.
        """

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        """Return the version and the changes after another one, read in one step; None when they are unknown.

        See `ChangeLog.since`. What is announced again because a reply was lost may be there twice.
        """


MOST_COLLECTORS: Final = 8
"""How many processes can collect from a store at the same time, where they can share it at all."""


class CountingStore(Store, Protocol):
    """A store that counts admitted amounts in scopes whose schema `counts_usage`, in the step that admits them.

    A count is either in the state or in one batch until that batch is removed, whatever happens to processes. So is a
    rejection, from `add_rejections` on.
    """

    collectors: int
    """How many processes can collect at the same time, each with batches of its own."""

    def add_rejections(self, rejections: RejectionCounts, namespace: str = "") -> None:
        """Add rejections, which a process has counted, to those of a namespace that wait to be collected.

        Those whose reply was lost may have been added.
        """

    def collect_counts(self, namespace: str = "", collector: int = 0) -> Batch | None:
        """Move the counts and rejections of a namespace out of the state into a batch; None when there are none.

        A batch of this collector that was not removed is returned again, unchanged: the process that collected it may
        have died. There may be more counts than one batch holds.
        """

    def forget_counts(self, name: str, namespace: str = "") -> None:
        """Remove a batch of a namespace whose counts are saved elsewhere; one that does not exist is ignored."""


class RemoteStore(Store, Protocol):
    """A store on another machine, whose answers must not block an event loop."""

    settle_later: Callable[[Claim, Amounts], object] | None
    """Called with what the store could not settle after its caller had gone; None where nothing takes care of that."""

    async def aacquire(self, claim: Claim) -> bool:
        """`acquire` for asyncio. When it is cancelled, nothing stays charged."""

    async def aacquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        """`acquire_first` for asyncio. When it is cancelled, nothing stays charged."""

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        """`settle` for asyncio. When it is cancelled, it is done all the same, or left to `settle_later`."""

    async def apeek(self, claim: Claim) -> None:
        """`peek` for asyncio."""


def is_remote(store: Store) -> TypeGuard[RemoteStore]:
    """Return whether a store has the verbs for asyncio; stores of this machine do without."""
    return store.remote


def is_counting(store: Store) -> TypeGuard[CountingStore]:
    """Return whether a store can count admitted amounts."""
    return store.counting
