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
from limits_app.stores.redis.hints import Calendars, ServerClock
from limits_app.stores.redis.opening import Keys
from limits_app.stores.redis.records import HOLDER_LENGTH, Codec, lease_member, permits_and_debt

_FILES: Final = dict.fromkeys(["token_bucket", "leaky_bucket"], "buckets")
"""The file of each algorithm, by the name in `Rule.lua`, where it has another name."""

_NUMBER_BYTES: Final = 8
_MOST_CHOICES: Final = 1024
_TIMES: Final = Struct("<2d")
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
    """A command; `key` is one of its keys, by which a cluster finds the server. `text` is that of a script."""

    text = ""
    is_sent = False
    """Whether the server may have received it, where connections for tasks need to know."""

    def __init__(self, *words: bytes | str) -> None:
        self._words: tuple[Any, ...] = words
        self.key = words[1] if isinstance(words[1], bytes) else words[1].encode()

    def keys(self) -> Sequence[bytes]:
        """Return all keys of it."""
        return [self.key]

    def words(self) -> tuple[Any, ...]:
        """Return the command and its arguments."""
        return self._words

    def words_with_text(self) -> tuple[Any, ...]:
        """Return the same with the text of the script, for a server that does not know its digest."""
        return ("EVAL", self.text, *self.words()[2:])


class Prepared:
    """A script with its keys and its plan. On a cluster, all keys have one tag."""

    def __init__(self, script: tuple[str, str], keys: Sequence[bytes], plan: bytes) -> None:
        self.text, digest = script
        self.key = keys[0] if keys else b""
        self.keys = keys
        self.head = ("EVALSHA", digest, len(keys), *keys, plan)
        """The words of the command before its numbers."""


class ScriptCall(Command):
    """A call of a prepared script with its times, its numbers, and further arguments.

    The times are when it is executed, below 0 for the time of the server, and when the claim that it settles was
    charged.
    """

    def __init__(
        self, prepared: Prepared, times: tuple[int, int], numbers: bytes = b"", arguments: Sequence[bytes] = ()
    ) -> None:
        self.text, self.key = prepared.text, prepared.key
        self._prepared = prepared
        self._words = (*prepared.head, _TIMES.pack(*times) + numbers, *arguments)

    def keys(self) -> Sequence[bytes]:
        return self._prepared.keys


class PreparedShape:
    """What scripts need to know of the shape of a plan, whichever scopes it is bound to."""

    def __init__(self, shape: PlanShape, calls: Calls) -> None:
        self.calls = calls
        self.schemas = shape.schemas
        self.codecs = [calls.codecs.of(schema) for schema in shape.schemas]
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

    def settling(self, verb: bytes) -> Prepared:
        """Return the script that settles a claim; settle.lua says what the verbs do."""
        shape, calls = self.shape, self.shape.calls
        prepared = self._settling.get(verb)
        if prepared is None:
            keys = self.keys + (self.names.finished_usage(self.tag, self.counters) if shape.counts_usage else [])
            channel = pack("<dd", shape.recorded_us, len(self.names.channel)) + self.names.channel
            text = calls.constants + verb + b"\0" + channel + self.description
            prepared = Prepared(_script("settle", shape.algorithms), keys, text)
            self._settling[verb] = prepared
        return prepared


class AcquireCall(Prepared):
    """Prepared arguments of acquire.lua for one plan, or for alternatives of which the first that fits is charged."""

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
        super().__init__(script, keys, b"".join([head, *[plan.description for plan in plans]]))


def can_be_one_step(plans: Iterable[PreparedPlan]) -> bool:
    """Return whether no two plans have different limits in one scope."""
    schemas = dict[bytes, Schema]()
    return all(
        schemas.setdefault(short, schema) is schema
        for plan in plans
        for short, schema in zip(plan.shorts, plan.shape.schemas, strict=True)
    )


class Calls:
    """Builds the calls of one process. Where scopes are `clustered`, those of one plan may be in several calls."""

    def __init__(self, names: Keys, clock: ServerClock, *, clustered: bool) -> None:
        self.names = names
        self.clock = clock
        self.codecs = Codecs(Codec)
        self._clustered = clustered
        self._choices: dict[tuple[object, ...], AcquireCall | None] = {}
        self.constants = pack("<dd", *clock.idle)
        """What every plan starts with."""
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Hold permits by another name than the parent process."""
        self._process = os.urandom(8)

    def prepared(self, plan: Plan) -> PreparedPlan:
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
            how = {"emptiest_first": emptiest_first, "failover": failover}
            self._choices[key] = AcquireCall(plans, self, **how) if can_be_one_step(plans) else None
        return self._choices[key]

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
        """Return the call that settles a claim, or undoes its charges.

        When an earlier one was not answered, this one has only permits and debt, without usage.
        """
        shape, verb = plan.shape, b"undo" if undo else b"credit" if plan.shape.is_credit else b"settle"
        if claim.unanswered:
            verb, changes = b"again", permits_and_debt(claim, changes)
        boundaries, right = shape.calendars.around(self.clock.estimate()) if "quota" in shape.algorithms else ((), ())
        numbers = shape.numbers(changes, self.holder(claim), boundaries) + pack(f"<{len(right)}d", *right)
        return ScriptCall(plan.settling(verb), (self.clock.time, claim.decided_at), numbers)

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

    def script(self, verb: str, keys: Sequence[bytes], plan: bytes, *arguments: bytes) -> ScriptCall:
        """Return the call of a script that knows of no request."""
        chosen = _script(verb, frozenset(["usage"] if verb in {"collect", "records"} else []))
        prepared = Prepared(chosen, keys, self.constants + plan)
        return ScriptCall(prepared, (self.clock.time, 0), arguments=arguments)

    def holder(self, claim: Claim) -> bytes:
        """Return the name by which a claim holds permits, of 16 bytes."""
        return self._process + claim.number.to_bytes(8, "little")
