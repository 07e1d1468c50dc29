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
from limits_app.stores.redis.keys import Keys, tag_of
from limits_app.stores.redis.records import NAME_LENGTH, Codec, StatesReader, lease_member

SETTLE: Final = 0
_CREDIT: Final = 1
UNDO: Final = 2
"""The actions of settle.lua."""

_FOLDER: Final = Path(__file__).parent

_FILES: Final = {"token_bucket": "buckets", "leaky_bucket": "buckets", "blocked": "prelude"}
"""The file of each algorithm, by the name in `Rule.lua`, where it has another name."""

_NUMBER_BYTES: Final = 8
_HEADER_NUMBERS: Final = 6
"""How many numbers every call starts with: its own and the attempt, and those of `ServerClock.header`."""


class Script:
    """The text of a script, and the digest by which servers know it."""

    __slots__ = ("digest", "text")

    def __init__(self, files: Iterable[str]) -> None:
        self.text = "\n".join([(_FOLDER / f"{name}.lua").read_text() for name in files])
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@lru_cache(maxsize=1024)
def script(verb: str, algorithms: frozenset[str] = frozenset()) -> Script:
    """Return the script of a verb for limits of these algorithms."""
    needed = {_FILES.get(name, name) for name in algorithms} - {"prelude"}
    return Script(["prelude", *sorted(needed), verb])


_WITHDRAW_SCRIPT: Final = Script(["prelude"])
"""Does nothing but withdraw a call; see `exactly_once`."""


