"""Calls: the commands for a request, prepared once for each plan. No input or output here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import blake2b
from itertools import chain
from struct import Struct, pack
from typing import Final

from limits_app.acquiring import on_fork
from limits_app.engine import (
    HOLDER_LENGTH,
    LEASE_LEVEL,
    NEVER_US,
    Amounts,
    Claim,
    PlannedLimit,
    PlanShape,
    RequestPlan,
    State,
    is_token_holder,
    label_of,
    leased_us,
    short_key,
    slices_key,
)
from limits_app.engine.limits import QuotaLimit
from limits_app.stores.redis.commands import CARRYING, KEEP, PreparedScript, RedisCommand, ScriptCall, ScriptFrame
from limits_app.stores.redis.hints import Calendars, ScriptClock
from limits_app.stores.redis.opening import KeyNames
from limits_app.stores.redis.states import (
    TIME,
    StateReader,
    boundaries_of,
    field_of,
    lease_member,
    numbers_of,
    permits_and_debt,
    tag_of_rule,
    value_format,
)

_ALWAYS_KNOWN: Final = -NEVER_US, NEVER_US
"""The time in which the boundaries of no calendar are needed."""
_DIGEST_LENGTH: Final = 4

_NUMBER_BYTES: Final = 8
_MOST_CHOICES: Final = 1024
_MOST_FRAMES: Final = 1024
_FILES_OF_VERBS: Final = {
    "collect": frozenset(["usage"]),
    "reject": frozenset(["usage"]),
    "renew": frozenset(["own_keys"]),
}
"""What scripts that know of no request need."""
_VERSION: Final = Struct("<d")
"""What the numbers of each request start with in acquire.lua: the version of the configuration, -1 for any."""


class PreparedShape:
    """What scripts need to know of the shape of a plan, whichever scopes it is bound to."""

    def __init__(self, shape: PlanShape, calls: Calls) -> None:
        self.calls = calls
        self.schemas = shape.schemas
        self.limits = [limit for limit in shape.limits if limit.rule.lua[0] != "blocked"]
        """The limits with a state."""
        self.limit_count = len(shape.limits)
        self.has_blocked = len(self.limits) < self.limit_count
        self.has_permits = bool(shape.permits)
        self.counts_usage = shape.counts_usage
        self.is_credit, self.recorded_us = shape.is_credit, shape.recorded_us
        self.algorithms = frozenset([limit.rule.lua[0] for limit in self.limits] + ["usage"] * self.counts_usage)
        keeps = any(limit.rule.kept_parts for limit in self.limits)
        self.acquiring = self.algorithms.union([KEEP]) if keeps else self.algorithms
        """The files of the script that acquires; the others know no class."""
        self.calendars = Calendars(shape.limits)
        self.keyed = [limit for limit in self.limits if limit.rule.has_log or limit.is_permit]
        """The limits with a key for their log or leases, in the order of these keys."""
        self.counted: dict[int, tuple[str, ...]] = {
            index: tuple([rule.key for rule in schema.rules])
            for index, schema in enumerate(shape.schemas)
            if self.counts_usage and schema.counts_usage
        }
        """The scopes whose usage is counted, by their index, with the keys of their limits."""
        self.description = self._description(shape)
        self.reader = StateReader(self.limits)
        holder = "16s" if self.has_permits else ""
        self.layout = Struct(f"<{len(self.limits)}d{holder}{self.calendars.size}d")
        """How the numbers of a request are packed."""
        self.frames: dict[tuple[object, ...], ScriptFrame] = {}
        """What calls for plans of this shape have in common, by their kind, the tag of their keys and the namespace."""

    def keep_frame(self, kind: tuple[object, ...], frame: ScriptFrame) -> ScriptFrame:
        """Keep the frame of a kind; returns it."""
        if len(self.frames) >= _MOST_FRAMES:
            self.frames.clear()
        self.frames[kind] = frame
        return frame

    def numbers(self, amounts: Amounts, holder: bytes, boundaries: Sequence[int] = ()) -> bytes:
        """Return the numbers of a request: its amounts, its holder, and its boundaries."""
        if self.has_blocked:
            amounts = [amounts[limit.position] for limit in self.limits]
        holders = (holder,) if self.has_permits else ()
        return self.layout.pack(*amounts, *holders, *boundaries)

    def with_blocked(self, states: Sequence[State]) -> list[State]:
        """Return the states of all limits, given those of the limits that have one."""
        by_position = {limit.position: state for limit, state in zip(self.limits, states, strict=True)}
        return [by_position.get(position, ()) for position in range(self.limit_count)]

    def _description(self, shape: PlanShape) -> bytes:
        """Return the description of the request; load_request() in prelude.lua and acquire.lua say what it has."""
        parts, indexes = b"", list(self.counted)
        for index, scope in enumerate(shape.scopes):
            limits = [limit for limit in self.limits if limit.scope_index == index]
            keys = self.counted.get(index, ())
            label = indexes.index(index) if keys else 0
            counted = "\0".join(keys) + ("\0\0" + scope.schema.plan if scope.schema.plan else "")
            digest = blake2b(counted.encode(), digest_size=_DIGEST_LENGTH).digest()
            parts += pack("<4d", len(limits), scope.lasting, len(keys), label) + b"#" + digest
            parts += b"".join([self._limit(limit) for limit in limits])
        return pack("<2d", len(shape.scopes), len(self.limits)) + parts

    def _limit(self, limit: PlannedLimit) -> bytes:
        rule, tag = limit.rule, tag_of_rule(limit.rule)
        capacity, *parameters = numbers_of(rule)
        if limit.level == LEASE_LEVEL:
            parameters.append(1)
        if isinstance(rule.limit, QuotaLimit):
            parameters.append(self.calendars.offset(limit) + HOLDER_LENGTH * self.has_permits)
        key_number = len(self.schemas) + 1 + self.keyed.index(limit) if limit in self.keyed else 0
        usage = (1 + limit.index) * (limit.scope_index in self.counted)
        keep = -1 if rule.is_soft else rule.kept_parts
        numbers = [key_number, keep, usage, rule.parts_per_unit, capacity, *(*parameters, 0, 0, 0)[:3]]
        lua_format, size = value_format(rule)
        head = field_of(rule) + b"\0" + tag[:1] + bytes([len(tag)]) + tag + lua_format + b"\0"
        return head + pack("<9d", size, *numbers)


class _Others(IntEnum):
    """What happens to the other requests; see acquire.lua."""

    STAY = 0
    FOLLOW = 1
    ARE_NOT_CHARGED_EITHER = 2


class PreparedPlan:
    """What scripts need to know of a plan: its shape, and the keys of its scopes. On a cluster, these have one tag."""

    def __init__(self, plan: RequestPlan, shape: PreparedShape) -> None:
        self.shape = shape
        self.names = names = shape.calls.names
        self.namespace = plan.namespace
        self.counters = plan.counters
        self.shorts = shorts = plan.short_keys()
        self.tag = names.tag(shorts[0] if shorts else None)
        self.keys = [*map(names.scope, shorts)]
        for limit in shape.keyed:
            name = names.log if limit.rule.has_log else names.leases
            self.keys.append(name(shorts[limit.scope_index], limit.rule.key))
        self.labels = b""
        for index, keys in shape.counted.items():
            self.labels += label_of(plan.scopes[index], keys, shape.schemas[index].plan) + b"\0"
        self.acquire = self._alone(_Others.STAY)
        self._settling: dict[bytes, PreparedScript] = {}

    def other_logs(self) -> list[bytes]:
        """Return the keys of the logs that its limits may have had under other rules."""
        return [self.names.log(self.shorts[limit.scope_index], limit.rule.key) for limit in self.shape.limits]

    def looking(self) -> AcquireCall:
        """Return what reads the states of the limits and charges nothing."""
        return self._alone(_Others.ARE_NOT_CHARGED_EITHER)

    def _alone(self, others: _Others) -> AcquireCall:
        shape, kind = self.shape, (others, self.tag, self.namespace, self.counters)
        frame = shape.frames.get(kind) or shape.keep_frame(kind, _acquire_frame([self], others))
        return AcquireCall([shape], frame, self.keys, self.labels)

    def settling(self, verb: bytes) -> PreparedScript:
        """Return the script that settles a claim; settle.lua says what the verbs do."""
        prepared = self._settling.get(verb)
        if prepared is None:
            shape, kind = self.shape, (verb, self.tag, self.counters)
            frame = shape.frames.get(kind) or shape.keep_frame(kind, self._settling_frame(verb))
            prepared = PreparedScript(frame, self.keys, (self.labels,))
            self._settling[verb] = prepared
        return prepared

    def _settling_frame(self, verb: bytes) -> ScriptFrame:
        shape, channel = self.shape, self.names.channel
        head = shape.calls.constants + verb + b"\0" + pack("<dd", shape.recorded_us, len(channel)) + channel
        last = [self.names.usage(self.tag, self.counters)] if shape.counts_usage else ()
        return ScriptFrame("settle", shape.algorithms, head + shape.description, key_count=len(self.keys), last=last)


class AcquireCall(PreparedScript):
    """Prepared arguments of acquire.lua for one plan, or for alternatives of which the first that fits is charged.

    It has their shapes: a reference to a plan, which has its call, would leave new clients to the garbage collector.
    """

    def __init__(
        self, shapes: Sequence[PreparedShape], frame: ScriptFrame, keys: Sequence[bytes], labels: bytes
    ) -> None:
        super().__init__(frame, keys, (labels,))
        self.shapes = shapes


def _acquire_frame(plans: Sequence[PreparedPlan], others: _Others, *, emptiest_first: bool = False) -> ScriptFrame:
    """Return the frame of a call for some plans, whose keys have one tag; acquire.lua says what its plan has."""
    calls, tag, counts_usage = plans[0].shape.calls, plans[0].tag, any(plan.shape.counts_usage for plan in plans)
    offset = 1 + len(calls.constants) + (3 + 4 * len(plans)) * _NUMBER_BYTES
    text = calls.constants + pack("<3d", len(plans), emptiest_first, others)
    first_key, label = 2, 0
    for plan in plans:
        text += pack("<4d", first_key, offset, label, _VERSION.size + plan.shape.layout.size)
        first_key += len(plan.keys)
        offset += len(plan.shape.description)
        label += len(plan.shape.counted)
    # A plan without scopes has no counters.
    last = [calls.names.usage(tag, max([plan.counters for plan in plans]))] if counts_usage else ()
    return ScriptFrame(
        "acquire",
        frozenset[str]().union(*[plan.shape.acquiring for plan in plans]),
        b"".join([text, *[plan.shape.description for plan in plans]]),
        key_count=first_key - 2,
        first=[calls.names.version(tag, plans[0].namespace)],
        last=last,
    )


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
            if not isinstance(shape, PreparedShape) or shape.calls is not self:
                shape = plan.shape.store_cache = PreparedShape(plan.shape, self)
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
            others = _Others.FOLLOW if failover else _Others.STAY
            self._choices[key] = AcquireCall(
                [plan.shape for plan in plans],
                _acquire_frame(plans, others, emptiest_first=emptiest_first),
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
            numbers += _VERSION.pack(-1 if claim.version is None else claim.version)
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
