"""Plans: what a shape of request sends, worked out once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Final, overload

from limits_app.core.algorithms import State
from limits_app.core.parts import Amounts, Ask, Charges, Part
from limits_app.core.plan import Plan
from limits_app.stores.codecs import Codecs
from limits_app.stores.redis.calendars import Calendars
from limits_app.stores.redis.codec import Codec, log_of
from limits_app.stores.redis.commands import Prepared, ScriptCall
from limits_app.stores.redis.counting import counting_plan
from limits_app.stores.redis.names import Names
from limits_app.stores.redis.scripts import COUNTING, SOFT, script
from limits_app.stores.redis.straightening import Shape

__all__ = ["PreparedPlan", "Records"]

_SCOPE: Final = Struct("<dd")
_HEAD: Final = Struct("<dddd")
_ASK: Final = Struct("<7d")
_VIEW: Final = Struct("<3d")
_REPLY_HEAD: Final = 9
_FIRST: Final = 3
"""The place of the first integer in Lua, after the name and until when the record lives."""


class PreparedPlan:
    """The scripts that acquire and settle for one plan, and how to read what they reply.

    `keys`, `packed`, `twins` and `shape` are what the one that acquires is given, and what it is made of.
    It is about all of the plan where it is `whole`, and else about what stands at `places`.
    `numbers` says how many it is told beside those with which every script starts:
    the amounts, and the boundaries of `calendars`, which are None where there are no quotas.
    `read_one` reads when a reply was decided that admits, and its records, which is one; None where there are several.
    `fixed` are the amounts of most requests where nothing else differs between them, and `usual` is the call that
    acquires these, once somebody has asked for it.
    """

    __slots__ = (
        "acquire",
        "asks",
        "calendars",
        "codecs",
        "fixed",
        "keys",
        "numbers",
        "packed",
        "parts",
        "permits",
        "places",
        "read_one",
        "settle",
        "shape",
        "twins",
        "undo",
        "usual",
        "views",
        "whole",
    )

    def __init__(self, plan: Plan, names: Names, codecs: Codecs[Codec], tag: bytes | None = None) -> None:
        """`tag` leaves out all scopes but those that have it."""
        self.parts = [part for part in plan.parts if tag is None or names.tag(part.short_key) == tag]
        self.places = [place for place, ask in enumerate(plan.asks) if ask.part in self.parts]
        self.whole = len(self.places) == len(plan.asks)
        self.asks = [plan.asks[place] for place in self.places]
        self.permits = any(ask.rule.is_permit for ask in self.asks)
        self.codecs = [codecs[part.layout] for part in self.parts]
        self.read_one = self.codecs[0].reading_reply(_REPLY_HEAD) if len(self.codecs) == 1 else None
        places = {part: place for place, part in enumerate(self.parts)}
        self.views = [(places[ask.part], ask.index) for ask in self.asks if ask.rule.has_log]
        self.twins = _twins(self.asks, self.parts)
        self.calendars = Calendars(self.asks) if "quota" in self.twins else None
        self.numbers = len(self.asks) + (self.calendars.size if self.calendars else 0)
        self.shape = Shape.of(len(self.parts), [(1 + places[ask.part], ask.rule.twin[0]) for ask in self.asks])
        self.keys, before, blob = self._packed(names, places, tag, versioned=plan.version is not None)
        taken, returned = (counting_plan(self.asks, permits=permits) for permits in (True, False))
        self.packed = self._head(before, plan.version) + blob + taken
        # What was admitted is settled whatever has changed since.
        unchecked = self._head(before, None) + blob
        self.acquire = self._prepare("acquire" if tag is None else "join", self.packed, tag)
        verb = "credit" if any(part.is_credit for part in self.parts) else "settle"
        self.settle = self._prepare(verb, unchecked + returned, tag, extra=1)
        self.undo = self.settle if tag is None else self._prepare("undo", unchecked + taken, tag, extra=1)
        self.fixed = plan.fixed if self.whole and not self.permits and self.calendars is None else None
        self.usual: ScriptCall | None = None

    def usually(self, header: Sequence[float]) -> ScriptCall:
        """Make the call that takes the `fixed` amounts, of which there are some."""
        self.usual = self.acquire.call((*header, *(self.fixed or ())))
        return self.usual

    def beside(self, plan: Plan, amounts: Amounts) -> Charges:
        """The amounts that are not zero beside the limits that they are of, of these scopes."""
        return [(plan.asks[place], amounts[place]) for place in self.places if amounts[place]]

    def _prepare(self, verb: str, packed: bytes, tag: bytes | None, extra: int = 0) -> Prepared:
        numbers = self.numbers + (2 if self.calendars else 0)
        extra += self.permits
        chosen = script(verb, self.twins, self.shape)
        return Prepared(chosen, self.keys, packed, numbers=numbers, extra=extra, tag=tag)

    def _head(self, before: int, version: int | None) -> bytes:
        return _HEAD.pack(-1 if version is None else version, before, len(self.parts), len(self.asks))

    def _packed(
        self, names: Names, places: Mapping[Part, int], tag: bytes | None, *, versioned: bool
    ) -> tuple[list[bytes], int, bytes]:
        """The keys, how many stand before those of the scopes, and what the scripts are told of scopes and limits."""
        first = self.parts[0].short_key if self.parts else b"\0"
        keys = [names.version(first)] if versioned else []
        before = 1 + len(keys)
        keys += [names.scope(part.short_key) for part in self.parts]
        packed = [
            codec.name + codec.format + b"\0" + _SCOPE.pack(codec.size, part.scoped.lasting)
            for codec, part in zip(self.codecs, self.parts, strict=True)
        ]
        for ask in self.asks:
            place, key = places[ask.part], 0
            if ask.rule.has_log or ask.rule.is_permit:
                name = names.log if ask.rule.has_log else names.leases
                keys.append(name(ask.part.short_key, ask.rule.key))
                key = 1 + len(keys)
            twin, *parameters = ask.rule.twin
            if self.calendars is not None:
                parameters.append(self.calendars.offset(ask))
            a, b, c = (*parameters, 0, 0, 0)[:3]
            offset = self.codecs[place].offsets[ask.index] + _FIRST
            packed.append(twin.encode() + b"\0" + _ASK.pack(1 + place, offset, a, b, c, key, ask.rule.limit.soft))
        if COUNTING in self.twins:
            keys += names.counts(tag)
        return keys, before, b"".join(packed)

    def before(self, reply: bytes) -> list[tuple[bytes, bytes]] | None:
        """The records after and before a group was admitted; None when a log was written as well."""
        at, records = _REPLY_HEAD, list[bytes]()
        for codec in (*self.codecs, *self.codecs):
            records.append(reply[at : at + codec.size])
            at += codec.size
        pairs = list(zip(records[: len(self.codecs)], records[len(self.codecs) :], strict=True))
        wrote = any(codec.wrote_log(old, new) for codec, (new, old) in zip(self.codecs, pairs, strict=True))
        return None if wrote else pairs


class Records(Sequence[list[State]]):
    """The records in a reply, decoded when somebody looks."""

    __slots__ = ("_decoded", "_prepared", "_refused", "_reply")

    def __init__(self, prepared: PreparedPlan, reply: bytes, *, refused: bool) -> None:
        self._prepared = prepared
        self._reply = reply
        self._refused = refused
        self._decoded: list[list[State]] | None = None

    def __len__(self) -> int:
        return len(self._prepared.codecs)

    @overload
    def __getitem__(self, index: int) -> list[State]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[State]]: ...

    def __getitem__(self, index: int | slice) -> list[State] | list[list[State]]:
        if self._decoded is None:
            self._decoded = self._states()
        return self._decoded[index]

    def _states(self) -> list[list[State]]:
        at, decoded = _REPLY_HEAD, []
        for codec in self._prepared.codecs:
            decoded.append(codec.read(self._reply, at))
            at += codec.size
        if self._refused:
            for (place, index), seen in zip(self._prepared.views, _VIEW.iter_unpack(self._reply[at:]), strict=True):
                decoded[place][index] = _seen(decoded[place][index], *seen)
        return decoded


def _twins(asks: Iterable[Ask], parts: Iterable[Part]) -> frozenset[str]:
    """What the scripts are made of."""
    twins = {ask.rule.twin[0] for ask in asks}
    if any(ask.rule.limit.soft for ask in asks):
        twins.add(SOFT)
    if any(part.layout.counts for part in parts):
        twins.add(COUNTING)
    return frozenset(twins)


def _seen(state: State, forgotten: float, time: float, total: float) -> State:
    """The state of a sliding window that refused: of its log only the entry is known with which enough comes back."""
    log = log_of([(time, total)] if time else [])
    return (int(forgotten), *state[1:5], log)  # type: ignore[arg-type]  # `Rule` sees it as integers
