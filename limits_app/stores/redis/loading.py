"""The slow way: records are loaded, changed in Python, and put back if nobody else has changed them.

It is taken when a scope's limits have changed since they were charged, and to reset; deciding goes past it.
The functions are generators that yield calls and are sent their replies, so that threads and tasks share them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from struct import Struct
from typing import Any, Final

from limits_app.core.algorithms import State
from limits_app.core.errors import StaleConfiguration, StoreUnavailable
from limits_app.core.parts import Charges, Part
from limits_app.stores.codecs import Codecs
from limits_app.stores.redis.codec import NAME_LENGTH, Codec
from limits_app.stores.redis.commands import Call, Plain, Prepared, ScriptCall, bulk
from limits_app.stores.redis.counting import NOTHING, Settled, counting_plan
from limits_app.stores.redis.loaded import (
    Loaded,
    full_at,
    kept_apart,
    leases_in,
    living_of,
    packed_log,
    settle_loaded,
    states_of,
)
from limits_app.stores.redis.moments import Moments, moment_of
from limits_app.stores.redis.names import Names
from limits_app.stores.redis.plans import PreparedPlan
from limits_app.stores.redis.scripts import COUNTING, script

__all__ = ["Calls", "Loader"]

Calls = Generator[Call, Any, Any]
_HEAD: Final = Struct("<dd")
_COUNT: Final = Struct("<d")
_NOBODY: Final = b"\0"
_MOST_TRIES: Final = 50
_TOO_FAST: Final = "the limits of a scope change faster than they can be followed"


class Loader:
    """Loads and swaps records."""

    def __init__(self, names: Names, codecs: Codecs[Codec], moments: Moments) -> None:
        self._names = names
        self._codecs = codecs
        self._moments = moments

    def look(self, parts: Sequence[Part], version: int | None) -> Generator[Call, Any, tuple[int, list[list[State]]]]:
        """The moment, and the states of scopes as their parts see them."""
        now, scopes = yield from self.load([part.short_key for part in parts], parts, version)
        pairs = zip(parts, scopes, strict=True)
        return now, [living_of(loaded, part, states_of(loaded, part, now), now) for part, loaded in pairs]

    def carry(self, parts: Sequence[Part], version: int | None) -> Calls:
        """Have the records of scopes follow the layouts of their parts; what was used is kept."""
        for _ in range(_MOST_TRIES):
            now, scopes = yield from self.load([part.short_key for part in parts], parts, version)
            changed = []
            for part, loaded in zip(parts, scopes, strict=True):
                if loaded.record is not None and (loaded.codec is None or loaded.codec.layout is not part.layout):
                    changed.append((loaded, self._codecs[part.layout], states_of(loaded, part, now)))
            if (yield from self._swap(now, changed, drop_expired=True)):
                return
        raise StoreUnavailable(_TOO_FAST)

    def settle(self, changes: Charges, taken_at: int, member: bytes) -> Generator[Call, Any, bool]:
        """Settle in scopes of which some have other limits by now; `member` is how the holder's leases start.

        Returns whether permits are given back that were not lent any more.
        """
        parts = list(dict.fromkeys(ask.part for ask, _ in changes))
        for _ in range(_MOST_TRIES):
            now, scopes = yield from self.load([part.short_key for part in parts], parts, None)
            by_part = dict(zip(parts, scopes, strict=True))
            for part, loaded in by_part.items():
                if loaded.codec is None:
                    loaded.codec, loaded.states = self._codecs[part.layout], list(part.layout.start)
            returned, lapsed = [], False
            for ask, change in changes:
                loaded = by_part[ask.part]
                if ask.lease_key is not None:
                    mine = [name for name in loaded.leases.get(ask.key, {}) if name.startswith(member)]
                    if not mine:
                        lapsed = True
                        continue
                    returned += [(loaded, ask.key, name) for name in mine]
                settle_loaded(loaded, ask, change=change, now=now, taken_at=taken_at)
            swapped = [(loaded, loaded.codec, loaded.states) for loaded in scopes if loaded.codec is not None]
            settled = Settled(changes, taken_at, permits=False)
            if (yield from self._swap(now, swapped, returned=returned, settled=settled)):
                return lapsed
        raise StoreUnavailable(_TOO_FAST)

    def reset(self, scopes: Sequence[bytes], keys: Collection[str] | None) -> Calls:
        """Forget what was used in scopes."""
        for scope in scopes:
            for _ in range(_MOST_TRIES):
                now, (loaded,) = yield from self.load([scope], (), None)
                changed = []
                if loaded.codec is not None:
                    changed = [(loaded, loaded.codec, loaded.codec.layout.forgotten(loaded.states, keys))]
                if (yield from self._swap(now, changed)):
                    break
            else:
                raise StoreUnavailable(_TOO_FAST)

    def load(
        self, scopes: Sequence[bytes], parts: Iterable[Part], version: int | None
    ) -> Generator[Call, Any, tuple[int, list[Loaded]]]:
        """What is stored about scopes, of one moment. Raises StaleConfiguration."""
        known: dict[bytes, dict[bytes, Codec]] = {scope: {} for scope in scopes}
        for part in parts:
            codec = self._codecs[part.layout]
            known[part.short_key][codec.name] = codec
        while True:
            reply = yield self._load_call(known, version)
            if reply == b"S":
                raise StaleConfiguration
            now, rest = int(_COUNT.unpack(reply[0])[0]), iter(reply[1:])
            loaded = [self._loaded(scope, list(codecs.values()), rest) for scope, codecs in known.items()]
            strangers = [one for one in loaded if one.record and one.record[:NAME_LENGTH] not in known[one.scope]]
            met = False
            for one in strangers:
                found = yield from self._find(one.record[:NAME_LENGTH])  # type: ignore[index]  # strangers have one
                if found is not None:
                    known[one.scope][found.name] = found
                    met = True
            if not met:
                return now, loaded

    def _load_call(self, known: dict[bytes, dict[bytes, Codec]], version: int | None) -> ScriptCall:
        names = self._names
        keys = [] if version is None else [names.version(next(iter(known), _NOBODY))]
        plan = [_HEAD.pack(-1 if version is None else version, len(known))]
        for scope, codecs in known.items():
            logs, leases = kept_apart(list(codecs.values()))
            keys += [names.scope(scope), *[names.log(scope, key) for key in logs]]
            keys += [names.leases(scope, key) for key in leases]
            plan.append(_HEAD.pack(len(logs), len(leases)))
        tag = names.tag(next(iter(known), _NOBODY))
        return Prepared(script("load"), keys, b"".join(plan), tag=tag).call(self._moments.header())

    def _loaded(self, scope: bytes, codecs: Sequence[Codec], rest: Any) -> Loaded:
        logs, leases = kept_apart(codecs)
        record = next(rest)
        packed = {key: next(rest) for key in logs}
        held = {key: leases_in(next(rest)) for key in leases}
        codec = None
        if record is not None:
            codec = next((one for one in codecs if record.startswith(one.name)), None)
        states: list[State] = []
        if codec is not None:
            rules = codec.layout.rules
            found = {
                index: codec.log(record, index, packed[rule.key]) for index, rule in enumerate(rules) if rule.has_log
            }
            states = codec.decode(record, 0, found)
        return Loaded(scope, record, codec, states, held)

    def _find(self, name: bytes) -> Generator[Call, Any, Codec | None]:
        codec = self._codecs.named(name)
        if codec is None:
            definitions = yield Plain(b"GET", self._names.definitions(name))
            codec = self._codecs.defined(definitions)
        return codec

    def put_back(
        self, group: PreparedPlan, reply: bytes, changes: Charges, leases: Sequence[tuple[bytes, bytes]]
    ) -> Generator[Call, Any, bool]:
        """Undo what a group has charged a moment ago, which are `changes`, and end its `leases`: key and member.

        False when somebody has changed something since, or a log was written.
        """
        pairs = group.before(reply)
        if pairs is None:
            return False
        now, records = moment_of(reply), []
        for codec, (new, old) in zip(group.codecs, pairs, strict=True):
            expires = codec.expires_us(old)
            records += [new, old if expires else b"", b"%d" % max((expires - now) // 1000, 1)]
        keys = [self._names.scope(part.short_key) for part in group.parts]
        writes = []
        for key, member in leases:
            keys.append(key)
            writes += [b"ZREM", b"%d" % (1 + len(keys)), member, b""]
        extra = [*records, *writes]
        tag = self._names.tag(group.parts[0].short_key)
        settled = Settled(changes, now, permits=True)
        reply = yield self._swap_call(keys, len(pairs), extra, tag=tag, settled=settled)
        return reply == b"A"

    def _swap(
        self,
        now: int,
        changed: Sequence[tuple[Loaded, Codec, list[State]]],
        *,
        returned: Sequence[tuple[Loaded, str, bytes]] = (),
        drop_expired: bool = False,
        settled: Settled = NOTHING,
    ) -> Generator[Call, Any, bool]:
        """Put states in the place of what was loaded; False when it has changed meanwhile."""
        if not changed and not returned:
            return True
        names, keys, records, writes = self._names, [], [], list[bytes]()
        for loaded, codec, states in changed:
            lives = self._moments.idle_us(full_at(codec, states, now) - now)
            keys.append(names.scope(loaded.scope))
            records += [loaded.record or b"", codec.encode(states, now + lives), b"%d" % (lives // 1000 + 1)]
        for loaded, codec, states in changed:
            lives = self._moments.idle_us(full_at(codec, states, now) - now)
            for rule, state in zip(codec.layout.rules, states, strict=True):
                if rule.has_log:
                    keys.append(names.log(loaded.scope, rule.key))
                    packed = packed_log(state)
                    writes += [b"SET", b"%d" % (1 + len(keys)), packed, b"%d" % (lives // 1000 + 1)]
        dropped = list(returned)
        if drop_expired:
            dropped += [(loaded, key, member) for loaded, _, _ in changed for key, member in loaded.expired(now)]
        for loaded, key, member in dropped:
            keys.append(names.leases(loaded.scope, key))
            writes += [b"ZREM", b"%d" % (1 + len(keys)), member, b""]
        extra = [*records, *writes]
        tag = names.tag((changed or returned)[0][0].scope)
        reply = yield self._swap_call(keys, len(changed), extra, tag=tag, settled=settled)
        return bool(reply == b"A")

    def _swap_call(
        self, keys: Sequence[bytes], records: int, extra: Sequence[bytes], *, tag: bytes | None, settled: Settled
    ) -> ScriptCall:
        asks, numbers = [ask for ask, _ in settled.changes], [change for _, change in settled.changes]
        told = _HEAD.pack(records, len({ask.part for ask in asks}))
        plan = told + counting_plan(asks, permits=settled.permits)
        keys = [*keys, *self._names.counts(tag)]
        swap = script("swap", frozenset({COUNTING}))
        prepared = Prepared(swap, keys, plan, numbers=len(numbers), extra=len(extra), tag=tag)
        header = self._moments.header(settled.taken_at)
        return prepared.call((*header, *numbers), b"".join(map(bulk, extra)))
