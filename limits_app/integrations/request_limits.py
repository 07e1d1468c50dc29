"""`request.limits`: what one request was charged, each limit once, however many ways in see it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast
from weakref import ref

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import LimitExceeded
from limits_app.core.outcome import Outcome
from limits_app.integrations.amounts import one_of_each, taken_by, the_rest
from limits_app.integrations.identity import aidentify, identify
from limits_app.services.acquiring import Asked, Limits

__all__ = ["RequestLimits", "limits_of"]

_ANSWERS: Final = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)
"""Exceptions with which a view answers; what answering took stays taken, or failed log-ins could not be limited."""

_NOT_ASKED: Final = object()
_NOTHING: Final[Mapping[str, Amount]] = {}

_ONE_OF_EACH: Final = partial(one_of_each, _NOTHING)

Key = tuple[str, str | None]
Charge = tuple[tuple[Acquisition, ...], Mapping[str, Amount]]
"""What ways in took of a resource for an entity, and the amounts that they named."""


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

    __slots__ = ("_acquisitions", "_charges", "_close", "_entity", "_reference", "_refused", "enforced", "guarded")

    _close: Callable[[], None] | None

    def __init__(self, request: HttpRequest) -> None:
        # The request refers to its limits: a cycle would leave all of it to the garbage collector, request by request.
        self._reference = ref(request)
        self._entity: object = _NOT_ASKED
        self._acquisitions: list[tuple[str, Acquisition]] = []
        self._charges: dict[Key, Charge] = {}
        self._refused: tuple[Acquisition, ...] | None = None
        self.guarded = False
        """Whether a middleware is told when the view fails."""
        self.enforced = False
        """Whether it was looked which endpoint the request is about."""

    @property
    def _request(self) -> HttpRequest:
        request = self._reference()
        if request is None:
            raise RuntimeError("the request is over, and so are its limits: keep the request as long as you need them")
        return request

    @property
    def entity(self) -> str | None:
        """Who makes the request (None: the site itself); found out when it is first asked."""
        if self._entity is _NOT_ASKED:
            self._entity = identify(self._request)
        return cast(str | None, self._entity)

    async def aentity(self) -> str | None:
        """`entity` for asyncio."""
        if self._entity is _NOT_ASKED:
            self._entity = await aidentify(self._request)
        return cast(str | None, self._entity)

    @property
    def holds(self) -> bool:
        """Whether anything was acquired."""
        return bool(self._acquisitions)

    @property
    def acquisitions(self) -> dict[str, Acquisition]:
        """What was acquired, by resource; of several the latest.

        `request.limits.acquisitions["api"].update({"tpm": 312})` says how much was really used.
        """
        return dict(self._acquisitions)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What was decided, in order."""
        return tuple(acquisition.outcome for _, acquisition in self._acquisitions)

    @property
    def decided(self) -> tuple[Acquisition, ...]:
        """What clients are told of: what refused them, else what they were charged."""
        if self._refused is not None:
            return self._refused
        return tuple([acquisition for _, acquisition in self._acquisitions])

    @property
    def degraded(self) -> bool:
        """Whether anything was decided without the store, because that was down."""
        return any(outcome.degraded for outcome in self.outcomes)

    def acquire(self, resource: str, **options: Any) -> Acquisition:
        """`limits.acquire` for the entity of the request; charges each time."""
        return self._hold(resource, self._admitted(resource, **self._for_entity(options)))

    def try_acquire(self, resource: str, **options: Any) -> Acquisition:
        """`limits.try_acquire` for the entity of the request; charges each time."""
        return self._hold(resource, services.try_acquire(resource, **self._for_entity(options)))

    def check(self, resource: str, **options: Any) -> Outcome:
        """`limits.check` for the entity of the request; consumes nothing."""
        return services.check(resource, **self._for_entity(options))

    async def aacquire(self, resource: str, **options: Any) -> Acquisition:
        """`acquire` for asyncio."""
        return self._hold(resource, await self._aadmitted(resource, **await self._afor_entity(options)))

    async def atry_acquire(self, resource: str, **options: Any) -> Acquisition:
        """`try_acquire` for asyncio."""
        return self._hold(resource, await services.atry_acquire(resource, **await self._afor_entity(options)))

    async def acheck(self, resource: str, **options: Any) -> Outcome:
        """`check` for asyncio."""
        return await sync_to_async(services.check)(resource, **await self._afor_entity(options))

    def charge(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, Amount] = _NOTHING,
        timeout: float | None = 0,
        *,
        default_limits: Limits = (),
    ) -> Acquisition:
        """Take the amounts that are named and 1 of every other limit, as far as the request was not charged before.

        Raises what `limits.acquire` raises; where nothing is left to take, the earlier acquisition is the answer.
        """
        key = (resource, entity)
        asked = self._asked(key, named)
        if asked is None:
            return self._charges[key][0][-1]
        acquisition = self._admitted(
            resource, entity=entity, requested=asked, timeout=timeout, default_limits=default_limits
        )
        return self._charged(key, named, acquisition)

    async def acharge(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, Amount] = _NOTHING,
        timeout: float | None = 0,
        *,
        default_limits: Limits = (),
    ) -> Acquisition:
        """`charge` for asyncio."""
        key = (resource, entity)
        asked = self._asked(key, named)
        if asked is None:
            return self._charges[key][0][-1]
        acquisition = await self._aadmitted(
            resource, entity=entity, requested=asked, timeout=timeout, default_limits=default_limits
        )
        return self._charged(key, named, acquisition)

    def charge_all(self, shares: Iterable[services.Share]) -> Acquisition:
        """Take all shares that the request was not charged before, of which there must be some, or none of them.

        A share that asks for nothing in particular takes 1 of every limit. Raises what `limits.acquire` raises.
        """
        new = {(share.resource, share.entity): share for share in shares}
        new = {key: share for key, share in new.items() if self._before(key) is None}
        asked = [share._replace(requested=share.requested or _ONE_OF_EACH) for share in new.values()]
        acquisition = self._noted(_taken(asked))
        self._charges.update(dict.fromkeys(new, ((acquisition,), _NOTHING)))
        return self._hold(asked[0].resource, acquisition)

    def was_charged(self, resource: str, entity: str | None) -> bool:
        """Whether a way in has charged it and it was not given back."""
        return self._before((resource, entity)) is not None

    def end(self) -> None:
        """The response was sent: permits go back, and amounts whose usage nobody reported count as used."""
        self._settle(Acquisition.release)

    def fail(self, error: BaseException) -> None:
        """The view raised: amounts whose usage nobody reported are given back, unless the error is an answer."""
        if not isinstance(error, _ANSWERS):
            self._settle(Acquisition.cancel)

    def undo(self) -> None:
        """The request is refused: what ways in charged it before is given back, calls included.

        What the code acquired itself is given back as far as its usage was to be reported, since a call was made.
        """
        for acquisition in [one for acquisitions, _ in self._charges.values() for one in acquisitions]:
            if not acquisition.settled:
                _give_back(acquisition, acquisition.acquisitions)
        self._settle(Acquisition.cancel)
        self._refused = self._refused or ()

    def _admitted(self, resource: str, *, timeout: float | None = 0, **options: Any) -> Acquisition:
        """What the service gives, or its LimitExceeded; remembers what refused, to tell of it."""
        if timeout != 0:
            return services.acquire(resource, timeout=timeout, **options)
        return self._noted(services.try_acquire(resource, **options))

    async def _aadmitted(self, resource: str, *, timeout: float | None = 0, **options: Any) -> Acquisition:
        """`_admitted` for asyncio."""
        if timeout != 0:
            return await services.aacquire(resource, timeout=timeout, **options)
        return self._noted(await services.atry_acquire(resource, **options))

    def _noted(self, acquisition: Acquisition) -> Acquisition:
        if acquisition:
            return acquisition
        self._refused = (acquisition,)
        raise LimitExceeded(acquisition.outcome)

    def _asked(self, key: Key, named: Mapping[str, Amount]) -> Asked:
        """What is still to be taken; None when that is nothing."""
        before = self._before(key)
        if before is None:
            return partial(one_of_each, named) if named else _ONE_OF_EACH
        new = {name: amount for name, amount in named.items() if name not in before[1]}
        return partial(the_rest, taken_by(before[0]), new) if new else None

    def _charged(self, key: Key, named: Mapping[str, Amount], acquisition: Acquisition) -> Acquisition:
        """Note what was taken; an amount that is named takes the place of the 1 that was taken before."""
        acquisitions, names = self._before(key) or ((), _NOTHING)
        new = named.keys() - names.keys()
        for earlier in acquisitions:
            _give_back(earlier, new)
        self._charges[key] = ((*acquisitions, acquisition), {**named, **names} if names else named)
        return self._hold(key[0], acquisition)

    def _before(self, key: Key) -> Charge | None:
        """What was charged already, unless it was given back."""
        before = self._charges.get(key)
        return None if before is None or before[0][-1].settled else before

    def _hold(self, resource: str, acquisition: Acquisition) -> Acquisition:
        """Hold on until the request is closed, which servers do, through the response, when that was sent.

        Not with a closer of the response: that one may be cached, or replaced on its way out.
        """
        if not self._acquisitions:
            request = self._request
            self._close = vars(request).get("close")
            request.close = self._close_and_end  # type: ignore[method-assign]  # no signal tells whose end it is
        self._acquisitions.append((resource, acquisition))
        return acquisition

    def _close_and_end(self) -> None:
        request = self._request
        if self._close is None:
            del request.close  # that of the class is there again
        else:
            request.close = self._close  # type: ignore[method-assign]  # somebody had replaced it before
        try:
            request.close()
        finally:
            self.end()

    def _settle(self, settle: Callable[[Acquisition], None]) -> None:
        for _, acquisition in self._acquisitions:
            settle(acquisition)

    def _for_entity(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if "entity" in options else {**options, "entity": self.entity}

    async def _afor_entity(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if "entity" in options else {**options, "entity": await self.aentity()}


def _taken(shares: Sequence[services.Share]) -> Acquisition:
    if len(shares) > 1:
        return services.try_acquire_all(shares)
    [(resource, entity, requested, default_limits)] = shares
    return services.try_acquire(resource, entity=entity, requested=requested, default_limits=default_limits)


def _give_back(acquisition: Acquisition, keys: Container[str]) -> None:
    """Report nothing as used of some limits, unless somebody reported otherwise."""
    acquisition.update({key: 0 for key, use in acquisition.acquisitions.items() if key in keys and use.used is None})
