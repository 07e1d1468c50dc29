"""States: how scripts store the state of a limit, and how it is read from their replies. No input or output here.

The hash of a scope has a field for each limit. Its value is the second until which the hash is kept, the tag of the
rule that wrote it, and the integers of the state. The tag has what is needed to read the state, so that a script
carries the use over when the definition of the limit has changed. Logs of sliding windows are strings, and leases of
permits are sorted sets, under separate keys; `prelude.lua` names the other fields.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct, calcsize, pack
from typing import Any, Final, NamedTuple

from limits_app.engine import EMPTY_LOG, NEVER_US, Amounts, Claim, Log, PlannedLimit, Rule, State, compile_rule
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import QuotaLimit

TIME: Final = Struct("<d")
_KEPT_UNTIL_BYTES: Final = 4


class LuaAlgorithm(NamedTuple):
    """The Lua implementation of an algorithm: its letter in scripts and tags, and its files, without `.lua`.

    Its tag has what reads a state when the limit has changed: how much it counts for 1 of an amount (1, or millionths
    of a currency), where it `has_parts` those of a unit, and the first parameters of `Rule.lua` after the capacity, in
    integers of these sizes. Permits have none of it. `tags` in the file says the same.
    """

    letter: bytes
    files: tuple[str, ...]
    tag_sizes: tuple[int, ...] = ()
    has_parts: bool = False


LUA_ALGORITHMS: Final = {
    "token_bucket": LuaAlgorithm(b"b", ("buckets",), (3, 7, 7, 6, 6), has_parts=True),
    "leaky_bucket": LuaAlgorithm(b"l", ("buckets",), (3, 7, 7, 6, 6), has_parts=True),
    "fixed_window": LuaAlgorithm(b"f", ("fixed_window",), (3, 6)),
    "sliding_window": LuaAlgorithm(b"s", ("own_keys", "sliding_window"), (3, 6, 6)),
    "quota": LuaAlgorithm(b"q", ("quota",), (3, 6)),
    "permits": LuaAlgorithm(b"p", ("own_keys", "permits")),
    "counted": LuaAlgorithm(b"u", ("counted",), (3,)),
}
"""The Lua implementations by the name in `Rule.lua`; scripts that read states of every rule have all of their files."""
_LOG_ENTRY: Final = Struct("<dd")
_LOG_PLACE: Final = 5
"""Where the log is in the state of a sliding window."""
_START_SIGN: Final = ":"
"""Before the start of periods in the name of a calendar."""
_BOUNDARIES: Final = 2
"""How many calendar boundaries before a time, and how many after it, scripts receive."""


def field_of(rule: Rule) -> bytes:
    """Return the field of a limit; that of a counted unit is another one, since that of its key keeps earlier use."""
    return (b"+" if rule.is_counted else b"") + rule.key.encode()


def tag_of_rule(rule: Rule) -> bytes:
    """Return what scripts write before a state of a rule; `tags` in carry.lua say how it is packed."""
    algorithm = LUA_ALGORITHMS.get(rule.lua[0])
    if algorithm is None:
        raise LookupError(f"algorithm {rule.lua[0]!r} has no Lua implementation: add it to LUA_ALGORITHMS")
    letter, _, sizes, has_parts = algorithm
    _, *parameters = numbers_of(rule)
    per_amount = rule.parts_per_amount // rule.parts_per_unit
    numbers = [per_amount, rule.parts_per_unit, *parameters] if has_parts else [per_amount, *parameters]
    tag = letter + b"".join([number.to_bytes(size, "little") for number, size in zip(numbers, sizes, strict=False)])
    if isinstance(rule.limit, QuotaLimit):
        calendar = calendar_of(rule)
        tag += bytes([len(calendar)]) + calendar
    return tag


def value_format(rule: Rule) -> tuple[bytes, int]:
    """Return how scripts pack the value of a field, and its size."""
    length, letters = len(tag_of_rule(rule)), rule.lua_format
    numbers = "".join([f"I{calcsize(f'<{letter}')}" for letter in letters])
    return f"<I{_KEPT_UNTIL_BYTES}c{length}{numbers}".encode(), _KEPT_UNTIL_BYTES + length + calcsize(f"<{letters}")


def numbers_of(rule: Rule) -> list[int]:
    """Return the capacity and the parameters of a rule, as scripts receive them."""
    words: Sequence[Any] = rule.lua
    return list(words[1:])


def calendar_of(rule: Rule) -> bytes:
    """Return the name of the calendar of a quota; empty for a session."""
    quota = rule.limit
    if not isinstance(quota, QuotaLimit) or quota.period is None:
        return b""
    starts = "" if quota.starts_with_client else quota.starts
    return f"{quota.period}@{quota.time_zone}{starts and _START_SIGN}{starts}".encode()


def boundaries_of(calendar: bytes, now: int) -> bytes:
    """Return the boundaries of a calendar around a time, for scripts; those of UTC for an unknown time zone."""
    period, _, zone_and_start = calendar.decode().partition("@")
    zone, _, starts = zone_and_start.partition(_START_SIGN)
    try:
        rule = compile_rule(QuotaLimit("calendar", 1, period, zone, starts=starts), 0)
    except InvalidLimit:
        rule = compile_rule(QuotaLimit("calendar", 1, period, "UTC", starts=starts), 0)
    return pack("<4d", *rule.boundaries(now, _BOUNDARIES))


class StateReader:
    """Reads the states of limits from the replies of scripts, which have their values one after the other."""

    def __init__(self, limits: Sequence[PlannedLimit]) -> None:
        rules = [limit.rule for limit in limits]
        formats = [rule.lua_format for rule in rules]
        heads = [_KEPT_UNTIL_BYTES + len(tag_of_rule(rule)) for rule in rules]
        self._struct = Struct(
            "<" + "".join([f"{head}x{letters}" for head, letters in zip(heads, formats, strict=True)])
        )
        self._size = self._struct.size
        self._spans = list(pairwise(accumulate(map(len, formats), initial=0)))
        self._logs = [index for index, rule in enumerate(rules) if rule.has_log]

    def read(self, reply: bytes, at: int, *, is_rejected: bool) -> tuple[list[State], int]:
        """Return the states that begin at `at` in a reply, and where they end.

        After those of a rejection follows an entry of each log.
        """
        numbers = self._struct.unpack_from(reply, at)
        states: list[State] = [numbers[start:end] for start, end in self._spans]
        at += self._size
        for index in self._logs:
            log = EMPTY_LOG
            if is_rejected:
                time, total = _LOG_ENTRY.unpack_from(reply, at)
                at += _LOG_ENTRY.size
                if time:
                    log = Log(array("q", [int(time)]), array("q", [int(total)]))
            states[index] = (*states[index][:_LOG_PLACE], log)
        return states, at


def permits_and_debt(claim: Claim, changes: Amounts) -> Amounts:
    """Return the changes of a claim without refunds: what is settled although it may be settled already."""
    is_permit = [limit.is_permit for limit in claim.shape.limits]
    return [change if permit else max(change, 0) for permit, change in zip(is_permit, changes, strict=True)]


def lease_member(holder: bytes, claim: Claim, limit: PlannedLimit) -> bytes:
    """Return the member of a claim in the leases of a limit; it stays the same when the longest hold begins again."""
    ends = min(claim.decided_at + limit.rule.hold_us, NEVER_US)
    return holder + pack("<dd", claim.amounts[limit.position], ends)
