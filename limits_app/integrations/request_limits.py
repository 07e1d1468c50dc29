"""`request.limits`: what one request was charged, each limit once, however many ways in see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, cast
from weakref import ref

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidRequest, LimitExceeded
from limits_app.core.outcome import Outcome
from limits_app.integrations.charges import NOTHING, ONE_OF_EACH, Charge, Charges
from limits_app.integrations.closing import when_closed
from limits_app.integrations.identity import aidentify, identify
from limits_app.services.acquiring import Limits
from limits_app.services.asking import Asked, Resources

__all__ = ["RequestLimits", "limits_of"]

_ANSWERS: Final = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)
"""Exceptions with which a view answers; what answering took stays taken, or failed log-ins could not be limited."""

_NOT_ASKED: Final = object()
_ACQUISITION: Final = itemgetter(1)


def limits_of(request: HttpRequest) -> RequestLimits:
    """The limits of a request, made when they are first asked for."""
    limits: RequestLimits | None = getattr(request, "limits", None)
    if limits is None:
        limits = cast(Any, request).limits = RequestLimits(request)
    return limits


class RequestLimits:
    """What a request was charged, and the verbs of the service for the entity that makes it.

    Whatever is acquired here is given back when the response has been sent, at the latest.
    """

    # Of the class, so that a request that nobody asks about costs little.
    _entity: object = _NOT_ASKED
    _user: object = None
    _taken_for: tuple[str | None, ...] = ()
    _refused: tuple[Acquisition, ...] | None = None
    guarded = False
    """Whether a middleware is told when the view fails."""
    enforced = False
    """Whether it was looked which endpoint the request is about."""

    def __init__(self, request: HttpRequest) -> None:
        # The request refers to its limits: a cycle would leave all of it to the garbage collector, request by request.
        self._reference = ref(request)
        self._acquisitions: list[tuple[str | tuple[str, ...], Acquisition]] = []
        self.charges = Charges()
        """What ways in charged."""

    @property
    def _request(self) -> HttpRequest:
        request = self._reference()
        if request is None:
            raise RuntimeError("the request is over, and so are its limits: keep the request as long as you need them")
        return request

    @property
    def entity(self) -> str | None:
        """Who makes the request (None: the site itself); found out when it is first asked.

        And anew once `request.user` is somebody else, as where the REST framework authenticates inside of the view.
        """
        entity = self._entity
        if entity is _NOT_ASKED:
            request = self._reference() or self._request  # the latter raises; asking it first is a call more
            entity = self._entity = identify(request)
            self._user = request.__dict__.get("user")
        elif self._is_mistaken():
            entity = self._correct(identify(self._request))
        return cast("str | None", entity)

    async def aentity(self) -> str | None:
        """`entity` for asyncio."""
        if self._entity is _NOT_ASKED:
            request = self._reference() or self._request
            self._entity = await aidentify(request)
            self._user = request.__dict__.get("user")
        elif self._is_mistaken():  # by somebody who tells `request.user`, and not always `request.auser`
            self._correct(await sync_to_async(identify)(self._request))
        return cast(str | None, self._entity)

    @property
    def holds(self) -> bool:
        """Whether anything was acquired."""
        return bool(self._acquisitions)

    @property
    def acquisitions(self) -> dict[str, Acquisition]:
        """What was acquired, by resource; of several the latest, and what is of several resources under each of them.

        `request.limits.acquisitions["api"].update({"tpm": 312})` says how much was really used.
        """
        found: dict[str, Acquisition] = {}
        for resources, acquisition in self._acquisitions:
            found |= dict.fromkeys((resources,) if isinstance(resources, str) else resources, acquisition)
        return found

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What was decided, in order."""
        return tuple(acquisition.outcome for _, acquisition in self._acquisitions)

    @property
    def decided(self) -> tuple[Acquisition, ...]:
        """What clients are told of: what refused them, else what they were charged."""
        if self._refused is not None:
            return self._refused
        return tuple(map(_ACQUISITION, self._acquisitions))

    @property
    def degraded(self) -> bool:
        """Whether anything was decided without the store, because that was down."""
        return any(outcome.degraded for outcome in self.outcomes)

    def acquire(self, resource: Resources, **options: Any) -> Acquisition:
        """`limits.acquire` for the entity of the request; charges each time."""
        names = _names(resource)
        if options.get("timeout", 0) != 0:
            return self._hold(names, services.acquire(resource, **self._for_entity(options)))
        options.pop("timeout", None)
        return self._hold(names, self._admitted(services.try_acquire(resource, **self._for_entity(options))))

    def try_acquire(self, resource: Resources, **options: Any) -> Acquisition:
        """`limits.try_acquire` for the entity of the request; charges each time."""
        return self._hold(_names(resource), services.try_acquire(resource, **self._for_entity(options)))

    def check(self, resource: str, **options: Any) -> Outcome:
        """`limits.check` for the entity of the request; consumes nothing."""
        return services.check(resource, **self._for_entity(options))

    async def aacquire(self, resource: Resources, **options: Any) -> Acquisition:
        """`acquire` for asyncio."""
        names = _names(resource)
        if options.get("timeout", 0) != 0:
            return self._hold(names, await services.aacquire(resource, **await self._afor_entity(options)))
        options.pop("timeout", None)
        acquisition = await services.atry_acquire(resource, **await self._afor_entity(options))
        return self._hold(names, self._admitted(acquisition))

    async def atry_acquire(self, resource: Resources, **options: Any) -> Acquisition:
        """`try_acquire` for asyncio."""
        return self._hold(_names(resource), await services.atry_acquire(resource, **await self._afor_entity(options)))

    async def acheck(self, resource: str, **options: Any) -> Outcome:
        """`check` for asyncio."""
        return await sync_to_async(services.check)(resource, **await self._afor_entity(options))

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
        self.charges.note((resource, entity), named, acquisition)
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

    def end(self) -> None:
        """The response was sent: permits go back, and amounts whose usage nobody reported count as used."""
        for _, acquisition in self._acquisitions:
            acquisition.release()

    def fail(self, error: BaseException) -> None:
        """The view raised: amounts whose usage nobody reported are given back, unless the error is an answer."""
        if not isinstance(error, _ANSWERS):
            self._settle(Acquisition.cancel)

    def undo(self) -> None:
        """The request is refused: what ways in charged it before is given back, calls included.

        What the code acquired itself is given back as far as its usage was to be reported, since a call was made.
        """
        self.charges.give_back()
        self._settle(Acquisition.cancel)
        self._refused = self._refused or ()

    def _admitted(self, acquisition: Acquisition) -> Acquisition:
        """What was admitted; LimitExceeded for what was refused, which clients are told of."""
        if acquisition.admitted:
            return acquisition
        self._refused = (acquisition,)
        raise LimitExceeded(acquisition.outcome)

    def _hold(self, resource: str | tuple[str, ...], acquisition: Acquisition) -> Acquisition:
        if not self._acquisitions:
            when_closed(self._request, self.end)
        self._acquisitions.append((resource, acquisition))
        return acquisition

    def _is_mistaken(self) -> bool:
        """Whether somebody else is logged in than when it was found out who makes the request."""
        request = self._reference()
        return request is not None and request.__dict__.get("user") is not self._user

    def _correct(self, entity: str | None) -> str | None:
        """Take the request for that of another; what ways in charge the other for is given back to the former."""
        self._user = self._request.__dict__.get("user")
        if entity != self._entity:
            self._taken_for = (*self._taken_for, cast("str | None", self._entity))
            self._entity = entity
        return entity

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
                self._acquisitions = [one for one in self._acquisitions if one[1] not in charge[0]]
                return charge
        return None

    def _settle(self, settle: Callable[[Acquisition], None]) -> None:
        for _, acquisition in self._acquisitions:
            settle(acquisition)

    def _for_entity(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if "entity" in options else {**options, "entity": self.entity}

    async def _afor_entity(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if "entity" in options else {**options, "entity": await self.aentity()}


def _names(resource: Resources) -> str | tuple[str, ...]:
    return resource if isinstance(resource, str) else tuple(resource)
