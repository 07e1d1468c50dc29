"""Calls: the commands for a request, prepared once for each plan. No input or output here.

A script is prelude.lua, the algorithms that it needs, and the file of its verb, concatenated in this order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from struct import pack
from typing import Any, Final

from limits_app.core.counting import label_of
from limits_app.core.plan import Amounts, Claim, Plan, PlannedLimit
from limits_app.core.record import Schema
from limits_app.core.runtime import on_fork
from limits_app.stores.codecs import Codecs
from limits_app.stores.redis.exactly_once import WITHDRAW, Slot, Slots
from limits_app.stores.redis.hints import Calendars, ServerClock
from limits_app.stores.redis.opening import Keys, tag_of
from limits_app.stores.redis.records import NAME_LENGTH, Codec, StatesReader, lease_member

SETTLE, _CREDIT, UNDO = range(3)
"""The actions of settle.lua."""

_FILES: Final = {"token_bucket": "buckets", "leaky_bucket": "buckets", "blocked": "prelude"}
"""The file of each algorithm, by the name in `Rule.lua`, where it has another name."""

_NUMBER_BYTES: Final = 8
_HEADER_NUMBERS: Final = 6
"""How many numbers every call starts with: its own and the attempt, and those of `ServerClock.header`."""
_FIRST_AMOUNT: Final = 1 + (_HEADER_NUMBERS + 2) * _NUMBER_BYTES
"""Where the amounts of a request start that is the only one."""


class Script:
    """The text of a script, and the digest by which servers know it."""

    def __init__(self, files: Iterable[str]) -> None:
        folder = Path(__file__).parent
        self.text = "\n".join([(folder / f"{name}.lua").read_text() for name in files])
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@lru_cache(maxsize=1024)
def _script(verb: str, algorithms: frozenset[str] = frozenset()) -> Script:
    """Return the script of a verb for limits of these algorithms; `usage` is one for scopes that count."""
    needed = {_FILES.get(name, name) for name in algorithms} - {"prelude"}
    return Script(["prelude", *sorted(needed), verb])


_WITHDRAW_SCRIPT: Final = Script(["prelude"])
"""Does nothing but withdraw a call; see `exactly_once`."""


class Command:
    """A command that may be executed twice; `key` is one of its keys, by which a cluster finds the server.

    `slot` is where the server keeps the reply of a call that is executed once, while it may have been executed and its
    reply was not read.
    """

    script: Script | None = None
    slot: Slot | None = None

    def __init__(self, *words: bytes | str) -> None:
        self._words: tuple[Any, ...] = words
        self.key = words[1] if isinstance(words[1], bytes) else words[1].encode()

    def begin(self, slots: Slots) -> None:
        """Note that it is sent for the first time."""

    def finish(self, slots: Slots) -> None:
        """Note that its reply was read, or that the server has refused it."""

    def words(self, attempt: int) -> tuple[Any, ...]:  # noqa: ARG002
        """Return the command and its arguments."""
        return self._words

    def with_text(self, words: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the same with the text of the script, for a server that does not know its digest."""
        return ("EVAL", "" if self.script is None else self.script.text, *words[2:])


class Prepared:
    """A script with its keys and its plan. On a cluster, all keys have one tag.

    With `reply_key`, to which the name of a slot is added, it is executed once; otherwise it may be executed twice.
    """

    __slots__ = ("head", "key", "plan", "reply_key", "script")

    def __init__(self, script: Script, keys: Sequence[bytes], plan: bytes, reply_key: bytes | None = None) -> None:
        self.script = script
        self.key = keys[0] if keys else b""
        self.plan = plan
        self.reply_key = reply_key
        self.head = ("EVALSHA", script.digest, len(keys) + (reply_key is not None), *keys)


class ScriptCall(Command):
    """A call of a prepared script with its numbers and further arguments."""

    def __init__(self, prepared: Prepared, numbers: Sequence[float], arguments: Sequence[bytes] = ()) -> None:
        self.script, self.key = prepared.script, prepared.key
        self._prepared = prepared
        self._numbers = numbers
        self._arguments = arguments
        self.number = 0

    def begin(self, slots: Slots) -> None:
        if self._prepared.reply_key is not None and self.slot is None:
            slot = slots.take()
            slot.number += 1
            self.number = slot.number
            self.slot = slot

    def finish(self, slots: Slots) -> None:
        slot, self.slot = self.slot, None
        if slot is not None:
            slots.release(slot)

    def words(self, attempt: int) -> tuple[Any, ...]:
        prepared, slot = self._prepared, self.slot
        numbers = pack(f"<{len(self._numbers) + 2}d", self.number, attempt, *self._numbers)
        if slot is None or prepared.reply_key is None:
            return (*prepared.head, prepared.plan, numbers, *self._arguments)
        return (*prepared.head, prepared.reply_key + slot.name, prepared.plan, numbers, *self._arguments)

    def withdrawal(self) -> Command:
        """Return the call that withdraws this one; the reply is WITHDRAWN, or that to this call if it was executed."""
        reply_key = (self._prepared.reply_key or b"") + (self.slot.name if self.slot else b"")
        numbers = pack("<6d", self.number, WITHDRAW, 0, 0, 0, 0)
        call = Command("EVALSHA", _WITHDRAW_SCRIPT.digest, "1", reply_key, b"", numbers)
        call.script, call.key = _WITHDRAW_SCRIPT, reply_key
        return call


