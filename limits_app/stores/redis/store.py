"""The Redis store: verbs for threads, and the same for tasks, which must not be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from limits_app.core.claim import Claim
from limits_app.core.errors import NotShareable, StoreUnavailable
from limits_app.core.parts import Amounts
from limits_app.stores.in_thread import AskedInThread, give_back, keep_unsettled, surely_in_thread
from limits_app.stores.redis.deciding import DONE, NEWCOMERS, NOT_YET, REFUSED
from limits_app.stores.redis.links import Unanswered
from limits_app.stores.redis.opened import open_store
from limits_app.stores.redis.plans import PreparedPlan
from limits_app.stores.redis.verbs import Heard, Verbs

__all__ = ["RedisStore"]

C = TypeVar("C", bound=Claim)


class RedisStore(Verbs, AskedInThread):
    """Keeps state on a Redis or Valkey server, for all machines that reach it.

    Give it the `alias` of a django-redis cache, a `url`, or a `client` of redis-py.
    All keys start with `prefix`. `clock` returns microseconds and takes the place of the server's clock, for tests.
    Open it through `open_redis_store`: one store per process and server is enough.
    A verb raises StoreUnavailable when the server cannot be reached within `connect_seconds`, or does not answer
    within `reply_seconds`; a reply that was lost is asked for once more, and nothing is charged twice.
    """

    def __reduce__(self) -> tuple[object, ...]:
        if self._now is not None:
            raise NotShareable("a store with a clock of its own cannot be sent to another process: leave clock= out")
        return open_store, (type(self), *self._source.address(), self._options)

    def __repr__(self) -> str:
        return f"RedisStore({self._source})"

    async def aacquire(self, claim: Claim) -> bool:
        """`acquire` for asyncio; a task that is cancelled meanwhile is charged nothing."""
        plan, refusals = claim.plan, self._refusals
        if plan.version is None and refusals.refuses(claim):
            return False
        prepared = self._prepared.known(plan)
        if prepared is None:
            return await super().aacquire(claim)
        forgotten = refusals.forgotten
        call, hear = self._phrases.asking(claim, prepared), partial(self._admitted, claim, prepared)
        try:
            reply = await self._tasks.run(call, partial(self._abandoned, (claim,), hear))
        except Unanswered as error:
            self._give_back_later([claim], hear, error.slot)
            raise
        if reply[0] in NOT_YET:
            return await super().aacquire(claim)
        status = self._decisions.fill(claim, prepared, reply, forgotten)
        if status == NEWCOMERS:
            await self._define(prepared, claim)
        return status != REFUSED

    async def aacquire_first(
        self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True
    ) -> C | None:
        """`acquire_first` for asyncio; a task that is cancelled meanwhile is charged nothing."""
        claims = self._decisions.worth_asking(claims, emptiest_first=emptiest_first, failover=failover)
        choice = self._prepared.known_choice(claims, emptiest_first=emptiest_first, failover=failover)
        if choice is None:
            return await super().aacquire_first(claims, emptiest_first=emptiest_first, failover=failover)
        forgotten = self._refusals.forgotten
        call, hear = self._phrases.choosing(claims, choice), partial(self._chosen, claims, choice)
        try:
            reply = await self._tasks.run(call, partial(self._abandoned, claims, hear))
        except Unanswered as error:
            self._give_back_later(claims, hear, error.slot)
            raise
        if reply[0] in NOT_YET:
            return await super().aacquire_first(claims, emptiest_first=emptiest_first, failover=failover)
        chosen, newcomer = self._decisions.fill_first(claims, choice, reply, forgotten)
        if newcomer is not None:
            await self._define(newcomer, chosen)
        return chosen

    async def _define(self, prepared: PreparedPlan, admitted: Claim | None) -> None:
        """Define layouts anew for an admitted claim, which is given back when the task is cancelled meanwhile."""
        try:
            await asyncio.to_thread(self._prepared.define_anew, prepared.codecs)
        except asyncio.CancelledError:
            asyncio.get_running_loop().run_in_executor(None, give_back, self, admitted)
            raise

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        """`settle` for asyncio; it is done even when the task is cancelled."""
        prepared = self._prepared.known(claim.plan)
        if prepared is None or (claim, prepared) in self._unsettled:
            await super().asettle(claim, changes)
            return
        if not self._settling.begin(claim):
            return
        call = self._phrases.changing(claim, changes, prepared)
        unheard = partial(self._settled_unheard, claim, changes, prepared)
        try:
            reply = await self._tasks.run(call, unheard, surely=True)
        except StoreUnavailable as error:
            self._not_settled(claim, prepared, error)
            raise
        if reply[0] == DONE:
            self._settled(claim)
            self._settling.end(claim)
        else:
            finish = partial(self._finish_settling, claim, changes, prepared, reply)
            await surely_in_thread(finish, partial(keep_unsettled, self, claim, changes))

    def _finish_settling(self, claim: Claim, changes: Amounts, prepared: PreparedPlan, reply: bytes) -> None:
        try:
            if reply[0] in NOT_YET:
                self._settle_now(claim, changes)
            else:
                self._settled(claim, lapsed=self._heard_settled(prepared, reply))
        finally:
            self._settling.end(claim)

    def _not_settled(self, claim: Claim, prepared: PreparedPlan, error: StoreUnavailable) -> None:
        if isinstance(error, Unanswered):
            self._unsettled.keep((claim, prepared), error.slot)
        self._settling.end(claim)

    def _settled_unheard(
        self, claim: Claim, changes: Amounts, prepared: PreparedPlan, reply: bytes | StoreUnavailable
    ) -> None:
        """The same where nobody waits for it any more, also where there was no reply."""
        if isinstance(reply, StoreUnavailable):
            self._not_settled(claim, prepared, reply)
            keep_unsettled(self, claim, changes, reply)
            return
        try:
            self._finish_settling(claim, changes, prepared, reply)
        except StoreUnavailable as error:
            keep_unsettled(self, claim, changes, error)

    def _abandoned(self, claims: Sequence[Claim], hear: Heard, reply: bytes | StoreUnavailable) -> None:
        """Give back what was admitted when nobody waited for it any more, also where there was no reply."""
        if isinstance(reply, Unanswered):
            self._give_back_later(claims, hear, reply.slot)
        elif not isinstance(reply, StoreUnavailable):
            give_back(self, hear(reply))
