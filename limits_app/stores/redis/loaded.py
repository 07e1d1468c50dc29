"""What was loaded about a scope, and what follows from it; nothing here asks a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from limits_app.core.algorithms import State
from limits_app.core.algorithms.log import Log
from limits_app.core.parts import Ask, Part
from limits_app.stores.leases import Lease, counted
from limits_app.stores.redis.codec import PAIR, Codec
from limits_app.stores.settling import settle_under

__all__ = ["Loaded", "full_at", "kept_apart", "leases_in", "living_of", "packed_log", "settle_loaded", "states_of"]


@dataclass(slots=True)
class Loaded:
    """What is stored about a scope: its record as it stands, its states, and who holds its permits, by limit."""

    scope: bytes
    record: bytes | None
    codec: Codec | None
    states: list[State]
    leases: dict[str, dict[bytes, Lease]] = field(default_factory=dict)

    def living(self, key: str, now: int) -> list[Lease]:
        """The leases of a limit that have not run out."""
        return [lease for lease in self.leases.get(key, {}).values() if lease[1] > now]

    def expired(self, now: int) -> list[tuple[str, bytes]]:
        """The leases that have run out: limit and member."""
        return [
            (key, member) for key, leases in self.leases.items() for member, lease in leases.items() if lease[1] <= now
        ]


def kept_apart(codecs: Iterable[Codec]) -> tuple[list[str], list[str]]:
    """The keys of the limits of some layouts that have logs, and of those that have leases."""
    rules = [rule for codec in codecs for rule in codec.layout.rules]
    logs = dict.fromkeys(rule.key for rule in rules if rule.has_log)
    return list(logs), list(dict.fromkeys(rule.key for rule in rules if rule.is_permit))


def leases_in(reply: Sequence[bytes]) -> dict[bytes, Lease]:
    leases = {}
    for member, expires in zip(reply[::2], reply[1::2], strict=True):
        amount, ends = PAIR.unpack(member[16:])
        leases[member] = (int(amount), int(float(expires)), int(ends))
    return leases


def packed_log(state: State) -> bytes:
    log: Any = state[-1]
    return b"".join(PAIR.pack(log.time(index), log.total(index)) for index in range(len(log)))


def states_of(loaded: Loaded, part: Part, now: int) -> list[State]:
    """The states of a scope as a part's layout sees them."""
    if loaded.codec is None:
        return list(part.layout.start)
    if loaded.codec.layout is part.layout:
        return loaded.states
    states = part.layout.carried(loaded.codec.layout, loaded.states, now)
    for index, _ in part.leases:
        # Leases outlive a limit that was taken away and came back.
        states[index] = counted(states[index], loaded.living(part.layout.rules[index].key, now))
    return states


def living_of(loaded: Loaded, part: Part, states: list[State], now: int) -> list[State]:
    """The states without expired leases."""
    living = states.copy()
    for index, _ in part.leases:
        held, _, _, earliest = states[index]
        if held and earliest <= now:
            living[index] = counted(states[index], loaded.living(part.layout.rules[index].key, now))
    return living


def settle_loaded(loaded: Loaded, ask: Ask, *, change: int, now: int, taken_at: int) -> None:
    """Settle one limit of a claim in what was loaded."""
    codec, states = loaded.codec, loaded.states
    if codec is not None and codec.layout is not ask.part.layout:
        settle_under(codec.layout, states, ask.part, ask.rule.key, change=change, now=now, taken_at=taken_at)
    else:
        states[ask.index] = ask.rule.settled(states[ask.index], now, change, taken_at, is_credit=ask.part.is_credit)
    # Leases may outlive an evicted record, which then counts none of them.
    loaded.states = [tuple(value if isinstance(value, Log) else max(value, 0) for value in state) for state in states]


def full_at(codec: Codec, states: Sequence[State], now: int) -> int:
    """From when on the states cannot be told from unused ones; permits are lent for a lease."""
    moments = [
        now + rule.lease_us if rule.is_permit else rule.restored_at(state)
        for rule, state in zip(codec.layout.rules, states, strict=True)
    ]
    return max([now, *moments])
