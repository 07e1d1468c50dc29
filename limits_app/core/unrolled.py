"""The hot paths of a plan, written out: going round a loop costs as much as the arithmetic of a limit.

Each function here writes the source of one function for a shape (how many limits, which of them are asked),
compiles it once in the process, and binds it to the rules and keys of one plan.
The source contains nothing but numbers of its own: no key, no amount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from limits_app.core.algorithms import Rule
from limits_app.core.amounts import Amount
from limits_app.core.counting import HOUR_US

__all__ = [
    "Figure",
    "Read",
    "Record",
    "Report",
    "Settle",
    "Take",
    "reader",
    "reporter",
    "settler",
    "taker",
    "written_out",
]

Record = Sequence[Any]
"""The states of one scope in the order of its layout, and last what the store notes about it.

Between them, where the layout counts, is how much was admitted of each limit, and until when it counts as one hour.
"""

Take = Callable[[Record, int, Sequence[int]], Record | None]
"""(record, now, amounts): the record with the amounts charged, or None when one of them does not fit now."""

Settle = Callable[[Record, int, Sequence[int], int], Record]
"""(record, now, changes, taken_at): the record with the changes settled of what was taken then."""

Read = Callable[[Mapping[str, Amount]], tuple[int, ...] | None]
"""(requested): the amounts in parts, or None when one of them is not an integer that fits."""

Report = Callable[[Mapping[str, Amount], Sequence[int]], tuple[int, ...] | None]
"""(usage, amounts): what is to be settled, or None when that is not just what must be reported, within its amount."""


_TAKE: Final = "s{0} = step_{0}(s{0}, now, a{1})\n  if s{0} is None: return None"
_SETTLE: Final = "if a{1}: s{0} = step_{0}(s{0}, now, a{1})"
_SETTLE_DATED: Final = "if a{1}: s{0} = step_{0}(s{0}, now, a{1}, taken_at)"
_ADD: Final = "u{0} + a{1}"
_ADD_DATED: Final = "u{0} + a{1} if in_time else u{0}"
_IN_TIME: Final = f"in_time = 0 < until - taken_at <= {HOUR_US}"
_UNPACK: Final = "[{0}] = amounts"
_FIGURE: Final = "key_{0}, scale_{0}, most_{0}"
_CHECK: Final = "if {0}.__class__ is not int or not 0 <= {0} <= most_{1}: return None"


class Figure(NamedTuple):
    """A number that callers give: for which amount (by place), under which key, of how many parts to a unit,
    and how many units at most.
    """

    place: int
    key: str
    scale: int
    most: int


def taker(rules: Sequence[Rule], asked: Mapping[int, int], amounts: int, *, counts: bool = False) -> Take:
    """Charge one scope; `asked` says which of its rules (by index) takes which of the `amounts` (by place).

    Where the layout `counts`, what is charged is counted too.
    """
    steps = [(_TAKE, index, place) for index, place in asked.items()]
    added = {index: _ADD.format(index, place) for index, place in asked.items()} if counts else None
    bind = _stepping("record, now, amounts", len(rules), tuple(steps), amounts, _counting(len(rules), added))
    return cast("Take", bind(*[rules[index].take for index in asked]))


def settler(rules: Sequence[Rule], asked: Mapping[int, int], amounts: int, *, counts: bool = False) -> Settle:
    """Settle one scope, in the same way; what changes is counted in the hour that is open, if it was taken then.

    Permits that are given back have been used all the same.
    """
    settles = {index: rules[index].settle_dated or rules[index].settle for index in asked}
    steps = [
        (_SETTLE if rules[index].settle_dated is None else _SETTLE_DATED, index, place)
        for index, place in asked.items()
    ]
    settled = {index: place for index, place in asked.items() if not rules[index].is_permit}
    added = {index: _ADD_DATED.format(index, place) for index, place in settled.items()} if counts else None
    counting = _counting(len(rules), added, dated=True)
    bind = _stepping("record, now, amounts, taken_at", len(rules), tuple(steps), amounts, counting)
    return cast("Settle", bind(*settles.values()))


def reader(named: Sequence[Figure], implicit: Sequence[int]) -> Read:
    """Read the amounts of a request; those that it does not name are `implicit`."""
    bind = _reading(tuple([figure.place for figure in named]), len(implicit))
    return cast("Read", bind(*_flat(named), *implicit))


def reporter(reported: Sequence[Figure], permits: Iterable[int], amounts: int) -> Report:
    """Read a report with the keys of `reported` and no others; the amounts of `permits` (by place) are given back."""
    keys = len({figure.key for figure in reported})
    bind = _reporting(tuple([figure.place for figure in reported]), tuple(permits), amounts, keys)
    return cast("Report", bind(*_flat(reported)))


class _Counting(NamedTuple):
    """What is read of a record besides its states, what becomes of it, and the lines that it takes."""

    read: str = ""
    result: str = ""
    lines: tuple[str, ...] = ()


def _counting(width: int, added: Mapping[int, str] | None, *, dated: bool = False) -> _Counting:
    if added is None:
        return _Counting()
    counts = _names("{}", [added.get(index, f"u{index}") for index in range(width)])
    return _Counting(f"{_names('u{}', range(width))}until, ", f"{counts}until, ", (_IN_TIME,) if dated else ())


@lru_cache(maxsize=1024)
def _stepping(  # noqa: PLR0917 - hashed as they stand
    arguments: str, width: int, steps: tuple[tuple[str, int, int], ...], amounts: int, counting: _Counting
) -> Callable[..., object]:
    states = _names("s{}", range(width))
    return written_out(
        bound=_names("step_{}", [index for _, index, _ in steps]),
        arguments=arguments,
        lines=[f"{states}{counting.read}tail, = record", _unpacked([place for _, _, place in steps], amounts)]
        + [step.format(index, place) for step, index, place in steps]
        + [*counting.lines],
        result=f"{states}{counting.result}tail,",
    )


def _unpacked(places: Sequence[int], amounts: int) -> str:
    """Read the amounts at these places: all of them at once, or one by one where some are for others."""
    if len(places) == amounts:
        return _UNPACK.format(_names("a{}", range(amounts)))
    return "; ".join([f"a{place} = amounts[{place}]" for place in places])


@lru_cache(maxsize=1024)
def _reading(named: tuple[int, ...], amounts: int) -> Callable[..., object]:
    lines = []
    results = [f"implicit_{place}" for place in range(amounts)]
    for place in named:
        lines += [f"a{place} = requested[key_{place}]", _CHECK.format(f"a{place}", place)]
        results[place] = f"a{place} * scale_{place}"
    return written_out(
        bound=_names(_FIGURE, named) + _names("implicit_{}", range(amounts)),
        arguments="requested",
        lines=lines,
        result=_names("{}", results),
    )


@lru_cache(maxsize=1024)
def _reporting(reported: tuple[int, ...], permits: tuple[int, ...], amounts: int, keys: int) -> Callable[..., object]:
    lines = [f"if len(usage) != {keys}: return None", _UNPACK.format(_names("a{}", range(amounts)))]
    results = ["0"] * amounts
    for place in permits:
        results[place] = f"-a{place}"
    for place in reported:
        lines += [f"u{place} = usage.get(key_{place})", _CHECK.format(f"u{place}", place)]
        lines += [f"u{place} = u{place} * scale_{place} - a{place}", f"if u{place} > 0: return None"]
        results[place] = f"u{place}"
    return written_out(
        bound=_names(_FIGURE, reported), arguments="usage, amounts", lines=lines, result=_names("{}", results)
    )


def _flat(figures: Iterable[Figure]) -> list[object]:
    return [value for _, key, scale, most in figures for value in (key, scale, most)]


def _names(pattern: str, things: Iterable[object]) -> str:
    return "".join(f"{pattern.format(thing)}, " for thing in things)


def written_out(*, bound: str, arguments: str, lines: Iterable[str], result: str) -> Callable[..., object]:
    """Compile a function of `arguments`; what is returned makes it from what is `bound`.

    No part of the source may come from outside.
    """
    body = "".join(f"  {line}\n" for line in lines)
    source = f"def bind({bound}):\n def function({arguments}):\n{body}  return ({result})\n return function\n"
    made: dict[str, Callable[..., Callable[..., object]]] = {}
    exec(source, made)  # noqa: S102 - of the patterns and numbers above
    return made["bind"]
