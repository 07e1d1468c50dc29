"""Calls: the commands for a request, made of what was prepared once for its plan. No input or output here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import chain
from struct import pack
from typing import Final

from limits_app.acquiring import on_fork
from limits_app.engine import (
    NEVER_US,
    Amounts,
    Claim,
    PlannedLimit,
    RequestPlan,
    is_token_holder,
    leased_us,
    short_key,
    slices_key,
)
from limits_app.stores.redis.commands import CARRYING, PreparedScript, RedisCommand, ScriptCall, ScriptFrame
from limits_app.stores.redis.hints import ScriptClock
from limits_app.stores.redis.opening import KeyNames
from limits_app.stores.redis.prepared import VERSION, AcquireCall, Others, PreparedPlan, PreparedShape, acquire_frame
from limits_app.stores.redis.states import (
    TIME,
    boundaries_of,
    lease_member,
    permits_and_debt,
)

_ALWAYS_KNOWN: Final = -NEVER_US, NEVER_US
"""The time in which the boundaries of no calendar are needed."""

_MOST_CHOICES: Final = 1024
_FILES_OF_VERBS: Final = {
    "collect": frozenset(["usage"]),
    "reject": frozenset(["usage"]),
    "renew": frozenset(["own_keys"]),
}
"""What scripts that know of no request need."""


class ForeignCalendars:
    """That a script has met states of other rules, and the calendars of these whose boundaries it has asked for.

    The same call is then sent with a script that reads states of every rule.
    """

    def __init__(self) -> None:
        self._boundaries: dict[bytes, bytes] = {}

    def learned(self, reply: bytes) -> ForeignCalendars:
        """Add what a reply asks for: the time, and a calendar, or none; returns itself."""
        (now,), calendar = TIME.unpack_from(reply, 1), reply[1 + TIME.size :]
        if calendar:
            self._boundaries[calendar] = boundaries_of(calendar, int(now))
        return self

    def arguments(self) -> list[bytes]:
        """Return them as scripts receive them."""
        return [word for both in self._boundaries.items() for word in both]


class Calls:
    """Builds the calls of one process. Where scopes are `clustered`, those of one plan may be in several calls."""

    def __init__(self, names: KeyNames, clock: ScriptClock, *, clustered: bool) -> None:
        self.names = names
        self.clock = clock
        self._clustered = clustered
        self._choices: dict[tuple[object, ...], AcquireCall] = {}
        self.constants = pack("<dd", *clock.idle)
        """What every plan starts with."""
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Hold permits by another name than the parent process."""
        self._process = os.urandom(8)

    def prepared(self, plan: RequestPlan) -> PreparedPlan:
        """Return what scripts need to know of a plan, which is kept with it."""
        prepared = plan.store_cache
        if not isinstance(prepared, PreparedPlan) or prepared.names is not self.names:
            shape = plan.shape.store_cache
            if not isinstance(shape, PreparedShape) or shape.names is not self.names:
                shape = plan.shape.store_cache = PreparedShape(plan.shape, self.names, self.constants)
            prepared = plan.store_cache = PreparedPlan(plan, shape)
        return prepared

    def choice(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> AcquireCall | None:
        """Return what chooses among claims in one step; None where that is impossible."""
        if self._clustered or any(claim.shape.is_blocked for claim in claims):
            return None
        if len(claims) == 1:
            return self.prepared(claims[0].plan).acquire
        plans = [self.prepared(claim.plan) for claim in claims]
        key = (*plans, emptiest_first, failover)
        if key not in self._choices:
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            others = Others.FOLLOW if failover else Others.STAY
            self._choices[key] = AcquireCall(
                [plan.shape for plan in plans],
                acquire_frame(plans, others, emptiest_first=emptiest_first),
                [name for plan in plans for name in plan.keys],
                b"".join([plan.labels for plan in plans]),
            )
        return self._choices[key]

    def acquire(
        self,
        claims: Sequence[Claim],
        acquire: AcquireCall,
        foreign: ForeignCalendars | None = None,
        now: int | None = None,
    ) -> ScriptCall:
        """Return the call that charges the first of the claims that fits.

        `foreign` are what an earlier call has asked for. `now` is the time of another server of the cluster, that has
        decided on a part of the same claim.
        """
        time = self.clock.time if now is None else now
        numbers = b""
        valid: list[tuple[int, int]] = []
        for claim, shape in zip(claims, acquire.shapes, strict=True):
            boundaries: Sequence[int] = ()
            if "quota" in shape.algorithms:
                boundaries, right = shape.calendars.around(self.clock.estimate() if now is None else now)
                valid.append(right)
            numbers += VERSION.pack(-1 if claim.version is None else claim.version)
            numbers += shape.numbers(claim.amounts, self.holder(claim) if shape.has_permits else b"", boundaries)
        if foreign is None:
            return ScriptCall(acquire, (time, 0), _with_calendars(numbers, valid) if valid else numbers)
        numbers = _with_calendars(numbers, valid or [_ALWAYS_KNOWN])
        logs = [key for claim in claims for key in self.prepared(claim.plan).other_logs()]
        return ScriptCall(acquire.carrying(logs), (time, 0), numbers, foreign.arguments())

    def settle(
        self,
        claim: Claim,
        changes: Amounts,
        plan: PreparedPlan,
        foreign: ForeignCalendars | None = None,
    ) -> ScriptCall:
        """Return the call that settles a claim, or undoes its charges.

        When an earlier one was not answered, this one has only permits and debt, without usage.
        """
        shape, verb = plan.shape, b"undo" if claim.undoes else b"credit" if plan.shape.is_credit else b"settle"
        if claim.unanswered:
            verb, changes = b"again", permits_and_debt(claim, changes)
        boundaries: Sequence[int] = ()
        valid: list[tuple[int, int]] = []
        if "quota" in shape.algorithms:
            boundaries, right = shape.calendars.around(self.clock.estimate())
            valid.append(right)
        numbers = shape.numbers(changes, self.holder(claim) if shape.has_permits else b"", boundaries)
        if verb == b"undo":
            charged = [(claim.used_before(limit), claim.window_start(limit)) for limit in shape.limits]
            numbers = pack(f"<{1 + 2 * len(charged)}d", len(charged), *chain.from_iterable(charged)) + numbers
        prepared, times = plan.settling(verb), (self.clock.time, claim.decided_at)
        if foreign is None:
            return ScriptCall(prepared, times, _with_calendars(numbers, valid))
        numbers = _with_calendars(numbers, valid or [_ALWAYS_KNOWN])
        return ScriptCall(prepared.carrying(plan.other_logs()), times, numbers, foreign.arguments())

    def reset(self, scope: str, fields: Sequence[bytes]) -> ScriptCall:
        """Return the call that forgets the use of limits of a scope, which are given by their fields."""
        short, slices = short_key(scope), short_key(slices_key(scope))
        keys, plan = [self.names.scope(short)], pack("<d", len(fields))
        for field in fields:
            keys += [self.names.log(short, field.decode()), self.names.leases(slices, field.decode())]
            plan += field + b"\0"
        prepared = PreparedScript(ScriptFrame("reset", CARRYING, self.constants + plan, key_count=len(keys)), keys)
        return ScriptCall(prepared, (self.clock.time, 0), pack("<2d", *_ALWAYS_KNOWN))

    def renew(self, claims: Iterable[Claim], tag: bytes) -> tuple[ScriptCall, list[tuple[Claim, PlannedLimit]]]:
        """Return the call that renews the leases of claims, in scopes with a tag, and whose lease of what each is."""
        keys, plan, members, leases = list[bytes](), b"", list[bytes](), list[tuple[Claim, PlannedLimit]]()
        for claim in claims:
            for limit in claim.shape.permits:
                short = claim.plan.short_keys()[limit.scope_index]
                if self.names.tag(short) == tag:
                    keys += [self.names.leases(short, limit.rule.key), self.names.scope(short)]
                    lease_us = leased_us(limit.rule, self.holder(claim))
                    plan += pack("<ddd", lease_us, limit.rule.hold_us, claim.held_since(limit))
                    members.append(lease_member(self.holder(claim), claim, limit))
                    leases.append((claim, limit))
        return self.script("renew", keys, plan, *members), leases

    def set_aside(self, call: RedisCommand) -> ScriptCall:
        """Return the call that renames the keys of another call that another program has written with another type."""
        keys = call.keys()
        return self.script("set_aside", keys, b"", *map(self.names.type_of, keys))

    def script(self, verb: str, keys: Sequence[bytes], plan: bytes, *arguments: bytes) -> ScriptCall:
        """Return the call of a script that knows of no request."""
        files = _FILES_OF_VERBS.get(verb, frozenset())
        prepared = PreparedScript(ScriptFrame(verb, files, self.constants + plan, key_count=len(keys)), keys)
        return ScriptCall(prepared, (self.clock.time, 0), arguments=arguments)

    def holder(self, claim: Claim) -> bytes:
        """Return the name by which a claim holds permits, of 16 bytes."""
        return claim.holder if is_token_holder(claim.holder) else self._process + claim.number.to_bytes(8)


def _with_calendars(numbers: bytes, valid: Sequence[tuple[int, int]]) -> bytes:
    """Return the numbers of a call, with the time in which the boundaries of each of its calendars are known."""
    if not valid:
        return numbers
    return numbers + pack("<dd", max([start for start, _ in valid]), min([end for _, end in valid]))
