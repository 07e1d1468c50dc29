"""The hot paths of a plan, written out: going round a loop costs as much as the arithmetic of a limit.

Each function here writes the source of one function for a shape (how many limits, which of them are asked),
compiles it once in the process, and binds it to the rules and keys of one plan.
The source contains nothing but numbers of its own: no key, no amount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar, cast

from limits_app.core.algorithms import Rule
from limits_app.core.amounts import Amount
from limits_app.core.counting import HOUR_US
from limits_app.core.inlining import Step, step_of

__all__ = [
    "IN_TIME",
    "TAKEN_AT",
    "Figure",
    "Read",
    "Record",
    "Report",
    "Settle",
    "Shape",
    "Take",
    "flat",
    "names",
    "reader",
    "reporter",
    "settler",
    "taker",
    "where_given_back",
    "written_out",
]

T = TypeVar("T")

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


_ADD: Final = "u{0} + a{1}"
_ADD_DATED: Final = "u{0} + a{1} if in_time else u{0}"
TAKEN_AT: Final = "now = taken_at = claim.decided_at"
IN_TIME: Final = f"0 < until - taken_at <= {HOUR_US}"
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
    shape = Shape.of(rules, asked, counts=counts)
    return cast("Take", _taking(shape, amounts)(*shape.takes(rules)))


def settler(rules: Sequence[Rule], asked: Mapping[int, int], amounts: int, *, counts: bool = False) -> Settle:
    """Settle one scope, in the same way; what changes is counted in the hour that is open, if it was taken then.

    Permits that are given back have been used all the same.
    """
    shape = Shape.of(rules, asked, counts=counts)
    return cast("Settle", _settling(shape, amounts)(*shape.settles(rules)))


def reader(named: Sequence[Figure], implicit: Sequence[int]) -> Read:
    """Read the amounts of a request; those that it does not name are `implicit`."""
    bind = _reading(tuple([figure.place for figure in named]), len(implicit))
    return cast("Read", bind(*_figures(named), *implicit))


def reporter(reported: Sequence[Figure], permits: Iterable[int], amounts: int) -> Report:
    """Read a report with the keys of `reported` and no others; the amounts of `permits` (by place) are given back."""
    keys = len({figure.key for figure in reported})
    bind = _reporting(tuple([figure.place for figure in reported]), tuple(permits), amounts, keys)
    return cast("Report", bind(*_figures(reported)))


class Shape(NamedTuple):
    """What the source of a function depends on: how many limits a scope has, which take which of the amounts and in
    what steps, which of them are permits, and whether they are counted.
    """

    width: int
    asked: tuple[tuple[int, int], ...]
    taking: tuple[Step, ...]
    settling: tuple[Step, ...]
    permits: frozenset[int]
    counts: bool

    @classmethod
    def of(cls, rules: Sequence[Rule], asked: Mapping[int, int], *, counts: bool) -> Shape:
        """The shape of a scope with these rules."""
        own = [rules[index] for index in asked]
        return cls(
            width=len(rules),
            asked=tuple(asked.items()),
            taking=tuple([step_of(rule.take) for rule in own]),
            settling=tuple([step_of(_settle_of(rule), 4 if rule.settle_dated else 3) for rule in own]),
            permits=frozenset([index for index in asked if rules[index].is_permit]),
            counts=counts,
        )

    def takes(self, rules: Sequence[Rule]) -> list[object]:
        """What the lines that charge have around them."""
        steps = zip(self.asked, self.taking, strict=True)
        return flat([step.values(rules[index].take) for (index, _), step in steps])

    def settles(self, rules: Sequence[Rule]) -> list[object]:
        """What the lines that settle have around them."""
        steps = zip(self.asked, self.settling, strict=True)
        return flat([step.values(_settle_of(rules[index])) for (index, _), step in steps])

    def around(self, steps: Iterable[Step], number: int = 0) -> str:
        """The names of what is around the lines of `taking` or `settling`; `number` tells several scopes apart."""
        own = zip(self.asked, steps, strict=True)
        return names("{}", flat([step.names(f"{number}_{index}") for (index, _), step in own]))

    def lines(
        self, steps: Iterable[Step], number: int = 0, *, refused: str = "None", states: Sequence[str] = ()
    ) -> Iterator[tuple[int, int, list[str]]]:
        """For each limit that is asked: where it and its amount stand, and lines that take its step.

        They make s0, s1 and so on of `states`, which are the same where nothing else is said.
        """
        for (index, place), step in zip(self.asked, steps, strict=True):
            state = states[index] if states else f"s{index}"
            told = step.lines(f"{number}_{index}", state=state, amount=f"a{place}", result=f"s{index}", refused=refused)
            yield index, place, told

    def record(self) -> str:
        """The names of what stands in a record."""
        counted = f"{names('u{}', range(self.width))}until, " if self.counts else ""
        return f"{names('s{}', range(self.width))}{counted}tail, "

    def charged(self, refused: str, number: int = 0) -> tuple[list[str], str]:
        """Lines that charge, and what the record is then."""
        lines = flat([lines for _, _, lines in self.lines(self.taking, number, refused=refused)])
        return lines, self._counted({index: _ADD.format(index, place) for index, place in self.asked})

    def settled(
        self, add: str, number: int = 0, *, where: Callable[[int, Iterable[str]], list[str]]
    ) -> tuple[list[str], str]:
        """Lines that settle, and what the record is then; `add` says how counts change, and `where` what is settled."""
        lines = flat([where(place, lines) for _, place, lines in self.lines(self.settling, number)])
        return lines, self._counted({i: add.format(i, place) for i, place in self.asked if i not in self.permits})

    def _counted(self, added: Mapping[int, str]) -> str:
        counts = names("{}", [added.get(index, f"u{index}") for index in range(self.width)])
        return f"{names('s{}', range(self.width))}{f'{counts}until, ' if self.counts else ''}tail, "


def _settle_of(rule: Rule) -> Callable[..., object]:
    return rule.settle_dated or rule.settle


def where_changed(place: int, lines: Iterable[str]) -> list[str]:
    """Lines for an amount that is not zero."""
    return [f"if a{place}:", *[f" {line}" for line in lines]]


def where_given_back(place: int, lines: Iterable[str]) -> list[str]:
    """Lines for an amount that is given back, which can be done as of when it was taken; for more, None is returned."""
    return where_changed(place, [f"if a{place} > 0: return None", *lines])


@lru_cache(maxsize=1024)
def _taking(shape: Shape, amounts: int) -> Callable[..., object]:
    lines, result = shape.charged("None")
    head = [f"{shape.record()}= record", _unpacked([place for _, place in shape.asked], amounts)]
    return written_out(
        bound=shape.around(shape.taking), arguments="record, now, amounts", lines=[*head, *lines], result=result
    )


@lru_cache(maxsize=1024)
def _settling(shape: Shape, amounts: int) -> Callable[..., object]:
    lines, result = shape.settled(_ADD_DATED, where=where_changed)
    head = [f"{shape.record()}= record", _unpacked([place for _, place in shape.asked], amounts)]
    return written_out(
        bound=shape.around(shape.settling),
        arguments="record, now, amounts, taken_at",
        lines=[*head, *lines, f"in_time = {IN_TIME}"] if shape.counts else [*head, *lines],
        result=result,
    )


def _unpacked(places: Sequence[int], amounts: int) -> str:
    """Read the amounts at these places: all of them at once, or one by one where some are for others."""
    if len(places) == amounts:
        return _UNPACK.format(names("a{}", range(amounts)))
    return "; ".join([f"a{place} = amounts[{place}]" for place in places])


@lru_cache(maxsize=1024)
def _reading(named: tuple[int, ...], amounts: int) -> Callable[..., object]:
    lines = []
    results = [f"implicit_{place}" for place in range(amounts)]
    for place in named:
        lines += [f"a{place} = requested[key_{place}]", _CHECK.format(f"a{place}", place)]
        results[place] = f"a{place} * scale_{place}"
    return written_out(
        bound=names(_FIGURE, named) + names("implicit_{}", range(amounts)),
        arguments="requested",
        lines=lines,
        result=names("{}", results),
    )


@lru_cache(maxsize=1024)
def _reporting(reported: tuple[int, ...], permits: tuple[int, ...], amounts: int, keys: int) -> Callable[..., object]:
    lines = [f"if len(usage) != {keys}: return None", _UNPACK.format(names("a{}", range(amounts)))]
    results = ["0"] * amounts
    for place in permits:
        results[place] = f"-a{place}"
    for place in reported:
        lines += [f"u{place} = usage.get(key_{place})", _CHECK.format(f"u{place}", place)]
        lines += [f"u{place} = u{place} * scale_{place} - a{place}", f"if u{place} > 0: return None"]
        results[place] = f"u{place}"
    return written_out(
        bound=names(_FIGURE, reported), arguments="usage, amounts", lines=lines, result=names("{}", results)
    )


def _figures(figures: Iterable[Figure]) -> list[object]:
    return flat([(key, scale, most) for _, key, scale, most in figures])


def flat(rows: Iterable[Iterable[T]]) -> list[T]:
    return [value for row in rows for value in row]


def names(pattern: str, things: Iterable[object]) -> str:
    return "".join(f"{pattern.format(thing)}, " for thing in things)


def written_out(
    *, bound: str, arguments: str, lines: Iterable[str], result: str, unless: Iterable[type[Exception]] = ()
) -> Callable[..., object]:
    """Compile a function of `arguments`; what is returned makes it from what is `bound`.

    It gives None where one of the errors `unless` is raised. No part of the source may come from outside.
    """
    body = "".join(f"  {line}\n" for line in (*lines, f"return ({result})"))
    errors = names("{0.__name__}", unless)
    if errors:
        indented = body.replace("\n ", "\n  ")
        body = f"  try:\n {indented}  except ({errors}): return None\n"
    source = f"def bind({bound}):\n def function({arguments}):\n{body} return function\n"
    made: dict[str, Callable[..., Callable[..., object]]] = {}
    exec(source, made)  # noqa: S102 - of the patterns and numbers above
    return made["bind"]