class Command:
    """A command that may be executed twice."""

    script: Script | None = None
    """The script that it runs, if any."""
    slot: Slot | None = None
    """Where the server keeps the reply, while the command may have been executed and its reply was not read."""

    def __init__(self, *words: bytes | str) -> None:
        self._words: tuple[Any, ...] = words
        self.key = words[1] if isinstance(words[1], bytes) else words[1].encode()
        """One of its keys, by which a cluster finds the server."""

    def begin(self, slots: Slots) -> None:
        """Note that it is sent for the first time."""

    def was_refused(self, slots: Slots) -> None:
        """Note that the server has not executed it."""

    def words(self, attempt: int) -> tuple[Any, ...]:  # noqa: ARG002
        """Return the command and its arguments."""
        return self._words

    def with_text(self, words: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the same with the text of the script, for a server that does not know its digest."""
        return ("EVAL", "" if self.script is None else self.script.text, *words[2:])


class Prepared:
    """A script with its keys and its plan. On a cluster, all keys have one tag.

    With `reply_key`, to which the name of a slot is added, it is executed exactly once; otherwise it may be executed
    twice.
    """

    __slots__ = ("head", "key", "plan", "reply_key", "script")

    def __init__(self, chosen: Script, keys: Sequence[bytes], plan: bytes, reply_key: bytes | None = None) -> None:
        self.script = chosen
        self.key = keys[0] if keys else b""
        self.plan = plan
        self.reply_key = reply_key
        self.head = ("EVALSHA", chosen.digest, len(keys) + (reply_key is not None), *keys)


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

    def was_refused(self, slots: Slots) -> None:
        slots.release(self.slot)
        self.slot = None

    def words(self, attempt: int) -> tuple[Any, ...]:
        prepared, slot = self._prepared, self.slot
        data = pack(f"<{len(self._numbers) + 2}d", self.number, attempt, *self._numbers)
        if slot is None or prepared.reply_key is None:
            return (*prepared.head, prepared.plan, data, *self._arguments)
        return (*prepared.head, prepared.reply_key + slot.name, prepared.plan, data, *self._arguments)

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
        self.algorithms = frozenset([limit.rule.lua[0] for limit in self.limits])
        self.has_quotas = "quota" in self.algorithms
        self.calendars = Calendars(self.limits)
        self.version = -1 if plan.version is None else plan.version
        self.tag = names.tag(self.shorts[0] if self.shorts else None) if tag is None else tag
        apart = [limit for limit in self.limits if limit.rule.has_log or limit.rule.is_permit]
        self.keys = [*map(names.scope, self.shorts), *map(self._key_of, apart)]
        self._key_numbers = {limit: len(self.shorts) + number for number, limit in enumerate(apart, 1)}
        self.description = self._description(plan)
        self.acquire = prepare_acquire([self], may_be_undone=tag is not None)
        self.is_defined = False
        """Whether this process has stored the definitions of the schemas."""
        self._settle = _CREDIT if plan.is_credit else SETTLE
        self._settling: dict[int, Prepared] = {}

    def position(self, scope_index: int) -> int:
        """Return the position, among these scopes, of a scope of the plan."""
        return self.scope_indexes.index(scope_index)

    def _key_of(self, limit: PlannedLimit) -> bytes:
        """Return the key of the log or the leases of a limit."""
        name = self.names.log if limit.rule.has_log else self.names.leases
        return name(self.shorts[self.position(limit.scope_index)], limit.rule.key)

    def amounts(self, amounts: Amounts) -> Amounts:
        """Return the amounts of these limits."""
        return amounts if self.is_whole else [amounts[limit.place] for limit in self.limits]

    def settling(self, action: int = SETTLE) -> Prepared:
        """Return the prepared call of settle.lua."""
        prepared = self._settling.get(action)
        if prepared is None:
            keys = [*self.keys, *(self.names.finished_usage(self.tag) if self.counts_usage else [])]
            plan = pack("<d", self._settle if action == SETTLE else action) + self.description
            chosen = script("settle", self.algorithms)
            keys = keys or [self.names.version(self.tag)]
            prepared = self._settling[action] = Prepared(chosen, keys, plan, self.names.reply(b"", self.tag))
        return prepared

    def _description(self, plan: Plan) -> bytes:
        """Return the description of the request; load_scopes() in prelude.lua and acquire.lua say what it has."""
        scopes, limits, labels = list[bytes](), list[bytes](), list[bytes]()
        counts = [scope.schema.counts_usage and not plan.is_credit for scope in self.scopes]
        for limit in self.limits:
            position = self.position(limit.scope_index)
            algorithm, *parameters = limit.rule.lua
            if algorithm == "quota":
                parameters.append(self.calendars.offset(limit))
            numbers = [1 + position, self.codecs[position].places[limit.index], *(*parameters, 0, 0, 0)[:3]]
            usage = [1 + limit.index, limit.rule.parts_per_unit if counts[position] else 0]
            numbers += [self._key_numbers.get(limit, 0), limit.rule.is_soft, *usage]
            limits.append(algorithm.encode() + b"\0" + pack("<9d", *numbers))
        place = (2 + 4 * len(self.scopes)) * _NUMBER_BYTES + NAME_LENGTH * len(self.scopes) + sum(map(len, limits))
        for scope, codec, is_counted in zip(self.scopes, self.codecs, counts, strict=True):
            keys = [rule.key for rule in scope.schema.rules]
            counted = len(keys) if is_counted else 0
            scopes.append(codec.name + pack("<4d", codec.size, scope.lasting, counted, place))
            if is_counted:
                labels.append(label_of(scope.scope, keys) + b"\0")
                place += len(labels[-1])
        return b"".join([pack("<dd", len(scopes), len(limits)), *scopes, *limits, *labels])


def prepare_acquire(
    plans: Sequence[PreparedPlan], *, emptiest_first: bool = False, failover: bool = False, may_be_undone: bool = False
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
    chosen = script("acquire", frozenset[str]().union(*[plan.algorithms for plan in plans]))
    return Prepared(chosen, keys, b"".join([head, *[plan.description for plan in plans]]), names.reply(b"", tag))


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
        return ScriptCall(plan.settling(action), numbers, (self.holder(claim), self.names.channel, records))

    def renew(self, claims: Iterable[Claim], tag: bytes) -> tuple[ScriptCall, list[Claim]]:
        """Return the call that renews the leases of claims, in scopes with a tag, and the claim of each lease."""
        keys, plan, members, owners = list[bytes](), list[bytes](), list[bytes](), list[Claim]()
        for claim in claims:
            shorts = claim.plan.short_keys()
            for limit in claim.plan.permits:
                short = shorts[limit.scope_index]
                if self.names.tag(short) == tag:
                    member, ends = lease_member(self.holder(claim), claim, limit)
                    keys += [self.names.leases(short, limit.rule.key), self.names.scope(short)]
                    plan.append(pack("<dd", limit.rule.lease_us, ends))
                    members.append(member)
                    owners.append(claim)
        prepared = Prepared(script("renew"), keys, b"".join(plan))
        return ScriptCall(prepared, self._unnumbered(), members), owners

    def watch(self, scope: bytes) -> ScriptCall:
        """Return the call that notes, for a while, that a thread waits for a scope."""
        key = self.names.scope(scope)
        prepared = Prepared(script("renew"), [key, key], pack("<dd", 0, 0))
        return ScriptCall(prepared, self._unnumbered(), [b""])

    def raise_version(self, tag: bytes, *, step: int, least: int) -> ScriptCall:
        """Return the call that raises the version of the configuration."""
        plan = pack("<dd", step, least)
        prepared = Prepared(script("version"), [self.names.version(tag)], plan)
        return ScriptCall(prepared, self._unnumbered())

    def definitions(self, name: bytes) -> Command:
        """Return the call that reads the definitions of a schema."""
        return Command("GET", self.names.definitions(name))

    def script(
        self, verb: str, keys: Sequence[bytes], plan: bytes, *arguments: bytes, tag: bytes, once: bool = False
    ) -> ScriptCall:
        """Return the call of a script that knows of no request."""
        prepared = Prepared(script(verb), keys, plan, self.names.reply(b"", tag) if once else None)
        return ScriptCall(prepared, self._unnumbered(), arguments)

    def holder(self, claim: Claim) -> bytes:
        """Return the name by which a claim holds permits, of 16 bytes."""
        return self._process + claim.number.to_bytes(8, "little")

    def _unnumbered(self) -> Sequence[float]:
        return self.clock.header(0)
