"""What ways in charge a request, and until when it holds that."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Final
from weakref import ref

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidRequest, LimitExceeded
from limits_app.integrations.charges import NOTHING, ONE_OF_EACH, Charge, Charges
from limits_app.integrations.closing import when_closed
from limits_app.integrations.requester import Requester
from limits_app.services.acquiring import Limits
from limits_app.services.asking import Asked

__all__ = ["ChargedRequest"]

_ANSWERS: Final = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)
"""Exceptions with which a view answers; what answering took stays taken, or failed log-ins could not be limited."""


class ChargedRequest(Requester):
    """What a request was charged and holds: each limit once, however many ways in see it.

    Whatever is held is given back when the response has been sent, at the latest.
    """

    # Of the class, so that a request that nobody asks about costs little.
    _refused: tuple[Acquisition, ...] | None = None
    _is_refusal = False
    guarded = False
    """Whether a middleware is told when the view fails."""
    enforced = False
    """Whether it was looked which endpoint the request is about."""

    def __init__(self, request: HttpRequest) -> None:
        self._reference = ref(request)
        self._acquisitions: list[Acquisition] = []
        self._names: list[str | tuple[str, ...]] = []  # of what resources each acquisition is
        self.charges = Charges()
        """What ways in charged."""

    @property
    def holds(self) -> bool:
        """Whether anything was acquired."""
        return bool(self._acquisitions)

    @property
    def decided(self) -> Sequence[Acquisition]:
        """What clients are told of: of a refusal what refused them, else what they were charged.

        A view that goes on after a refusal tells of that as well.
        """
        refused = self._refused
        if refused is None:
            return self._acquisitions
        return refused if self._is_refusal else (*self._acquisitions, *refused)

    def charge(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, Amount] = NOTHING,
        timeout: float | None = 0,
        *,
        default_limits: Limits = (),
        asked: Asked = None,
    ) -> Acquisition:
        """Take the amounts that are named and 1 of every other limit, as far as the request was not charged before.

        Raises what `limits.acquire` raises; where nothing is left to take, the earlier acquisition is the answer.
        `asked` is for what was not charged before, and says what to take of it.
        """
        if not asked:
            if self.charges:
                self._carry_over(resource, entity, default_limits)
            asked = self.charges.rest((resource, entity), named)
        if asked is NOTHING:
            return self.charges[resource, entity][0][-1]
        if timeout == 0:
            acquisition = services.try_acquire(resource, entity=entity, requested=asked, default_limits=default_limits)
            if not acquisition.admitted:
                self._admitted(acquisition)
        else:
            acquisition = services.acquire(
                resource, entity=entity, requested=asked, timeout=timeout, default_limits=default_limits
            )
        if self.charges:
            self.charges.note((resource, entity), named, acquisition)
        else:  # as that does, which is a call more
            self.charges[resource, entity] = (acquisition,), named
        return self._hold(resource, acquisition)

    async def acharge(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, Amount] = NOTHING,
        timeout: float | None = 0,
        *,
        default_limits: Limits = (),
        asked: Asked = None,
    ) -> Acquisition:
        """`charge` for asyncio."""
        if not asked:
            if self.charges:
                await self._acarry_over(resource, entity, default_limits)
            asked = self.charges.rest((resource, entity), named)
        if asked is NOTHING:
            return self.charges[resource, entity][0][-1]
        if timeout == 0:
            acquisition = await services.atry_acquire(
                resource, entity=entity, requested=asked, default_limits=default_limits
            )
            if not acquisition.admitted:
                self._admitted(acquisition)
        else:
            acquisition = await services.aacquire(
                resource, entity=entity, requested=asked, timeout=timeout, default_limits=default_limits
            )
        self.charges.note((resource, entity), named, acquisition)
        return self._hold(resource, acquisition)

    def charge_share(self, share: services.Share) -> Acquisition:
        """`charge_all` for one."""
        key = share.resource, share.entity
        if self.charges:
            self._carry_over(*key, share.default_limits)
            if self.was_charged(*key):
                return self.charges[key][0][-1]
        return self.charge(*key, default_limits=share.default_limits, asked=share.requested or ONE_OF_EACH)

    def charge_all(self, shares: Iterable[services.Share]) -> Acquisition:
        """Take all shares that the request was not charged before, of which there must be some, or none of them.

        A share that asks for nothing in particular takes 1 of every limit. Raises what `limits.acquire` raises.
        """
        shares = list(shares)
        if self.charges:
            for share in shares:
                self._carry_over(share.resource, share.entity, share.default_limits)
        new = self.charges.new(shares)
        if len(new) <= 1:
            return self.charge_share(*(new.values() or shares[:1]))
        acquisition = self._admitted(services.try_acquire_all(list(new.values())))
        for key in new:
            self.charges.note(key, NOTHING, acquisition)
        return self._hold(tuple({resource: None for resource, _ in new}), acquisition)

    def was_charged(self, resource: str, entity: str | None) -> bool:
        """Whether a way in has charged it and it was not given back."""
        return self.charges.before((resource, entity)) is not None

    def listen(self) -> None:
        """Hear of the end from now on, when the response is there; also of what it takes while it streams.

        Later is too late: who sends a response has noted by then what to call when that was sent.
        """
        if not self._acquisitions:
            request = self._request
            # It is kept until then, since a stream may need nothing else of it than this.
            when_closed(request, partial(self._end_of, request))

    def _end_of(self, request: HttpRequest) -> None:
        request.__dict__.pop("close", None)  # it refers to the request
        self.end()

    def end(self) -> None:
        """The response was sent: permits go back, and amounts whose usage nobody reported count as used."""
        for acquisition in self._acquisitions:
            acquisition.release()

    def fail(self, error: BaseException) -> None:
        """The view raised: amounts whose usage nobody reported are given back, unless the error is an answer."""
        if not isinstance(error, _ANSWERS):
            self._settle(Acquisition.cancel)

    def undo(self) -> None:
        """The request is refused: what ways in charged it before is given back, calls included.

        What the code acquired itself is given back as far as its usage was to be reported, since a call was made.
        That is for refusals before the view; one inside of it is `fail`, or whoever gets there had a free attempt.
        """
        self.charges.give_back()
        self._settle(Acquisition.cancel)
        self.refuse()

    def refuse(self) -> None:
        """The response is a refusal: clients are told of what refused them, and of nothing else."""
        self._is_refusal = True
        self._refused = self._refused or ()

    def _admitted(self, acquisition: Acquisition) -> Acquisition:
        """What was admitted; LimitExceeded for what was refused, which clients are told of."""
        if acquisition.admitted:
            return acquisition
        self._refused = (acquisition,)
        raise LimitExceeded(acquisition.outcome)

    def _hold(self, resource: str | tuple[str, ...], acquisition: Acquisition) -> Acquisition:
        if not self._acquisitions:
            when_closed(self._reference() or self._request, self.end)
        self._acquisitions.append(acquisition)
        self._names.append(resource)
        return acquisition

    def _carry_over(self, resource: str, entity: str | None, default_limits: Limits) -> None:
        """Charge the requester what the one was charged for whom they were taken, who gets it back."""
        charge = self._mistaken(resource, entity, self.entity)
        if charge is None:
            return
        for acquisition in charge[0]:
            acquisition.release()
        try:
            self.charge(resource, entity, charge[1], default_limits=default_limits)
        except InvalidRequest:  # of limits that only the other one has
            self.charge(resource, entity, default_limits=default_limits)

    async def _acarry_over(self, resource: str, entity: str | None, default_limits: Limits) -> None:
        """`_carry_over` for asyncio."""
        charge = self._mistaken(resource, entity, await self.aentity())
        if charge is None:
            return
        for acquisition in charge[0]:
            await acquisition.arelease()
        try:
            await self.acharge(resource, entity, charge[1], default_limits=default_limits)
        except InvalidRequest:
            await self.acharge(resource, entity, default_limits=default_limits)

    def _mistaken(self, resource: str, entity: str | None, requester: str | None) -> Charge | None:
        """What was charged to somebody for whom the requester was taken; forgotten, and reported as not used."""
        for former in self._taken_for if entity == requester else ():
            charge = None if former == entity else self.charges.withdraw((resource, former))
            if charge is not None:
                self._drop(charge[0])
                return charge
        return None

    def _drop(self, acquisitions: Container[Acquisition]) -> None:
        kept = [one not in acquisitions for one in self._acquisitions]
        self._acquisitions, self._names = [*compress(self._acquisitions, kept)], [*compress(self._names, kept)]

    def _settle(self, settle: Callable[[Acquisition], None]) -> None:
        for acquisition in self._acquisitions:
            settle(acquisition)
