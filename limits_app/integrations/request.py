"""`request.limits`: the verbs of the service for the entity of a request, and what the request was charged.

Every integration charges a request through `RequestLimits.charge`, so that each resource is charged once, however many
integrations apply. What a request holds is released when its response was sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from ipaddress import IPv4Address, IPv6Address
from secrets import token_hex
from typing import Any, Final, Unpack
from weakref import ref

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from limits_app import conf, services
from limits_app.engine.errors import LimitExceeded, Unresolved
from limits_app.engine.locks import RLock
from limits_app.engine.outcome import Outcome
from limits_app.integrations.charges import (
    NOTHING,
    Charge,
    ChargeKey,
    source_of,
    transfer_former_charge,
)
from limits_app.integrations.holding import ChargedRequest
from limits_app.integrations.identity import PLAN, Identity, address_of, identify, possible_user
from limits_app.integrations.request_access import ais_exempt, is_exempt
from limits_app.services import held_charges
from limits_app.services.amounts import (
    AcquireOptions,
    CheckOptions,
    RequestedAmounts,
    Resources,
    TryOptions,
    one_of_each,
    prioritized,
    without_permits,
)
from limits_app.services.blocked_requests import acquire_nothing
from limits_app.services.integration import (
    REQUEST_ID_LENGTH,
    WEB_REQUEST,
    AccessTable,
    AccessVerdict,
    Acquisition,
    DefaultLimits,
    GivenAmount,
    entity_name,
    is_of_thread,
)
from limits_app.services.request import POLICIES, AmountsRequest, SetResolver
from limits_app.services.unavailable import without_limits
from limits_app.services.url_matching import UNREAD, EndpointTable, OutdatedEndpoints, endpoints

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:=+/@-]+")
EXEMPT: Final = "limits_exempt"
"""The attribute of views that endpoints do not apply to, and that stay reachable for clients that are blocked."""


class LimitedRequest(HttpRequest):
    """The type of a request behind the middleware, for annotations."""

    limits: RequestLimits
    limited: bool
    """Whether `@ratelimit` has rejected the request; only in its views, which run all the same with `block=False`."""


def limits_of(request: HttpRequest) -> RequestLimits:
    """Return the limits of a request, made when they are first needed.

    A request of the REST framework has those of the request of Django that it wraps, where that has some.
    """
    wrapped = request.__dict__.get("_request", request)  # which the REST framework would look at with exceptions
    limits: RequestLimits | None = request.__dict__.get("limits") or getattr(wrapped, "limits", None)
    if limits is None:
        limits = request.limits = RequestLimits(request)  # type: ignore[attr-defined]  # it is there from now on
    return limits


class RequestLimits(ChargedRequest):
    """What a request was charged, and the verbs of the service for the entity that makes it.

    Acquisitions are released when the response was sent, at the latest. That needs the middleware, or a decorated view.
    """

    throttled_status: int | None = None
    """The status of the response that a view of the REST framework makes of a rejection."""
    has_middleware = False
    """Whether a middleware releases the acquisitions, and sets the headers."""
    has_decorator = False
    """Whether a decorated view releases the acquisitions, and sets the headers."""
    user_without_session: object = None
    """The user as Django reads it from the session, where that was empty when the middleware was called."""
    takes_permits = True
    """Whether permits are taken; not where nothing tells when the response was sent."""
    enforced = False
    """Whether the rules for the URL of the request were applied."""
    source: SetResolver = POLICIES
    """What resolves the limits; without blocks for a blocked request whose page is reachable all the same."""
    table: EndpointTable = UNREAD
    """The URL rules, and who is blocked or exempt; `read_table` returns them."""
    judged_names: list[str] | None = None
    """The identifiers by which the request is judged, for all verdicts; None until they are known."""

    def __init__(self, request: HttpRequest) -> None:
        # The request refers to this: a strong reference would leave both to the garbage collector.
        self.reference = ref(request)
        """Returns the request; None when it is over."""
        self.settings = conf.current()
        """The settings, which do not change while the request is answered."""
        self.charges, self.log_ins, self.calls, self.uncounted = [], [], [], []
        self.throttled: dict[ChargeKey, Outcome] = {}
        """The outcomes with which throttles of the REST framework rejected the request."""
        self.identities: list[Identity] = []
        """The entity, and those that the request had before its user was authenticated; the present one is the last."""
        self._charge_locks: dict[object, Any] = {}
        self.verdicts: dict[tuple[str | None, str | None], AccessVerdict] = {}
        """Whether the request is blocked or exempt, in general and for each resource and entity that it is charged."""
        self.blocks_in_shadow: set[object] = set()
        """The blocks in shadow mode that were counted for the request."""
        self._judged_user: object = None
        WEB_REQUEST.set(ref(self))  # for the id of the request in the records of its rejections

    @property
    def request(self) -> HttpRequest:
        """The request; RuntimeError when it is over."""
        request = self.reference()
        if request is None:
            raise RuntimeError(
                "request.limits cannot be used after the request was garbage-collected; keep a reference to the request"
            )
        return request

    @property
    def is_over(self) -> bool:
        """Whether the request is over."""
        return self.reference() is None

    @property
    def has_exempt_view(self) -> bool:
        """Whether the view is marked with `@exempt`."""
        request = self.reference()
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
        return self.read_table().access

    def read_table(self) -> EndpointTable:
        """Return the URL rules, and who is blocked or exempt; the request has the same ones until it is charged."""
        if self.table is UNREAD:
            self.table = endpoints.current()
        return self.table

    def forget_former_user(self) -> None:
        """Drop the verdicts about another user than the present one, as after the REST framework authenticates."""
        request = self.reference()
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
        request = self.reference()
        identifier = "" if request is None else request.headers.get(self.settings[conf.REQUEST_ID_HEADER.name], "")
        return identifier[:REQUEST_ID_LENGTH] if _REQUEST_ID.fullmatch(identifier) else token_hex(6)

    @property
    def entity(self) -> str | None:
        """The entity that makes the request (None: the site itself); see `identify`.

        Where the user has changed, the next charge transfers what integrations charged to the former entity.
        """
        return identify(self).entity

    async def aentity(self) -> str | None:
        """`entity` for asyncio."""
        if self.identities and getattr(self.reference(), "user", None) is self.identities[-1].user:
            return self.identities[-1].entity
        # In a thread: `request.user` and configured functions may query the database.
        return await sync_to_async(getattr)(self, "entity")  # type: ignore[no-any-return]

    def plan_of(self, entity: str | None) -> str | None:
        """The plan of the request for an entity, which has it unless it has its own plan. May query the database.

        What PLAN_OF_REQUEST names is for the entity that makes the request. Without it, the plan of the user's groups
        is for every entity that the request is charged to.
        """
        if entity is None:
            return None
        if self.settings[PLAN] is not None:
            own = identify(self)
            if own.plan is not None:
                return own.plan if entity == own.entity else None
        return self.plan_of_groups()

    def plan_of_groups(self) -> str | None:
        """The plan of the user's groups. May query the database."""
        if self.is_over or not self.access.index.groups:
            return None
        try:
            return self.access.plan_of_groups(self.user)
        except Unresolved as error:
            without_limits(error)
            return None

    async def aplan_of(self, entity: str | None) -> str | None:
        """`plan_of` for asyncio."""
        if not self.table.may_have_plan:
            return None
        return await sync_to_async(self.plan_of)(entity)

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
        held_charges.hold_here(acquisition)  # nested requests do not take permits again
        for name in (resource,) if isinstance(resource, str) else resource:
            self.add(Charge(name, None, acquisition=acquisition, by_view=True))
        return acquisition

    def charge(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, GivenAmount] = NOTHING,
        *,
        timeout: float | None = 0,
        requested: RequestedAmounts = None,
        default_limits: DefaultLimits = (),
        priority: str | None = None,
    ) -> Acquisition:
        """Charge the `named` amounts and 1 of every other limit, without what the request was charged before.

        `requested` replaces `named` where nothing was charged before. Returns the last acquisition of the resource.
        Raises what `limits.acquire` raises.
        """
        charge = Charge(resource, entity, named, requested, default_limits, priority=priority)
        # Concurrent parts of a view charge a key one after the other, so that it is charged once. A charge that may
        # wait for its limits takes no lock, which would block the others.
        try:
            with self._charge_locks.setdefault(charge.key, RLock()) if timeout == 0 else nullcontext():
                return self.take(charge, timeout)
        except LimitExceeded as error:
            self.refuse(error)
            raise

    async def acharge(
        self,
        resource: str,
        entity: str | None,
        named: Mapping[str, GivenAmount] = NOTHING,
        *,
        timeout: float | None = 0,
        requested: RequestedAmounts = None,
        default_limits: DefaultLimits = (),
        priority: str | None = None,
    ) -> Acquisition:
        """`charge` for asyncio."""
        charge = Charge(resource, entity, named, requested, default_limits, priority=priority)
        lock = self._charge_locks.setdefault((*charge.key, asyncio.get_running_loop()), asyncio.Lock())
        try:
            async with lock if timeout == 0 else nullcontext():
                return await self.atake(charge, timeout)
        except LimitExceeded as error:
            self.refuse(error)
            raise

    def take(self, charge: Charge, timeout: float | None = 0) -> Acquisition:
        """Charge something, as far as it was not charged before, while no other thread or task charges it.

        Returns the last acquisition of the resource. Raises what `limits.acquire` raises; a caller that answers the
        rejection notes it with `refuse`.
        """
        key, requested = (charge.resource, charge.entity), charge.requested
        if self.table is UNREAD and (confirming := self._confirming(charge)) is not None:
            charge.requested = confirming
            try:
                return self.take(charge, timeout)
            except OutdatedEndpoints:  # nothing was charged
                self.table, charge.requested = endpoints.current(), requested
        if self.table.needs_verdict and is_exempt(self, key):
            return self._take_nothing(charge)
        if self.charges:
            transfer_former_charge(self, charge)
            acquisition, requested = self.left_of(charge)
            if acquisition is not None:
                return acquisition
        requested = requested or partial(one_of_each, charge.named)
        if charge.priority is not None or not self.takes_permits:
            requested = self._restricted(charge, requested)
        plan = self.plan_of(charge.client or charge.entity) if self.table.may_have_plan else None
        make = charge.make_request if charge.rules else AmountsRequest
        source = source_of(self, [charge]) if charge.rules else self.source
        request = make((*key, charge.default_limits, plan), requested, source, is_of_view=True)
        acquisition = request.acquire(timeout)
        if self.charges or not self.has_middleware:
            self.note(charge, acquisition)
        else:
            charge.acquisition, self.charges, self.is_charged = acquisition, [charge], True
        return acquisition

    async def atake(self, charge: Charge, timeout: float | None = 0) -> Acquisition:
        """`take` for asyncio."""
        key, requested = (charge.resource, charge.entity), charge.requested
        if self.table is UNREAD and (confirming := self._confirming(charge)) is not None:
            charge.requested = confirming
            try:
                return await self.atake(charge, timeout)
            except OutdatedEndpoints:  # nothing was charged
                self.table, charge.requested = await sync_to_async(endpoints.current)(), requested
        if await ais_exempt(self, key):
            return await sync_to_async(self._take_nothing)(charge)
        if self.charges:
            if await self.aentity() == charge.entity and len(self.identities) > 1:
                await sync_to_async(transfer_former_charge)(self, charge)
            acquisition, requested = self.left_of(charge)
            if acquisition is not None:
                return acquisition
        requested = requested or partial(one_of_each, charge.named)
        if charge.priority is not None or not self.takes_permits:
            requested = self._restricted(charge, requested)
        plan = await self.aplan_of(charge.client or charge.entity) if self.table.may_have_plan else None
        request = AmountsRequest((*key, charge.default_limits, plan), requested, self.source, is_of_view=True)
        acquisition = await request.aacquire(timeout)
        self.note(charge, acquisition)
        return acquisition

    def _restricted(self, charge: Charge, requested: RequestedAmounts) -> RequestedAmounts:
        """Return the amounts of a charge in its priority, without permits where the request takes none."""
        return prioritized(requested if self.takes_permits else partial(without_permits, requested), charge.priority)

    def _confirming(self, charge: Charge) -> RequestedAmounts:
        """Use the table that was read last, and return the amounts of a charge that find out whether it is outdated.

        None where that has to be known before, since anyone may be blocked or exempt or the first charge was another.
        """
        table = None if self.charges or is_of_thread() else endpoints.cached(self.settings)
        if table is None or table.needs_verdict:
            return None
        self.table = table
        if charge.requested is None and not charge.named:
            return table.ones_if_current
        return table.confirming(charge.amounts)

    def _take_nothing(self, charge: Charge) -> Acquisition:
        """Note that a charge takes nothing, since the request is exempt, or the entity that is charged."""
        if is_exempt(self):
            self.refund_charges()
        acquisition = acquire_nothing(charge.amounts)
        self.note(charge, acquisition)
        return acquisition
