"""How state is written: a layout's name, until when the record lives, and the integers of all states.

Short, because a server keeps small records in few bytes: 7 bytes hold all that is exact as a Lua number.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise
from struct import Struct
from typing import Final, cast

from limits_app.core.algorithms import State
from limits_app.core.algorithms.log import EMPTY_LOG, Log
from limits_app.core.layout import Layout
from limits_app.core.unrolled import names, written_out
from limits_app.stores.codecs import LayoutCodec
from limits_app.stores.redis.moments import MOMENT

__all__ = ["NAME_LENGTH", "PAIR", "Codec", "log_of"]

NAME_LENGTH: Final = 6
PAIR: Final = Struct("<dd")
"""An entry of a log; and what a lease says of itself."""

_EXPIRES_LENGTH: Final = 4
_LAST_SECOND: Final = 2**32 - 1
_FIELDS: Final[Mapping[str, Sequence[int]]] = {
    "token_bucket": (7, 7),
    "leaky_bucket": (7, 7),
    "fixed_window": (7, 7),
    "gcra": (7, 7, 7),
    # What goes before the log, and where it stands: its first entry, how many there are, and how long it is kept.
    "sliding_window": (7, 7, 7, 7, 7, 2, 2, 4),
    "quota": (7, 7, 7),
    "permits": (6, 4, 7, 7),
    "blocked": (),
}
_LOG_PLACE: Final = 5
_OPENED_PLACE: Final = 2


class Codec(LayoutCodec):
    """Writes and reads the states of one layout."""

    __slots__ = ("_ends", "_fields", "_logs", "_shape", "format", "offsets", "read", "size")

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, NAME_LENGTH)
        fields = [_FIELDS[rule.twin[0]] for rule in layout.rules]
        self.offsets = list(accumulate(map(len, fields), initial=0))[:-1]
        """The number of the first integer of each limit."""
        self._logs = [rule.has_log for rule in layout.rules]
        self._fields = list(chain.from_iterable(fields))
        self._ends = list(accumulate(self._fields, initial=NAME_LENGTH + _EXPIRES_LENGTH))
        self.format = b"<c%dI%d%s" % (
            NAME_LENGTH,
            _EXPIRES_LENGTH,
            b"".join(b"I%d" % size for size in self._fields),
        )
        self.size = self._ends[-1]
        self._shape = tuple(map(tuple, fields)), tuple(self._logs)
        self.read = cast("Callable[[bytes, int], list[State]]", _reading(*self._shape))
        """`decode` where all logs are unknown."""

    def decode(self, record: bytes, at: int = 0, logs: Mapping[int, Log] | None = None) -> list[State]:
        """The states of a record that starts at `at`; `logs` by place, in so far as they are known."""
        states = self.read(record, at)
        for index, log in (logs or {}).items():
            states[index] = (*states[index][:-1], log)  # type: ignore[arg-type]  # `Rule` says so
        return states

    def reading_reply(self, start: int) -> Callable[[bytes], tuple[int, list[list[State]]]]:
        """`moment_of` and `read`, for replies whose only record starts there."""
        return cast("Callable[[bytes], tuple[int, list[list[State]]]]", _reading(*self._shape, start))

    def encode(self, states: Sequence[State], expires_us: int) -> bytes:
        """The record of the states, whose logs are written from their first entry on."""
        numbers = chain.from_iterable(
            (*state[:-1], 0, len(cast("Log", state[-1])), 0) if has_log else state
            for state, has_log in zip(states, self._logs, strict=True)
        )
        expires = min(expires_us // 1_000_000, _LAST_SECOND).to_bytes(_EXPIRES_LENGTH, "little")
        packed = [number.to_bytes(size, "little") for number, size in zip(numbers, self._fields, strict=True)]
        return b"".join([self.name, expires, *packed])

    def log(self, record: bytes, index: int, packed: bytes | None) -> Log:
        """The log that belongs to a record, from the string in which it stands."""
        place = self.offsets[index] + _LOG_PLACE
        head, entries = self._numbers(record, 0)[place : place + 2]
        return log_of(PAIR.iter_unpack((packed or b"")[head * PAIR.size : (head + entries) * PAIR.size]))

    def wrote_log(self, before: bytes, after: bytes) -> bool:
        """Whether a log was written between two records: with each entry that is closed, the next one is opened."""
        old, new = self._numbers(before, 0), self._numbers(after, 0)
        return any(
            new[offset + _OPENED_PLACE] != old[offset + _OPENED_PLACE] and new[offset + _LOG_PLACE + 1] > 0
            for offset, has_log in zip(self.offsets, self._logs, strict=True)
            if has_log
        )

    def expires_us(self, record: bytes) -> int:
        """Until when a record lives; 0 when it stands for none."""
        return 1_000_000 * int.from_bytes(record[NAME_LENGTH : NAME_LENGTH + _EXPIRES_LENGTH], "little")

    def _numbers(self, record: bytes, at: int) -> list[int]:
        return [
            int.from_bytes(record[at + end : at + end + size], "little")
            for end, size in zip(self._ends, self._fields, strict=False)
        ]


@lru_cache(maxsize=1024)
def _reading(
    fields: tuple[tuple[int, ...], ...], logs: tuple[bool, ...], start: int | None = None
) -> Callable[..., object]:
    """Read what `Codec.decode` does, where all logs are unknown, or a reply whose record has a `start`, written out."""
    cut = ["record = record[at:]"] if start is None else []
    sizes = accumulate(chain.from_iterable(fields), initial=(start or 0) + NAME_LENGTH + _EXPIRES_LENGTH)
    numbers = [(f"part_{place}", slice(*ends)) for place, ends in enumerate(pairwise(sizes))]
    left, states = iter(numbers), []
    for own, has_log in zip(fields, logs, strict=True):
        read = [f"number(record[{name}], 'little')" for name, _ in islice(left, len(own))]
        states.append(names("{}", [*read[:_LOG_PLACE], "no_log"] if has_log else read))
    result = names("({})", states)
    bound = names("{}", ["moment", "number", "no_log", *[name for name, _ in numbers]])
    if start is None:
        bind = written_out(bound=bound, arguments="record, at", lines=cut, result=f"[{result}]")
    else:  # to cut at what is always the same takes half the steps
        bind = written_out(bound=bound, arguments="record", lines=cut, result=f"int(moment(record)[0]), [[{result}]]")
    parts = [part for _, part in numbers]
    return cast("Callable[..., object]", bind(MOMENT.unpack_from, int.from_bytes, EMPTY_LOG, *parts))


def log_of(entries: Iterable[tuple[float, float]]) -> Log:
    """A log of pairs of time and running total."""
    pairs = [(int(time), int(total)) for time, total in entries]
    return Log(array("q", [time for time, _ in pairs]), array("q", [total for _, total in pairs]))
