"""Calls: the commands for a request, prepared once for each plan. No input or output here.

A script is prelude.lua, the algorithms that it needs, and the file of its verb, concatenated in this order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from struct import Struct, pack
from typing import Any, Final

from limits_app.acquiring.runtime import on_fork
from limits_app.engine.counting import label_of
from limits_app.engine.plan import Amounts, Claim, Plan, PlannedLimit, PlanShape
from limits_app.engine.record import Schema
from limits_app.stores.codecs import Codecs
from limits_app.stores.redis.exactly_once import FIRST, WITHDRAW, Slot, Slots
from limits_app.stores.redis.hints import Calendars, ServerClock
from limits_app.stores.redis.opening import Keys
from limits_app.stores.redis.records import HOLDER_LENGTH, Codec, lease_member

_FILES: Final = dict.fromkeys(["token_bucket", "leaky_bucket"], "buckets")
"""The file of each algorithm, by the name in `Rule.lua`, where it has another name."""

_NUMBER_BYTES: Final = 8
_TIMES: Final = Struct("<4d")
"""What the numbers of every call start with; see prelude.lua."""
_VERSION: Final = Struct("<d")
"""What the numbers of each request start with in acquire.lua: the version of the configuration, -1 for any."""


@lru_cache(maxsize=1024)
def _script(verb: str, algorithms: frozenset[str] = frozenset()) -> tuple[str, str]:
    """Return the script of a verb for limits of these algorithms, and the digest by which servers know it.

    `usage` is an algorithm of scopes that count.
    """
    needed = {_FILES.get(name, name) for name in algorithms - {"blocked"}}
    folder = Path(__file__).parent
    text = "\n".join([(folder / f"{name}.lua").read_text() for name in ("prelude", *sorted(needed), verb)])
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


class Command:
    """A command that may be executed twice; `key` is one of its keys, by which a cluster finds the server.

    `attempt` is FIRST or AGAIN; once it `is_withdrawn`, it is sent to withdraw itself. `text` is that of a script.
    `slot` is where the server keeps the reply of a call that is executed once, while it may have been executed and its
    reply was not read.
    """

    attempt = FIRST
    is_withdrawn = False
    text = ""
    slot: Slot | None = None

    def __init__(self, *words: bytes | str) -> None:
        self._words: tuple[Any, ...] = words
        self.key = words[1] if isinstance(words[1], bytes) else words[1].encode()

    def keys(self) -> Sequence[bytes]:
        """Return all keys of it."""
        return [self.key]

    def begin(self, slots: Slots) -> None:
        """Note that it is sent for the first time."""

    def finish(self, slots: Slots) -> None:
        """Note that its reply was read."""
        slot, self.slot = self.slot, None
        if slot is not None:
            slots.release(slot)

    def refuse(self, slots: Slots) -> None:
        """Note that the server refuses it; an earlier attempt may have been executed."""
        if self.attempt == FIRST and not self.is_withdrawn:
            self.finish(slots)

    def words(self) -> tuple[Any, ...]:
        """Return the command and its arguments."""
        return self._words

    def words_with_text(self) -> tuple[Any, ...]:
        """Return the same with the text of the script, for a server that does not know its digest."""
        return ("EVAL", self.text, *self.words()[2:])


class Prepared:
    """A script with its keys and its plan. On a cluster, all keys have one tag.

    With `reply_key`, to which the name of a slot is added, it is executed once; otherwise it may be executed twice.
    """

    def __init__(
        self, script: tuple[str, str], keys: Sequence[bytes], plan: bytes, reply_key: bytes | None = None
    ) -> None:
        self.text, digest = script
        self.key = keys[0] if keys else reply_key or b""
        self.keys = keys
        self.plan = plan
        self.reply_key = reply_key
        self.head = ("EVALSHA", digest, len(keys) + (reply_key is not None), *keys)


class ScriptCall(Command):
    """A call of a prepared script with its times, its numbers, and further arguments.

    The times are when it is executed, below 0 for the time of the server, and when the claim that it settles was
    charged. `number` is that of the call in its slot, 0 for one that may be executed twice.
    """

    def __init__(
        self, prepared: Prepared, times: tuple[int, int], numbers: bytes = b"", arguments: Sequence[bytes] = ()
    ) -> None:
        self.text, self.key = prepared.text, prepared.key
        self._prepared = prepared
        self._times = times
        self._numbers = numbers
        self._arguments = arguments
        self.number = 0

    def keys(self) -> Sequence[bytes]:
        return self._prepared.keys

    def begin(self, slots: Slots) -> None:
        if self._prepared.reply_key is not None and self.slot is None:
            slot = slots.take()
            slot.number += 1
            self.number = slot.number
            self.slot = slot

    def words(self) -> tuple[Any, ...]:
        prepared, slot = self._prepared, self.slot
        attempt = WITHDRAW if self.is_withdrawn else self.attempt
        numbers = _TIMES.pack(self.number, attempt, *self._times) + self._numbers
        if slot is None or prepared.reply_key is None:
            return (*prepared.head, prepared.plan, numbers, *self._arguments)
        return (*prepared.head, prepared.reply_key + slot.name, prepared.plan, numbers, *self._arguments)


class PreparedShape:
    """What scripts need to know of the shape of a plan, whichever scopes it is bound to."""

    def __init__(self, shape: PlanShape, calls: Calls, codecs: Codecs[Codec]) -> None:
        self.calls = calls
        self.schemas = shape.schemas
        self.codecs = [codecs.of(schema) for schema in shape.schemas]
        self.has_permits = bool(shape.permits)
        self.counts_usage = shape.counts_usage
        self.is_credit, self.recorded_us = shape.is_credit, shape.recorded_us
        self.algorithms = frozenset([limit.rule.lua[0] for limit in shape.limits] + ["usage"] * self.counts_usage)
        self.calendars = Calendars(shape.limits)
        self.keyed = [limit for limit in shape.limits if limit.rule.has_log or limit.is_permit]
        """The limits with a key for their log or leases, in the order of these keys."""
        self.counted: dict[int, list[str]] = {
            place: [rule.key for rule in schema.rules]
            for place, schema in enumerate(shape.schemas)
            if self.counts_usage and schema.counts_usage
        }
        """The scopes whose usage is counted, by place, with the keys of their limits."""
        self.description = self._description(shape)
        holder = "16s" if self.has_permits else ""
        self.layout = Struct(f"<{len(shape.limits)}d{holder}{self.calendars.size}d")
        """How the numbers of a request are packed."""

    def numbers(self, amounts: Amounts, holder: bytes, boundaries: Sequence[int] = ()) -> bytes:
        """Return the numbers of a request: its amounts, its holder, and its boundaries."""
        holders = (holder,) if self.has_permits else ()
        return self.layout.pack(*amounts, *holders, *boundaries)

    def _description(self, shape: PlanShape) -> bytes:
        """Return the description of the request; load_scopes() in prelude.lua and acquire.lua say what it has."""
        limits = b"".join([self._limit(limit) for limit in shape.limits])
        scopes, counted = b"", list(self.counted)
        for place, (codec, scope) in enumerate(zip(self.codecs, shape.scopes, strict=True)):
            label = counted.index(place) if place in counted else 0
            numbers = pack("<4d", codec.size, scope.lasting, len(self.counted.get(place, ())), label)
            scopes += codec.name + numbers + codec.lua_format.encode() + b"\0"
        size = 3 * _NUMBER_BYTES + len(scopes) + len(limits)
        return pack("<3d", len(shape.scopes), len(shape.limits), size) + scopes + limits

    def _limit(self, limit: PlannedLimit) -> bytes:
        (algorithm, *parameters), rule, index = limit.rule.lua, limit.rule, limit.scope_index
        if algorithm == "quota":
            parameters.append(self.calendars.offset(limit) + HOLDER_LENGTH * self.has_permits)
        key_number = len(self.schemas) + 1 + self.keyed.index(limit) if limit in self.keyed else 0
        place = 1 + self.codecs[index].places[limit.index]
        parts = rule.parts_per_unit * (index in self.counted)
        numbers = [1 + index, place, *(*parameters, 0, 0, 0, 0)[:4], key_number, rule.is_soft, 1 + limit.index, parts]
        return algorithm.encode() + b"\0" + pack("<10d", *numbers)


class PreparedPlan:
    """What scripts need to know of a plan: its shape, and the keys of its scopes. On a cluster, these have one tag."""

    def __init__(self, plan: Plan, shape: PreparedShape) -> None:
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
        labels = [label_of(plan.scopes[place], keys) + b"\0" for place, keys in shape.counted.items()]
        self.description = b"".join([shape.description, *labels])
        self.acquire = AcquireCall([self], shape.calls)
        self._settling: dict[bytes, Prepared] = {}

    def settling(self, *, undo: bool = False) -> Prepared:
        """Return the script that settles a claim, or undoes its charges."""
        shape, calls = self.shape, self.shape.calls
        verb = b"undo\0" if undo else b"credit\0" if shape.is_credit else b"settle\0"
        prepared = self._settling.get(verb)
        if prepared is None:
            keys = self.keys + (self.names.finished_usage(self.tag, self.counters) if shape.counts_usage else [])
            channel = pack("<dd", shape.recorded_us, len(self.names.channel)) + self.names.channel
            text, reply_key = calls.constants + verb + channel, self.names.reply(self.tag)
            prepared = Prepared(_script("settle", shape.algorithms), keys, text + self.description, reply_key)
            self._settling[verb] = prepared
        return prepared


class AcquireCall(Prepared):
    """What acquire.lua needs to know of one plan, or of several of which the first that fits is charged."""

    def __init__(
        self, plans: Sequence[PreparedPlan], calls: Calls, *, emptiest_first: bool = False, failover: bool = False
    ) -> None:
        self.plans = plans
        self.is_defined = False
        """Whether this process has stored the definitions of the schemas."""
        names, tag = calls.names, plans[0].tag
        keys = [names.version(tag, plans[0].namespace)]
        place = 1 + len(calls.constants) + (3 + 3 * len(plans)) * _NUMBER_BYTES
        head = calls.constants + pack("<3d", len(plans), emptiest_first, failover)
        for plan in plans:
            head += pack("<3d", 1 + len(keys), place, _VERSION.size + plan.shape.layout.size)
            keys += plan.keys
            place += len(plan.description)
        if any(plan.shape.counts_usage for plan in plans):
            keys += names.finished_usage(tag, max([plan.counters for plan in plans]))  # a plan without scopes has none
        script = _script("acquire", frozenset[str]().union(*[plan.shape.algorithms for plan in plans]))
        super().__init__(script, keys, b"".join([head, *[plan.description for plan in plans]]), names.reply(tag))


def can_be_one_step(plans: Iterable[PreparedPlan]) -> bool:
    """Return whether no two plans have different limits in one scope."""
    schemas = dict[bytes, Schema]()
    return all(
        schemas.setdefault(short, schema) is schema
        for plan in plans
        for short, schema in zip(plan.shorts, plan.shape.schemas, strict=True)
    )


class Calls:
    """Builds the calls of one process."""

    def __init__(self, names: Keys, clock: ServerClock) -> None:
        self.names = names
        self.clock = clock
        self.constants = pack("<dd", *clock.idle)
        """What every plan starts with."""
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Hold permits by another name than the parent process."""
        self._process = os.urandom(8)

    def acquire(self, claims: Sequence[Claim], acquire: AcquireCall, now: int | None = None) -> ScriptCall:
        """Return the call that charges the first of the claims that fits.

        `now` is the time of another server of the cluster, that has decided on a part of the same claim.
        """
        time = self.clock.time if now is None else now
        numbers, known = b"", list[tuple[int, int]]()
        for claim, plan in zip(claims, acquire.plans, strict=True):
            shape, boundaries = plan.shape, tuple[int, ...]()
            if "quota" in shape.algorithms:
                boundaries, right = shape.calendars.around(self.clock.estimate() if now is None else now)
                known.append(right)
            numbers += _VERSION.pack(-1 if claim.version is None else claim.version)
            numbers += shape.numbers(claim.amounts, self.holder(claim) if shape.has_permits else b"", boundaries)
        if known:
            numbers += pack("<dd", max([start for start, _ in known]), min([end for _, end in known]))
        return ScriptCall(acquire, (time, 0), numbers)

    def settle(self, claim: Claim, changes: Amounts, plan: PreparedPlan, *, undo: bool = False) -> ScriptCall:
        """Return the call that settles a claim, or undoes its charges."""
        shape = plan.shape
        boundaries, right = shape.calendars.around(self.clock.estimate()) if "quota" in shape.algorithms else ((), ())
        numbers = shape.numbers(changes, self.holder(claim), boundaries) + pack(f"<{len(right)}d", *right)
        return ScriptCall(plan.settling(undo=undo), (self.clock.time, claim.decided_at), numbers)

    def renew(self, claims: Iterable[Claim], tag: bytes) -> tuple[ScriptCall, list[tuple[Claim, PlannedLimit]]]:
        """Return the call that renews the leases of claims, in scopes with a tag, and whose lease of what each is."""
        keys, plan, members, leases = list[bytes](), b"", list[bytes](), list[tuple[Claim, PlannedLimit]]()
        for claim in claims:
            for limit in claim.shape.permits:
                short = claim.plan.short_keys()[limit.scope_index]
                if self.names.tag(short) == tag:
                    keys += [self.names.leases(short, limit.rule.key), self.names.scope(short)]
                    plan += pack("<ddd", limit.rule.lease_us, limit.rule.hold_us, claim.held_since(limit))
                    members.append(lease_member(self.holder(claim), claim, limit))
                    leases.append((claim, limit))
        return self.script("renew", keys, plan, *members), leases

    def set_aside(self, call: Command) -> ScriptCall:
        """Return the call that renames the keys of another call that another program has written with another type."""
        keys = call.keys()
        return self.script("set_aside", keys, b"", *map(self.names.type_of, keys))

    def definitions(self, name: bytes) -> Command:
        """Return the call that reads the definitions of a schema."""
        return Command("GET", self.names.definitions(name))

    def script(
        self, verb: str, keys: Sequence[bytes], plan: bytes, *arguments: bytes, reply_key: bytes | None = None
    ) -> ScriptCall:
        """Return the call of a script that knows of no request."""
        chosen = _script(verb, frozenset(["usage"] if verb in {"collect", "records"} else []))
        prepared = Prepared(chosen, keys, self.constants + plan, reply_key)
        return ScriptCall(prepared, (self.clock.time, 0), arguments=arguments)

    def holder(self, claim: Claim) -> bytes:
        """Return the name by which a claim holds permits, of 16 bytes."""
        return self._process + claim.number.to_bytes(8, "little")
