"""`request.limits`: the verbs of the service for the entity of a request, and what the request was charged.

Every integration charges a request through `RequestLimits.charge`, so that each resource is charged once, however many
integrations apply. What a request holds is released when its response was sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from operator import attrgetter
from secrets import token_hex
from threading import RLock
from typing import Any, Final, Unpack, cast
from weakref import ref

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError

from limits_app import conf, services
from limits_app.engine.errors import LimitExceeded, StoreUnavailable, Unresolved
from limits_app.engine.outcome import Outcome
from limits_app.integrations.access import ais_exempt, is_exempt
from limits_app.integrations.charges import (
    NOTHING,
    Charge,
    Key,
    are_held,
    missing,
    named_by,
    refund,
    refund_all,
    transfer_former_charge,
)
from limits_app.integrations.identity import Identity, address_of, entity_of_user, identify, possible_user
from limits_app.services import charging
from limits_app.services.access import AccessTable, acquire_nothing
from limits_app.services.amounts import (
    AcquireOptions,
    CheckOptions,
    RequestedAmounts,
    Resources,
    TryOptions,
    one_of_each,
)
from limits_app.services.endpoints import EndpointTable, endpoints
from limits_app.services.exempting import has_exemptions
from limits_app.services.integration import (
    REQUEST_ID_LENGTH,
    WEB_REQUEST,
    AccessVerdict,
    Acquisition,
    Amount,
    Limits,
    entity_name,
)
from limits_app.services.request import POLICIES, Request, Source
from limits_app.services.unavailable import without_limits

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:=+/@-]+")
_PLAN: Final = conf.PLAN_OF_REQUEST.name
_ENABLED: Final = conf.ENABLED.name
_EXEMPT: Final = conf.EXEMPT.name
_OUTCOME, ACQUISITION = attrgetter("outcome"), attrgetter("acquisition")
EXEMPT: Final = "limits_exempt"
"""The attribute of views that endpoints do not apply to, and that stay reachable for clients that are blocked."""
_RESPONSE_EXCEPTIONS: Final = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)
"""Exceptions that Django turns into a response; amounts stay charged, or failed log-ins could not be limited."""


class LimitedRequest(HttpRequest):
    """The type of a request behind the middleware, for annotations."""

    limits: RequestLimits


def limits_of(request: HttpRequest) -> RequestLimits:
    """Return the limits of a request, made when they are first needed.

    A request of the REST framework has those of the request of Django that it wraps, where that has some.
    """
    limits: RequestLimits | None = getattr(request, "limits", None)
    if limits is None:
        limits = request.limits = RequestLimits(request)  # type: ignore[attr-defined]  # it is there from now on
    return limits


class RequestLimits:
    """What a request was charged, and the verbs of the service for the entity that makes it.

    Acquisitions are released when the response was sent, at the latest. That needs the middleware, or a decorated view.
    """

    refused: tuple[Outcome, ...] | None = None
    """The decisions that rejected the request; None as long as nothing did."""
    throttled_status: int | None = None
    """The status of the response that a view of the REST framework makes of a rejection."""
    has_middleware = False
    """Whether a middleware releases the acquisitions, and sets the headers."""
    has_decorator = False
    """Whether a decorated view releases the acquisitions, and sets the headers."""
    user_without_session: object = None
    """The user as Django reads it from the session, where that was empty when the middleware was called."""
    enforced = False
    """Whether the rules for the URL of the request were applied."""
    is_refunded = False
    """Whether the request was refunded what integrations charged, after it was rejected."""
    source: Source = POLICIES
    """What resolves the limits; without blocks for a blocked request whose page is reachable all the same."""
    rejected_log_in: LimitExceeded | StoreUnavailable | None = None
    """What rejected an attempt to log in; the middleware then answers with its refusal."""
    judged_names: list[str] | None = None
    """The identifiers by which the request is judged, for all verdicts; None until they are known."""

    def __init__(self, request: HttpRequest) -> None:
        # The request refers to this: a strong reference would leave both to the garbage collector.
        self._reference = ref(request)
        self.settings = conf.current()
        """The settings, which do not change while the request is answered."""
        self.charges: list[Charge] = []
        """What the request was charged by integrations and by code of the site, in order, and was not refunded."""
        self.is_charged = False
        """Whether integrations have charged anything, even if that was refunded."""
        self.throttled: dict[Key, Outcome] = {}
        """The outcomes with which throttles of the REST framework rejected the request."""
        self.log_ins: list[Acquisition] = []
        """The attempts to log in; those that did not fail are refunded at the end."""
        self.identities: list[Identity] = []
        """The entity, and those that the request had before its user was authenticated; the present one is the last."""
        self._charge_locks: dict[object, Any] = {}
        self.verdicts: dict[tuple[str | None, str | None], AccessVerdict] = {}
        """Whether the request is blocked or exempt, in general and for each resource and entity that it is charged."""
        self.blocks_in_shadow: set[object] = set()
        """The blocks in shadow mode that were counted for the request."""
        self._judged_user: object = None
        self.needs_verdict: bool = self.settings[_ENABLED]
        """Whether anyone at all is blocked or exempt; True until the table is known."""
        self._may_have_plan = True
        self._table: EndpointTable | None = None
        WEB_REQUEST.set(ref(self))  # for the id of the request in the records of its rejections

    @property
    def request(self) -> HttpRequest:
        """The request; RuntimeError when it is over."""
        request = self._reference()
        if request is None:
            raise RuntimeError(
                "request.limits cannot be used after the request was garbage-collected; keep a reference to the request"
            )
        return request

    @property
    def is_over(self) -> bool:
        """Whether the request is over."""
        return self._reference() is None

    @property
    def has_exempt_view(self) -> bool:
        """Whether the view is marked with `@exempt`."""
        request = self._reference()
        match = None if request is None else request.resolver_match
        return match is not None and getattr(match.func, EXEMPT, False)

    @property
    def user(self) -> Any:
        """The user, who may be anonymous; None where the request has no session of one, or is over."""
        return None if self.is_over else possible_user(self.request)

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The whole address of the client; None where it is unknown, or the request is over."""
        return None if self.is_over else address_of(self.request)

    @property
    def access(self) -> AccessTable:
        """Who is blocked or exempt."""
        return self.table.access

    @property
    def has_table(self) -> bool:
        """Whether the URL rules, and who is blocked or exempt, are known without a query."""
        return self._table is not None

    @property
    def table(self) -> EndpointTable:
        """The URL rules, and who is blocked or exempt."""
        if self._table is None:
            self.table = endpoints.current()
        return cast("EndpointTable", self._table)

    @table.setter
    def table(self, table: EndpointTable) -> None:
        if table is self._table:
            return
        if self._table is not None:  # there are no verdicts without one
            self.forget_verdicts()
        self._table = table
        settings = self.settings
        self.needs_verdict = settings[_ENABLED] and (table.access.has_entries or has_exemptions(settings[_EXEMPT]))
        self._may_have_plan = settings[_PLAN] is not None or bool(table.access.index.groups)

    def forget_former_user(self) -> None:
        """Drop the verdicts about another user than the present one, as after the REST framework authenticates."""
        request = self._reference()
        user = self._judged_user if request is None else getattr(request, "user", None)
        if user is not self._judged_user:
            self._judged_user = user
            self.forget_verdicts()

    def forget_verdicts(self) -> None:
        """Drop all verdicts, as those from before a change."""
        self.verdicts.clear()
        self.judged_names = None

    @cached_property
    def request_id(self) -> str:
        """The id that the site gave the request in a header, cut off where it is long; else a random one."""
        request = self._reference()
        given = "" if request is None else request.headers.get(self.settings[conf.REQUEST_ID_HEADER.name], "")
        return given[:REQUEST_ID_LENGTH] if _REQUEST_ID.fullmatch(given) else token_hex(6)

    @property
    def entity(self) -> str | None:
        """The entity that makes the request (None: the site itself).

        It is identified again when `request.user` changes, as when the REST framework authenticates inside the view.
        The next charge then transfers what integrations charged to the former entity.
        """
        request = self._reference()
        if request is None and self.identities:
            return self.identities[-1].entity  # a request that is over keeps its entity
        request = request or self.request
        if not self.identities or getattr(request, "user", None) is not self.identities[-1].user:
            self.identities.append(identify(request, self.settings))
            self.judged_names = None  # the counted entity is one of them
        return self.identities[-1].entity

    async def aentity(self) -> str | None:
        """`entity` for asyncio."""
        if self.identities and getattr(self._reference(), "user", None) is self.identities[-1].user:
            return self.identities[-1].entity
        # In a thread: `request.user` and configured functions may query the database.
        return await sync_to_async(getattr)(self, "entity")  # type: ignore[no-any-return]

    def plan_of(self, entity: str | None) -> str | None:
        """The plan of the request for an entity, which has it unless it has one of its own. May query the database.

        What PLAN_OF_REQUEST names is for the entity that makes the request. Without it, the plan of the user's groups
        is for every entity that the request is charged to.
        """
        if entity is None:
            return None
        if self.settings[_PLAN] is not None:
            own = self.entity
            plan = self.identities[-1].plan
            if plan is not None:
                return plan if entity == own else None
        table = self._table
        return None if table is not None and not table.access.index.groups else self.plan_of_groups()

    def plan_of_groups(self) -> str | None:
        """The plan of the user's groups. May query the database."""
        if self.is_over or not self.table.access.index.groups:
            return None
        try:
            return self.table.access.plan_of_groups(self.user)
        except Unresolved as error:
            without_limits(error)
            return None

    async def aplan_of(self, entity: str | None) -> str | None:
        """`plan_of` for asyncio."""
        if self.settings[_PLAN] is None and self.has_table and not self.table.access.index.groups:
            return None
        return await sync_to_async(self.plan_of)(entity)

    @property
    def acquired(self) -> list[Acquisition]:
        """The admitted acquisitions, in order, without those that were refunded."""
        return [*dict.fromkeys(map(ACQUISITION, self.charges))]

    @property
    def acquisitions(self) -> dict[str, Acquisition]:
        """The acquisitions by resource; of several acquisitions of one resource the latest.

        `request.limits.acquisitions["api"].update({"tpm": 312})` reports the amount that was used.
        """
        return {one.resource: one.acquisition for one in self.charges if one.acquisition is not None}

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The decisions that admitted the request, in order."""
        return tuple(map(_OUTCOME, self.acquired))

    @property
    def degraded(self) -> bool:
        """Whether anything was decided without the store, because that was unavailable."""
        return any(outcome.degraded for outcome in self.outcomes)

    def acquire(self, resource: Resources, **options: Unpack[AcquireOptions]) -> Acquisition:
        """`limits.acquire` for the entity of the request; charges each time."""
        options.setdefault("entity", self.entity)
        options.setdefault("plan", self.plan_of(entity_name(options["entity"])))
        try:
            return self._record(resource, services.acquire(resource, **options))
        except LimitExceeded as error:
            self.refuse(error)
            raise

    def try_acquire(self, resource: Resources, **options: Unpack[TryOptions]) -> Acquisition:
        """`limits.try_acquire` for the entity of the request; charges each time."""
        options.setdefault("entity", self.entity)
        options.setdefault("plan", self.plan_of(entity_name(options["entity"])))
        return self._record(resource, services.try_acquire(resource, **options))

    def check(self, resource: str, **options: Unpack[CheckOptions]) -> Outcome:
        """`limits.check` for the entity of the request; charges nothing."""
        options.setdefault("entity", self.entity)
        options.setdefault("plan", self.plan_of(entity_name(options["entity"])))
        return services.check(resource, **options)

    async def aacquire(self, resource: Resources, **options: Unpack[AcquireOptions]) -> Acquisition:
        """`acquire` for asyncio."""
        options.setdefault("entity", await self.aentity())
        options.setdefault("plan", await self.aplan_of(entity_name(options["entity"])))
        try:
            return self._record(resource, await services.aacquire(resource, **options))
        except LimitExceeded as error:
            self.refuse(error)
            raise

    async def atry_acquire(self, resource: Resources, **options: Unpack[TryOptions]) -> Acquisition:
        """`try_acquire` for asyncio."""
        options.setdefault("entity", await self.aentity())
        options.setdefault("plan", await self.aplan_of(entity_name(options["entity"])))
        return self._record(resource, await services.atry_acquire(resource, **options))

    async def acheck(self, resource: str, **options: Unpack[CheckOptions]) -> Outcome:
        """`check` for asyncio."""
        return await sync_to_async(self.check)(resource, **options)

    def _record(self, resource: Resources, acquisition: Acquisition) -> Acquisition:
        charging.hold_here(acquisition)  # nested requests do not take permits again
        for name in (resource,) if isinstance(resource, str) else resource:
            self.charges.append(Charge(name, None, acquisition=acquisition, by_view=True))
        return acquisition

    def charge(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, Amount] = NOTHING,
        *,
        timeout: float | None = 0,
        requested: RequestedAmounts = None,
        default_limits: Limits = (),
    ) -> Acquisition:
        """Charge the `named` amounts and 1 of every other limit, without what the request was charged before.

        `requested` replaces `named` where nothing was charged before. Returns the last acquisition of the resource.
        Raises what `limits.acquire` raises.
        """
        charge = Charge(resource, entity, named, requested, default_limits)
        # Concurrent parts of a view charge a key one after the other, so that it is charged once. A charge that may
        # wait for its limits takes no lock, which would block the others.
        with self._charge_locks.setdefault(charge.key, RLock()) if timeout == 0 else nullcontext():
            return self.take(charge, timeout)

    async def acharge(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, Amount] = NOTHING,
        *,
        timeout: float | None = 0,
        requested: RequestedAmounts = None,
        default_limits: Limits = (),
    ) -> Acquisition:
        """`charge` for asyncio."""
        charge = Charge(resource, entity, named, requested, default_limits)
        lock = self._charge_locks.setdefault((*charge.key, asyncio.get_running_loop()), asyncio.Lock())
        async with lock if timeout == 0 else nullcontext():
            return await self.atake(charge, timeout)

    def take(self, charge: Charge, timeout: float | None = 0) -> Acquisition:
        """Charge something, as far as it was not charged before, while no other thread or task charges it.

        Returns the last acquisition of the resource. Raises what `limits.acquire` raises.
        """
        key, requested = (charge.resource, charge.entity), charge.requested
        if self.needs_verdict and is_exempt(self, key):
            return self._take_nothing(charge)
        if self.charges:
            transfer_former_charge(self, charge)
            earlier = self.held(*key)
            requested = missing(earlier, charge.named) if earlier else requested
            if earlier and requested is None:
                return cast("Acquisition", earlier[-1].acquisition)
        requested = requested or partial(one_of_each, charge.named)
        plan = self.plan_of(charge.entity) if self._may_have_plan else None
        try:
            request = Request((*key, charge.default_limits, plan), requested, self.source, is_of_view=True)
            acquisition = request.acquire(timeout)
        except LimitExceeded as error:
            self.refuse(error)
            raise
        if self.charges:
            self.note(charge, acquisition)
        else:
            charge.acquisition, self.charges, self.is_charged = acquisition, [charge], True
        return acquisition

    async def atake(self, charge: Charge, timeout: float | None = 0) -> Acquisition:
        """`take` for asyncio."""
        key, requested = (charge.resource, charge.entity), charge.requested
        if await ais_exempt(self, key):
            return await sync_to_async(self._take_nothing)(charge)
        if self.charges:
            if await self.aentity() == charge.entity and len(self.identities) > 1:
                await sync_to_async(transfer_former_charge)(self, charge)
            earlier = self.held(*key)
            requested = missing(earlier, charge.named) if earlier else requested
            if earlier and requested is None:
                return cast("Acquisition", earlier[-1].acquisition)
        requested = requested or partial(one_of_each, charge.named)
        plan = await self.aplan_of(charge.entity) if self._may_have_plan else None
        try:
            request = Request((*key, charge.default_limits, plan), requested, self.source, is_of_view=True)
            acquisition = await request.aacquire(timeout)
        except LimitExceeded as error:
            self.refuse(error)
            raise
        self.note(charge, acquisition)
        return acquisition

    def _take_nothing(self, charge: Charge) -> Acquisition:
        """Note that a charge takes nothing, since the request is exempt, or the entity that is charged."""
        if is_exempt(self):
            self.refund_charges()
        acquisition = acquire_nothing(charge.amounts)
        self.note(charge, acquisition)
        return acquisition

    def note(self, charge: Charge, acquisition: Acquisition) -> None:
        """Note an acquisition that was admitted for a charge; what it names replaces the 1 that was taken before."""
        charge.acquisition, self.is_charged = acquisition, True
        if self.charges:
            earlier = self.held(charge.resource, charge.entity)
            for one in earlier:
                one.report_unused(charge.named.keys() - named_by(earlier))
            for one in self._of(charge.resource, charge.entity) if not earlier else ():
                one.is_former = True
        self.charges.append(charge)

    def held(self, resource: str, entity: str | None) -> list[Charge]:
        """What integrations have charged a resource for an entity, in order; empty where that was refunded."""
        charges = self._of(resource, entity)
        return charges if are_held(charges) else []

    def _of(self, resource: str, entity: str | None) -> list[Charge]:
        return [
            one
            for one in self.charges
            if not (one.by_view or one.is_former) and one.resource == resource and one.entity == entity
        ]

    def was_charged(self, resource: str, entity: str | None) -> bool:
        """Whether an integration has charged a resource for an entity, and that was not refunded."""
        return bool(self.held(resource, entity))

    def refund(self, acquisitions: Collection[Acquisition]) -> None:
        """Refund some acquisitions, which do not count for the request any more."""
        refund_all(self.charges, acquisitions)
        self.charges = [one for one in self.charges if one.acquisition not in acquisitions]

    def refund_charges(self) -> None:
        """Refund what integrations charged before the user was known, who is exempt."""
        of_integrations = [one.acquisition for one in self.charges if not one.by_view]
        self.refund([one for one in self.acquired if one in of_integrations])

    def refuse(self, error: Exception) -> Sequence[Outcome]:
        """Note a rejection; return the decisions that rejected the request."""
        if isinstance(error, LimitExceeded) and error.refused is not None:
            self.refused = (error.outcome,)
        self.refused = self.refused or ()
        return self.refused

    def end(self) -> None:
        """Release all acquisitions: amounts that were not reported count as used."""
        for acquisition in self.acquired:
            acquisition.release()
        if self.log_ins:
            self.refund_log_ins()

    def settle_log_ins(self, status: int) -> None:
        """Decide about the attempts to log in that no signal has reported, when the response was made.

        An error response to a client that is not logged in may hide that an attempt has failed: it counts.
        """
        if status >= HTTPStatus.BAD_REQUEST and entity_of_user(getattr(self.request, "user", None)) is None:
            for acquisition in self.log_ins:
                acquisition.release()
        else:
            self.refund_log_ins()

    def refund_log_ins(self) -> None:
        """Refund the attempts to log in that did not fail."""
        for acquisition in self.log_ins:
            refund(acquisition)

    def fail(self, error: BaseException, *, excluding: Container[Acquisition] = (), releases: bool = False) -> None:
        """Refund amounts that were not reported, after a view raised, unless the exception makes a response.

        `excluding` are acquisitions of an outer view, which stay. With `releases`, for a view without the middleware,
        the others are released where they are not refunded. Attempts to log in then count, since an error hides
        whether they failed.
        """
        makes_response = isinstance(error, _RESPONSE_EXCEPTIONS)
        for attempt in () if makes_response else self.log_ins:
            attempt.release()
        for acquisition in self.acquired:
            if acquisition in excluding:
                continue
            if not makes_response:
                acquisition.cancel()
            elif releases:
                acquisition.release()

    def undo(self) -> None:
        """Refund what integrations charged, calls included, after the request was rejected.

        Of what views acquired themselves, unreported amounts are refunded. Call it when no view runs any more.
        """
        if self.charges:
            refund_all(self.charges, self.acquired)
        self.is_refunded = True
        self.refused = self.refused or ()
