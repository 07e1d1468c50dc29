"""Calls: the commands for a request, prepared once for each plan. No input or output here.

A script is prelude.lua, the algorithms that it needs, and the file of its verb, concatenated in this order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from struct import pack
from typing import Final

from limits_app.core.counting import label_of
from limits_app.core.plan import Amounts, Claim, Plan, PlannedLimit
from limits_app.core.runtime import on_fork
from limits_app.stores.redis.exactly_once import WITHDRAW, Slot, Slots
from limits_app.stores.redis.hints import ALWAYS, Calendars, ServerClock
from limits_app.stores.redis.keys import Keys, tag_of
from limits_app.stores.redis.records import NAME_LENGTH, Codecs, StatesReader, lease_member

SETTLE: Final = 0
_CREDIT: Final = 1
UNDO: Final = 2
"""The actions of settle.lua."""

_FOLDER: Final = Path(__file__).parent

_FILES: Final = {"token_bucket": "buckets", "leaky_bucket": "buckets", "blocked": "prelude"}
"""The file of each algorithm, by the name in `Rule.lua`, where it has another name."""

Pack = Callable[..., Sequence[bytes]]
"""The method of connections of redis-py that packs a command."""

_NUMBER_BYTES: Final = 8
_HEADER_NUMBERS: Final = 6
"""How many numbers every call starts with: its own and the attempt, and those of `ServerClock.header`."""
_NO_HOLDER: Final = bytes(16)


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

    def __init__(self, *words: bytes | str) -> None:
        self._words = words
        self.key = words[1] if isinstance(words[1], bytes) else words[1].encode()
        """One of its keys, by which a cluster finds the server."""

    def begin(self, slots: Slots) -> None:
        """Note that it is sent for the first time."""

    def was_refused(self, slots: Slots) -> None:
        """Note that the server has not executed it."""

    def packed(self, pack_command: Pack, attempt: int, *, with_text: bool) -> Sequence[bytes]:  # noqa: ARG002
        """Return the packed command, with the text of the script or its digest; `pack_command` is that of a connection."""
        if with_text and self.script is not None:
            return pack_command("EVAL", self.script.text, *self._words[2:])
        return pack_command(*self._words)


class Prepared:
    """A script with its keys and its plan. On a cluster, all keys have one tag.

    `once` says that it is executed exactly once; otherwise it may be executed twice. One that `is_repeated` has
    arguments of the same lengths in every call, so that it is packed once.
    """

    __slots__ = ("_pieces", "head", "is_repeated", "key", "plan", "reply_key", "script")

    def __init__(
        self,
        chosen: Script,
        keys: Sequence[bytes],
        plan: bytes,
        reply_key: bytes | None = None,
        *,
        is_repeated: bool = False,
    ) -> None:
        self.script = chosen
        self.key = keys[0] if keys else b""
        self.plan = plan
        self.reply_key = reply_key
        self.is_repeated = is_repeated
        self.head = ("EVALSHA", chosen.digest, len(keys) + (reply_key is not None), *keys)
        self._pieces: list[bytes] = []

    def packed(self, pack_command: Pack, slot: bytes, *arguments: bytes, with_text: bool) -> Sequence[bytes]:
        """Return the command with the name of a slot and arguments."""
        head = ("EVAL", self.script.text, *self.head[2:]) if with_text else self.head
        if self.reply_key is None:
            return pack_command(*head, self.plan, *arguments)
        if with_text or not self.is_repeated:
            return pack_command(*head, self.reply_key + slot, self.plan, *arguments)
        fields = (slot, *arguments)
        if not self._pieces:
            # What redis-py packs around random fields of the same lengths is the same around others.
            random = [os.urandom(len(field)) for field in fields]
            rest = b"".join(pack_command(*self.head, self.reply_key + random[0], self.plan, *random[1:]))
            pieces = []
            for field in random:
                before, _, rest = rest.partition(field) if field else (rest, b"", b"")
                pieces.append(before)
            self._pieces = [*pieces, rest]
        pieces = self._pieces
        parts = [*pieces, *fields]
        parts[::2], parts[1::2] = pieces, fields
        return (b"".join(parts),)


class ScriptCall(Command):
    """A call of a prepared script with its numbers and further arguments.

    While it may have been executed and its reply was not read, `slot` is where the server keeps the reply.
    """

    def __init__(self, prepared: Prepared, numbers: Sequence[float], arguments: Sequence[bytes] = ()) -> None:
        self.script, self.key = prepared.script, prepared.key
        self._prepared = prepared
        self._numbers = numbers
        self._arguments = arguments
        self.slot: Slot | None = None
        self.number = 0

    def begin(self, slots: Slots) -> None:
        """See Command."""
        if self._prepared.reply_key is not None and self.slot is None:
            slot = slots.take()
            slot.number += 1
            self.number = slot.number
            self.slot = slot

    def was_refused(self, slots: Slots) -> None:
        """See Command."""
        slots.release(self.slot)
        self.slot = None

    def packed(self, pack_command: Pack, attempt: int, *, with_text: bool) -> Sequence[bytes]:
        """See Command."""
        slot = b"" if self.slot is None else self.slot.name
        data = pack(f"<{len(self._numbers) + 2}d", self.number, attempt, *self._numbers)
        return self._prepared.packed(pack_command, slot, data, *self._arguments, with_text=with_text)

    def withdrawal(self) -> Command:
        """Return the call that withdraws this one; the reply is `W`, or that to this call if it was executed."""
        reply_key = (self._prepared.reply_key or b"") + (self.slot.name if self.slot else b"")
        numbers = pack("<6d", self.number, WITHDRAW, 0, 0, 0, 0)
        call = Command("EVALSHA", _WITHDRAW_SCRIPT.digest, "1", reply_key, b"", numbers)
        call.script, call.key = _WITHDRAW_SCRIPT, reply_key
        return call


class PreparedPlan:
    """What scripts need to know of a plan, or of its scopes with one tag, on a cluster."""

    def __init__(self, plan: Plan, names: Keys, codecs: Codecs, tag: bytes | None = None) -> None:
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
        self.acquire = PreparedAcquire([self], emptiest_first=False, failover=False, may_be_undone=tag is not None)
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
            prepared = self._settling[action] = Prepared(
                chosen, keys, plan, self.names.reply(b"", self.tag), is_repeated=True
            )
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


class PreparedAcquire:
    """What acquire.lua needs to know of one plan, or of several of which the first that fits is charged.

    `is_possible` is False where two plans have different limits in one scope: these cannot be decided in one step.
    """

    def __init__(
        self,
        plans: Collection[PreparedPlan],
        *,
        emptiest_first: bool,
        failover: bool,
        may_be_undone: bool = False,
    ) -> None:
        first = next(iter(plans))
        names = first.names
        schemas = {short: scope.schema for plan in plans for short, scope in zip(plan.shorts, plan.scopes, strict=True)}
        self.is_possible = all(
            schemas[short] is scope.schema
            for plan in plans
            for short, scope in zip(plan.shorts, plan.scopes, strict=True)
        )
        self.is_defined = False
        """Whether this process has stored the definitions of the schemas."""
        self.numbers = {plan: number for number, plan in enumerate(plans)}
        self.has_permits = any(plan.permits for plan in plans)
        self.has_quotas = any(plan.has_quotas for plan in plans)
        keys, rows, descriptions = [names.version(first.tag)], [], dict[bytes, int]()
        place = 1 + (4 + 3 * len(plans)) * _NUMBER_BYTES
        for plan in plans:
            if plan.description not in descriptions:
                descriptions[plan.description] = place
                place += len(plan.description)
            rows += [1 + len(keys), plan.version, descriptions[plan.description]]
            keys += plan.keys
        if any(plan.counts_usage for plan in plans):
            keys += names.finished_usage(first.tag)
        head = pack(f"<{4 + len(rows)}d", len(plans), emptiest_first, failover, may_be_undone, *rows)
        algorithms = frozenset[str]().union(*[plan.algorithms for plan in plans])
        blob = b"".join([head, *descriptions])
        self.prepared = Prepared(
            script("acquire", algorithms), keys, blob, names.reply(b"", first.tag), is_repeated=True
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
        self, claims: Sequence[Claim], plans: Sequence[PreparedPlan], acquire: PreparedAcquire, now: int | None = None
    ) -> ScriptCall:
        """Return the call that charges the first of the claims that fits.

        `now` is the time of another server of the cluster, that has decided on a part of the same claim.
        """
        rows, amounts, known = list[float](), list[float](), [ALWAYS]
        place = 1 + (_HEADER_NUMBERS + 2 * len(claims)) * _NUMBER_BYTES
        for claim, plan in zip(claims, plans, strict=True):
            rows += (acquire.numbers[plan], place + len(amounts) * _NUMBER_BYTES)
            amounts += plan.amounts(claim.amounts)
            if plan.calendars.size:
                told = plan.calendars.around(self.clock.estimate() if now is None else now)
                amounts += told.boundaries
                known.append(told.known)
        numbers = [*self.clock.header(0, now), *rows, *amounts]
        if acquire.has_quotas:
            numbers += [max([start for start, _ in known]), min([end for _, end in known])]
        holders = b""
        if acquire.has_permits:
            holders = b"".join([self.holder(claim) if claim.plan.permits else _NO_HOLDER for claim in claims])
        return ScriptCall(acquire.prepared, numbers, (holders,))

    def settle(  # noqa: PLR0917 - as settle.lua has them
        self, claim: Claim, changes: Amounts, plan: PreparedPlan, action: int = SETTLE, records: bytes = b""
    ) -> ScriptCall:
        """Return the call that settles a claim, or undoes its charges."""
        numbers: list[float] = [*self.clock.header(claim.decided_at), *plan.amounts(changes)]
        if plan.has_quotas:
            told = plan.calendars.around(self.clock.estimate())
            numbers += [*told.boundaries, *told.known]
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
