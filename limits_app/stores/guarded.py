"""A store as the site uses it: what is given back while it is down is not lost, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from limits_app.core.counting import Batch
from limits_app.core.errors import StoreUnavailable
from limits_app.core.plan import Amounts, Claim
from limits_app.core.store import CountingStore, RemoteStore, Store

if TYPE_CHECKING:
    from limits_app.stores.guards import Guard

__all__ = ["GuardedStore"]

C = TypeVar("C", bound=Claim)


class GuardedStore:
    """Another store, of which `settle` never fails: it may only come later.

    Whoever calls the other verbs asks the guard first; `acquire` is that of the store itself,
    so that the way of every request costs nothing more.
    """

    def __init__(self, store: Store, guard: Guard) -> None:
        self.store = store
        self.clock = store.clock
        self.line = store.line
        self.renewer = store.renewer
        self.lease_us = store.lease_us
        self.patience_us = store.patience_us
        self.remote = store.remote
        self.counting = store.counting
        self._guard = guard

    def __reduce__(self) -> tuple[object, ...]:
        return _itself, (self.store,)

    @property
    def acquire(self) -> Callable[[Claim], bool]:
        """See `Store.acquire`."""
        return self.store.acquire

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        """See `Store.acquire_first`."""
        return self.store.acquire_first(claims, emptiest_first=emptiest_first, failover=failover)

    async def aacquire_first(
        self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True
    ) -> C | None:
        """See `RemoteStore.aacquire_first`."""
        return await self._remote().aacquire_first(claims, emptiest_first=emptiest_first, failover=failover)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """See `Store.settle`; what the store cannot settle now is settled when it is back."""
        guard = self._guard
        if guard.breaker.calm:
            try:
                self.store.settle(claim, changes)
            except StoreUnavailable as error:
                guard.failed(error)
            else:
                return
        else:
            with guard.call() as granted:
                if granted:
                    self.store.settle(claim, changes)
                    return
        guard.settle_later(claim, changes)

    @property
    def aacquire(self) -> Callable[[Claim], Awaitable[bool]]:
        """See `RemoteStore.aacquire`."""
        return self._remote().aacquire

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        """`settle` for asyncio."""
        guard = self._guard
        if guard.breaker.calm:
            try:
                await self._remote().asettle(claim, changes)
            except StoreUnavailable as error:
                guard.failed(error)
            else:
                return
        else:
            with guard.call() as granted:
                if granted:
                    await self._remote().asettle(claim, changes)
                    return
        guard.settle_later(claim, changes)

    async def apeek(self, claim: Claim) -> None:
        """See `RemoteStore.apeek`."""
        await self._remote().apeek(claim)

    def _remote(self) -> RemoteStore:
        return cast("RemoteStore", self.store)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`."""
        return self.store.renew(claims)

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`."""
        self.store.peek(claim)

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        self.store.reset(scopes, keys)

    def collect_counts(self) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        return cast("CountingStore", self.store).collect_counts()

    def forget_counts(self, name: str) -> None:
        """See `CountingStore.forget_counts`."""
        cast("CountingStore", self.store).forget_counts(name)

    def version(self) -> int:
        """See `Store.version`."""
        return self.store.version()

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        return self.store.advance_version()


def _itself(store: Store) -> Store:
    """A store that arrives in another process has no guard there yet."""
    return store
