"""What a store is: the state of limits, changed atomically."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeGuard, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.clock import Clock
from limits_app.core.counting import Batch
from limits_app.core.parts import Amounts
from limits_app.core.renewal import Renewer
from limits_app.core.waiting import WaitingLine

__all__ = ["CountingStore", "RemoteStore", "Store", "is_counting", "is_remote"]

C = TypeVar("C", bound=Claim)


class Store(Protocol):
    """Keeps the state of limits; each verb is one atomic step over all buckets of a claim.

    A verb whose claim was compiled from an older configuration than the store's raises StaleConfiguration,
    and one that cannot be done raises StoreUnavailable; both change nothing.
    """

    clock: Clock
    """The time of the state."""
    line: WaitingLine
    """The waiters of this process; the store notifies it of every release, refund, reset and new version."""
    renewer: Renewer
    """Who holds permits in this process."""
    lease_us: int
    """How long a permit is lent without renewal."""
    poll_us: tuple[int, int] | None
    """The shortest and the longest time after which a waiter for a permit tries again without being woken, since
    another process may release a permit, or die with it, without a message; None: it sleeps until it is woken.
    """

    remote: bool
    """Whether it is another machine that answers: then it is a RemoteStore."""
    counting: bool
    """Whether it can count what it admits: then it is a CountingStore."""

    def acquire(self, claim: Claim) -> bool:
        """Charge all amounts of the claim, or none; fills in the decision and says whether it admitted.

        An amount of 0 is admitted unless the limit is in debt, and charges nothing.
        """

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        """Charge the first of the claims that fits, in one step with the choice; None when there is none.

        They are asked in their order, or with `emptiest_first` by rising `Claim.load` of this moment,
        in which equals keep their order. Without `failover` only the first of them is asked.
        Decisions are filled in as by `acquire`; `admitted` stays None in those that were not asked.
        """

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """Add `changes`, one for each limit of the plan, to what was charged, and give all permits back.

        Positive changes are charged whatever the limit says; negative ones are given back where the algorithm can,
        and in parts whose `is_credit` whatever the algorithm is, but for permits.
        Settling a claim again changes nothing; nor do permits whose lease has run out.
        Of those the claim is told, by `lapse`, once all is done: outside of locks and transactions.
        """

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Lend the permits of the claims for another lease; returns those whose lease had run out."""

    def peek(self, claim: Claim) -> None:
        """Fill in the moment and the states without charging anything."""

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """Forget what was used in scopes (by key), of the limits named or of all; permits stay with their holders."""

    def version(self) -> int:
        """The version of the configuration."""

    def advance_version(self) -> int:
        """Make every claim that was compiled before now stale, in every process that shares the store.

        The next version is what `limits_app.core.version.next_version` says.
        """


class CountingStore(Store, Protocol):
    """A store that counts what it admits in scopes whose layout `counts`, in the step that admits it.

    Counts are exact whatever happens to their users: they are there or in one batch, until that is forgotten.
    """

    def collect_counts(self) -> Batch | None:
        """Take what was counted out of the state, into a batch; None when there is nothing.

        A batch that nobody has forgotten comes first, as it was: whoever collected it may have died.
        There may be more than goes into one batch.
        """

    def forget_counts(self, name: str) -> None:
        """Forget a batch whose counts are safe elsewhere; one that is gone already is no matter."""


class RemoteStore(Store, Protocol):
    """A store whose answers are waited for, which event loops must not be blocked by."""

    settle_later: Callable[[Claim, Amounts], object] | None
    """Told by the store of what it could not settle when nobody waited for that any more.

    Set by whoever watches over the store, if anybody does.
    """

    async def aacquire(self, claim: Claim) -> bool:
        """`acquire` for asyncio. When it is cancelled, nothing stays charged."""

    async def aacquire_first(
        self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True
    ) -> C | None:
        """`acquire_first` for asyncio. When it is cancelled, nothing stays charged."""

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        """`settle` for asyncio. When it is cancelled, it is done all the same, or left to `settle_later`."""

    async def apeek(self, claim: Claim) -> None:
        """`peek` for asyncio."""


def is_remote(store: Store) -> TypeGuard[RemoteStore]:
    """Whether a store has the verbs for asyncio, which those that answer at once do without."""
    return store.remote


def is_counting(store: Store) -> TypeGuard[CountingStore]:
    """Whether a store can count what it admits."""
    return store.counting