class PreparedPlan:
    """What scripts need to know of a plan, or of its scopes with one tag, on a cluster."""

    def __init__(self, plan: Plan, names: Keys, codecs: Codecs[Codec], tag: bytes | None = None) -> None:
        self.names = names
        shorts = plan.short_keys()
        self.scope_indexes = [index for index, short in enumerate(shorts) if tag is None or tag_of(short) == tag]
        self.shorts = [shorts[index] for index in self.scope_indexes]
        self.scopes = [plan.scopes[index] for index in self.scope_indexes]
        self.limits = [limit for limit in plan.limits if limit.scope_index in self.scope_indexes]
        self.is_whole = len(self.limits) == len(plan.limits)
        self.codecs = [codecs.of(scope.schema) for scope in self.scopes]
        self.permits = [limit for limit in self.limits if limit.rule.is_permit]
        self.states = StatesReader([limit.rule for limit in self.limits])
        self.counts_usage = not plan.is_credit and any(scope.schema.counts_usage for scope in self.scopes)
        self.algorithms = frozenset([limit.rule.lua[0] for limit in self.limits] + ["usage"] * self.counts_usage)
        self.has_quotas = "quota" in self.algorithms
        self.calls_apart = self.has_quotas or bool(self.permits)
        """Whether calls have more arguments than amounts."""
        self.calendars = Calendars(self.limits)
        self.version = -1 if plan.version is None else plan.version
        self.tag = names.tag(self.shorts[0] if self.shorts else None) if tag is None else tag
        self.keys = [*map(names.scope, self.shorts)]
        self.description = self._description()
        self.acquire = prepare_acquire([self], may_be_undone=tag is not None)
        self.is_defined = False
        """Whether this process has stored the definitions of the schemas."""
        keys = [*self.keys, *(names.finished_usage(self.tag) if self.counts_usage else [])]
        self.settle_as = [
            Prepared(
                _script("settle", self.algorithms),
                keys or [names.version(self.tag)],
                pack("<d", action) + self.description,
                names.reply(self.tag),
            )
            for action in (_CREDIT if plan.is_credit else SETTLE, _CREDIT, UNDO)
        ]

    def amounts(self, amounts: Amounts) -> Amounts:
        """Return the amounts of these limits."""
        return amounts if self.is_whole else [amounts[limit.place] for limit in self.limits]

    def _description(self) -> bytes:
        """Return the description of the request; load_scopes() in prelude.lua and acquire.lua say what it has.

        The keys of logs and leases are added to `keys`.
        """
        limits = b"".join([self._limit(limit) for limit in self.limits])
        place = (2 + 4 * len(self.scopes)) * _NUMBER_BYTES + NAME_LENGTH * len(self.scopes) + len(limits)
        scopes, labels = [pack("<dd", len(self.scopes), len(self.limits))], b""
        for scope, codec in zip(self.scopes, self.codecs, strict=True):
            keys = [rule.key for rule in scope.schema.rules] if self._counts(scope.schema) else []
            scopes.append(codec.name + pack("<4d", codec.size, scope.lasting, len(keys), place + len(labels)))
            labels += label_of(scope.scope, keys) + b"\0" if keys else b""
        return b"".join([*scopes, limits, labels])

    def _limit(self, limit: PlannedLimit) -> bytes:
        position = self.scope_indexes.index(limit.scope_index)
        (algorithm, *parameters), rule, key_number = limit.rule.lua, limit.rule, 0
        if algorithm == "quota":
            parameters.append(self.calendars.offset(limit))
        if rule.has_log or rule.is_permit:
            name = self.names.log if rule.has_log else self.names.leases
            self.keys.append(name(self.shorts[position], rule.key))
            key_number = len(self.keys)
        place, parts = self.codecs[position].places[limit.index], rule.parts_per_unit * self._counts(limit.scope.schema)
        numbers = [1 + position, place, *(*parameters, 0, 0, 0)[:3], key_number, rule.is_soft, 1 + limit.index, parts]
        return algorithm.encode() + b"\0" + pack("<9d", *numbers)

    def _counts(self, schema: Schema) -> bool:
        return self.counts_usage and schema.counts_usage


