"""What ways in charge a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from threading import RLock
from typing import Any

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidRequest, LimitExceeded, StoreUnavailable
from limits_app.integrations.answering import AnsweredRequest
from limits_app.integrations.charges import NOTHING, ONE_OF_EACH, Charge, Key
from limits_app.services import Share
from limits_app.services.acquiring import Limits, try_resource
from limits_app.services.asking import Asked

__all__ = ["ChargedRequest"]

AnyShare = tuple[str, str | None, Asked, Limits]
"""What a `Share` is, which to make by its name is a call more."""


class ChargedRequest(AnsweredRequest):
    """What a request was charged: each limit once, however many ways in see it.

    Parts of a view that run at the same time take turns, or each would find that nothing was charged yet. Those that
    may wait for a limit take none, since others would have to wait for them.
    """

    def charge(
        self, resource: str, entity: str | None, named: Mapping[str, Amount] = NOTHING, timeout: float | None = 0
    ) -> Acquisition:
        """`take` for those who report the usage of what they get; where nothing is left to take, of what was taken."""
        # One that lets in again who has it: a receiver of a signal may charge the same request.
        turn: AbstractContextManager[object] = nullcontext() if timeout != 0 else self._turn(RLock, (resource, entity))
        with turn:
            self.take(resource, entity, named, timeout)
            self.hear()
            return self.charged(resource, entity)[-1]

    async def acharge(
        self, resource: str, entity: str | None, named: Mapping[str, Amount] = NOTHING, timeout: float | None = 0
    ) -> Acquisition:
        """`charge` for asyncio."""
        # Of its own for each loop. Not the one of threads, who would wait in a thread that a task may need to go on.
        turn: AbstractAsyncContextManager[object] = nullcontext()
        if timeout == 0:
            turn = self._turn(asyncio.Lock, (resource, entity, asyncio.get_running_loop()))
        async with turn:
            await self.atake(resource, entity, named, timeout)
            self.hear()
            return self.charged(resource, entity)[-1]

    def charged(self, resource: str, entity: str | None) -> tuple[Acquisition, ...]:
        """What ways in took of a resource for an entity, one after the other."""
        charge = self.charges.get((resource, entity))
        return () if charge is None else charge[0]

    def take(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, Amount] = NOTHING,
        timeout: float | None = 0,
        *,
        default_limits: Limits = (),
    ) -> None:
        """Take the amounts that are named and 1 of every other limit, as far as the request was not charged before.

        Raises what `limits.acquire` raises.
        """
        if self.charges:
            self._carry_over(resource, entity, default_limits)
        asked = self.charges.rest((resource, entity), named)
        if asked is NOTHING:
            return
        if timeout == 0:
            self.take_new((resource, entity, asked, default_limits), named)
            return
        acquisition = services.acquire(
            resource, entity=entity, requested=asked, timeout=timeout, default_limits=default_limits
        )
        self._note((resource, entity), named, acquisition)
        self._hold(acquisition)

    async def atake(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, Amount] = NOTHING,
        timeout: float | None = 0,
        *,
        default_limits: Limits = (),
    ) -> None:
        """`take` for asyncio."""
        if self.charges:
            await self._acarry_over(resource, entity, default_limits)
        asked = self.charges.rest((resource, entity), named)
        if asked is NOTHING:
            return
        if timeout == 0:
            await self.atake_new((resource, entity, asked, default_limits), named)
            return
        acquisition = await services.aacquire(
            resource, entity=entity, requested=asked, timeout=timeout, default_limits=default_limits
        )
        self._note((resource, entity), named, acquisition)
        self._hold(acquisition)

    def take_new(self, share: AnyShare, named: Mapping[str, Amount] = NOTHING) -> None:
        """Take a share of which nothing was charged before; 1 of every limit where it asks for nothing in particular.

        What it asks for is said for the amounts that are `named`.
        """
        resource, entity, asked, default_limits = share  # by name they are found in twice the time
        acquisition = try_resource(resource, entity, asked or ONE_OF_EACH, default_limits)
        if not acquisition.successful:
            self._admitted(acquisition)
        if self.charges or acquisition.claim.plan.needs_settling or acquisition.__class__ is not Acquisition:
            self._note((resource, entity), named, acquisition)
            self._hold(acquisition)
        else:  # as these two do with the first if nobody reports anything of it, which are two calls more
            self.charges[resource, entity] = (acquisition,), named
            self.acquired.append(acquisition)

    async def atake_new(self, share: AnyShare, named: Mapping[str, Amount] = NOTHING) -> None:
        """`take_new` for asyncio."""
        resource, entity, asked, default_limits = share
        acquisition = self._admitted(
            await services.atry_acquire(
                resource, entity=entity, requested=asked or ONE_OF_EACH, default_limits=default_limits
            )
        )
        self._note((resource, entity), named, acquisition)
        self._hold(acquisition)

    def take_share(self, share: Share) -> None:
        """`take_all` for one."""
        resource, entity, _, default_limits = share
        if self.charges:
            self._carry_over(resource, entity, default_limits)
            if self.was_charged(resource, entity):
                return
        self.take_new(share)

    def take_all(self, shares: Iterable[Share]) -> None:
        """Take all shares that the request was not charged before, of which there must be some, or none of them.

        A share that asks for nothing in particular takes 1 of every limit. Raises what `limits.acquire` raises.
        """
        shares = list(shares)
        if self.charges:
            for share in shares:
                self._carry_over(share.resource, share.entity, share.default_limits)
        new = self.charges.new(shares)
        if len(new) <= 1:
            self.take_share(*(new.values() or shares[:1]))
            return
        acquisition = self._admitted(services.try_acquire_all(list(new.values())))
        for key in new:
            self._note(key, NOTHING, acquisition)
        self._hold(acquisition)

    def take_each(self, shares: Iterable[Share]) -> None:
        """`take_all` where one step is not enough: one after the other, given back when a later one is refused."""
        before = self.acquired.copy()
        try:
            for share in shares:
                self.take_share(share)
        except (LimitExceeded, StoreUnavailable):
            taken = [one for one in self.acquired if one not in before]
            self._undo(taken)
            self._drop(taken)
            raise

    def was_charged(self, resource: str, entity: str | None) -> bool:
        """Whether a way in has charged it and it was not given back."""
        return self.charges.before((resource, entity)) is not None

    def _turn(self, make: Callable[[], Any], key: object) -> Any:
        """What lets one part of a view after the other charge something; made when the first one does."""
        return vars(self).setdefault("_turns", {}).setdefault(key, make())

    def _note(self, key: Key, named: Mapping[str, Amount], acquisition: Acquisition) -> None:
        """Note what was charged; what was charged before it may have to give something back with the end."""
        if self.charges:
            self.hear()
        self.charges.note(key, named, acquisition)

    def _carry_over(self, resource: str, entity: str | None, default_limits: Limits) -> None:
        """Charge the requester what the one was charged for whom they were taken, who gets it back."""
        charge = self._mistaken(resource, entity, self.entity)
        if charge is None:
            return
        for acquisition in charge[0]:
            acquisition.release()
        try:
            self.take(resource, entity, charge[1], default_limits=default_limits)
        except InvalidRequest:  # of limits that only the other one has
            self.take(resource, entity, default_limits=default_limits)

    async def _acarry_over(self, resource: str, entity: str | None, default_limits: Limits) -> None:
        """`_carry_over` for asyncio."""
        charge = self._mistaken(resource, entity, await self.aentity())
        if charge is None:
            return
        for acquisition in charge[0]:
            await acquisition.arelease()
        try:
            await self.atake(resource, entity, charge[1], default_limits=default_limits)
        except InvalidRequest:
            await self.atake(resource, entity, default_limits=default_limits)

    def _mistaken(self, resource: str, entity: str | None, requester: str | None) -> Charge | None:
        """What was charged to somebody for whom the requester was taken; forgotten, and reported as not used."""
        for former in self._taken_for if entity == requester else ():
            charge = None if former == entity else self.charges.withdraw((resource, former))
            if charge is not None:
                self._drop(charge[0])
                return charge
        return None