def prepare_acquire(
    plans: Sequence[PreparedPlan], emptiest_first: bool = False, failover: bool = False, *, may_be_undone: bool = False
) -> Prepared:
    """Return what acquire.lua needs to know of one plan, or of several of which the first that fits is charged."""
    names, tag = plans[0].names, plans[0].tag
    keys, rows, place = [names.version(tag)], list[float](), 1 + (4 + 3 * len(plans)) * _NUMBER_BYTES
    for plan in plans:
        rows += (1 + len(keys), plan.version, place)
        keys += plan.keys
        place += len(plan.description)
    if any(plan.counts_usage for plan in plans):
        keys += names.finished_usage(tag)
    head = pack(f"<{4 + len(rows)}d", len(plans), emptiest_first, failover, may_be_undone, *rows)
    chosen = _script("acquire", frozenset[str]().union(*[plan.algorithms for plan in plans]))
    return Prepared(chosen, keys, b"".join([head, *[plan.description for plan in plans]]), names.reply(tag))


def can_be_one_step(plans: Iterable[PreparedPlan]) -> bool:
    """Return whether no two plans have different limits in one scope."""
    schemas = dict[bytes, Schema]()
    return all(
        schemas.setdefault(short, scope.schema) is scope.schema
        for plan in plans
        for short, scope in zip(plan.shorts, plan.scopes, strict=True)
    )


class Calls:
    """Builds the calls of one process."""

    def __init__(self, names: Keys, clock: ServerClock) -> None:
        self.names = names
        self.clock = clock
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Hold permits by another name than the parent process."""
        self._process = os.urandom(8)

    def acquire(
        self, claims: Sequence[Claim], plans: Sequence[PreparedPlan], acquire: Prepared, now: int | None = None
    ) -> ScriptCall:
        """Return the call that charges the first of the claims that fits.

        `now` is the time of another server of the cluster, that has decided on a part of the same claim.
        """
        if len(claims) == 1 and not plans[0].calls_apart:
            numbers = [*self.clock.header(0, now), 0, _FIRST_AMOUNT, *plans[0].amounts(claims[0].amounts)]
            return ScriptCall(acquire, numbers)
        rows, amounts, known = list[float](), list[float](), list[tuple[int, int]]()
        place = 1 + (_HEADER_NUMBERS + 2 * len(claims)) * _NUMBER_BYTES
        for claim, plan in zip(claims, plans, strict=True):
            rows += (len(rows) // 2, place + len(amounts) * _NUMBER_BYTES)
            amounts += plan.amounts(claim.amounts)
            if plan.has_quotas:
                boundaries, right = plan.calendars.around(self.clock.estimate() if now is None else now)
                amounts += boundaries
                known.append(right)
        numbers = [*self.clock.header(0, now), *rows, *amounts]
        if known:
            numbers += [max([start for start, _ in known]), min([end for _, end in known])]
        holders = b""
        if any(plan.permits for plan in plans):
            holders = b"".join([self.holder(claim) for claim in claims])
        return ScriptCall(acquire, numbers, (holders,))

    def settle(  # noqa: PLR0917 - as settle.lua has them
        self, claim: Claim, changes: Amounts, plan: PreparedPlan, action: int = SETTLE, records: bytes = b""
    ) -> ScriptCall:
        """Return the call that settles a claim, or undoes its charges."""
        numbers: list[float] = [*self.clock.header(claim.decided_at), *plan.amounts(changes)]
        if plan.has_quotas:
            boundaries, right = plan.calendars.around(self.clock.estimate())
            numbers += [*boundaries, *right]
        undone = [records] if records else []
        return ScriptCall(plan.settle_as[action], numbers, (self.holder(claim), self.names.channel, *undone))

    def renew(self, claims: Iterable[Claim], tag: bytes) -> tuple[ScriptCall, list[Claim]]:
        """Return the call that renews the leases of claims, in scopes with a tag, and the claim of each lease."""
        keys, plan, members, owners = list[bytes](), b"", list[bytes](), list[Claim]()
        for claim in claims:
            for limit in claim.plan.permits:
                short = claim.plan.short_keys()[limit.scope_index]
                if self.names.tag(short) == tag:
                    member, ends = lease_member(self.holder(claim), claim, limit)
                    keys += [self.names.leases(short, limit.rule.key), self.names.scope(short)]
                    plan += pack("<dd", limit.rule.lease_us, ends)
                    members.append(member)
                    owners.append(claim)
        return self.script("renew", keys, plan, *members), owners

    def definitions(self, name: bytes) -> Command:
        """Return the call that reads the definitions of a schema."""
        return Command("GET", self.names.definitions(name))

    def script(
        self, verb: str, keys: Sequence[bytes], plan: bytes, *arguments: bytes, reply_key: bytes | None = None
    ) -> ScriptCall:
        """Return the call of a script that knows of no request."""
        chosen = _script(verb, frozenset(["usage"] if verb == "records" else []))
        return ScriptCall(Prepared(chosen, keys, plan, reply_key), self.clock.header(0), arguments)

    def holder(self, claim: Claim) -> bytes:
        """Return the name by which a claim holds permits, of 16 bytes."""
        return self._process + claim.number.to_bytes(8, "little")
