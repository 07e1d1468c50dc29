"""All scopes of a plan in one go, written out: for a store that has records and loans in dictionaries of this process.

What is not as usual is left to the general way: each function says so before it has changed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, cast

from limits_app.core.algorithms import Rule
from limits_app.core.unrolled import IN_TIME, TAKEN_AT, Record, Shape, flat, names, where_given_back, written_out

if TYPE_CHECKING:
    from limits_app.core.claim import Claim
    from limits_app.core.parts import Amounts, Part

__all__ = ["Asked", "Loan", "Loans", "SettleAll", "TakeAll", "settler_of_all", "taker_of_all"]

Loan: TypeAlias = "tuple[Part, Amounts, int, int]"
"""A part of a claim's plan, the claim's amounts without permits that ran out, since when, and when renewed last."""

Loans: TypeAlias = dict[str, dict[int, Loan]]
"""Loans by scope and number of the claim: one for all permits that a claim has in a scope."""

TakeAll: TypeAlias = "Callable[[dict[str, Record], Loans, int, Claim], tuple[Record, ...] | Literal[False] | None]"
"""(records, loans, now, claim): the records with the amounts charged, which stand among the others then, and so do the
loans of its permits; False when an amount does not fit; None when a record or a place for loans is not there, a record
has another note, or its hour is over."""

SettleAll: TypeAlias = "Callable[[dict[str, Record], Loans, Claim, Amounts], bool | None]"
"""(records, loans, claim, changes): True when all is given back and the loans are ended; None when that would take
more, or more was used than was taken, and nothing was done."""

# Where something is not there it raises, since to ask first costs as much as the arithmetic of a limit.
_FIND: Final = "[{1}] = records[key_{0}]\n  if tail is not note_{0}{2}: return None"
_FIND_PLACE: Final = "l{0} = loans[key_{0}]"
_NUMBER: Final = "number = claim.number"
_LEND: Final = "l{0}[number] = part_{0}, amounts, now, now"
_FIND_LOAN: Final = "l{0} = loans[key_{0}]\n  if l{0}[number][1] is not claim.amounts: return None"
_END_LOAN: Final = "del l{0}[number]"


class Asked(NamedTuple):
    """One scope of a plan: its key, what a store notes in a record whose states stand as `rules` do, and which of
    them (by index) takes which of the amounts (by place); `lending` is the part of the plan where it has permits.
    """

    key: str
    note: object
    rules: Sequence[Rule]
    asked: Mapping[int, int]
    counts: bool
    lending: Part | None

    @property
    def shape(self) -> Shape:
        """What the source depends on."""
        return Shape.of(self.rules, self.asked, counts=self.counts)


def taker_of_all(scopes: Sequence[Asked], amounts: int) -> TakeAll:
    """Charge all scopes of a plan; lend its permits."""
    shapes = tuple([one.shape for one in scopes])
    steps = [shape.takes(one.rules) for shape, one in zip(shapes, scopes, strict=True)]
    return cast("TakeAll", _taking_all(shapes, amounts)(*_bound(scopes, steps)))


def settler_of_all(scopes: Sequence[Asked], amounts: int) -> SettleAll:
    """Give back what was taken from all scopes of a plan, permits too."""
    shapes = tuple([one.shape for one in scopes])
    steps = [shape.settles(one.rules) for shape, one in zip(shapes, scopes, strict=True)]
    return cast("SettleAll", _settling_all(shapes, amounts)(*_bound(scopes, steps)))


def _bound(scopes: Sequence[Asked], steps: Iterable[Iterable[object]]) -> list[object]:
    return flat([(one.key, one.note, one.lending, *own) for one, own in zip(scopes, steps, strict=True)])


@lru_cache(maxsize=1024)
def _taking_all(shapes: tuple[Shape, ...], amounts: int) -> Callable[..., object]:
    lines = ["amounts = claim.amounts", f"[{names('a{}', range(amounts))}] = amounts"]
    for number, shape in enumerate(shapes):
        steps, result = shape.charged("False", number)
        over = " or now >= until" if shape.counts else ""
        place = [_FIND_PLACE.format(number)] if shape.permits else []
        lines += [_FIND.format(number, shape.record(), over), *place, *steps, f"r{number} = ({result})"]
    lines += _for_permits(shapes, _LEND, _NUMBER)
    around = [shape.around(shape.taking, number) for number, shape in enumerate(shapes)]
    return _over_all(around, "records, loans, now, claim", lines, names("r{}", range(len(shapes))))


@lru_cache(maxsize=1024)
def _settling_all(shapes: tuple[Shape, ...], amounts: int) -> Callable[..., object]:
    lines = [f"[{names('a{}', range(amounts))}] = changes", TAKEN_AT]
    lines += _for_permits(shapes, _FIND_LOAN, _NUMBER)
    for number, shape in enumerate(shapes):
        steps, result = shape.settled("u{0} + a{1}", number, where=where_given_back)
        late = f" or not {IN_TIME}" if shape.counts else ""
        lines += [_FIND.format(number, shape.record(), late), *steps, f"r{number} = ({result})"]
    lines += _for_permits(shapes, _END_LOAN)
    around = [shape.around(shape.settling, number) for number, shape in enumerate(shapes)]
    return _over_all(around, "records, loans, claim, changes", lines, "True")


def _for_permits(shapes: Sequence[Shape], line: str, before: str = "") -> list[str]:
    """A line for each scope that has permits, and one before them."""
    lines = [line.format(number) for number, shape in enumerate(shapes) if shape.permits]
    return [before, *lines] if lines and before else lines


def _over_all(around: Sequence[str], arguments: str, lines: list[str], result: str) -> Callable[..., object]:
    bound = "".join([f"key_{i}, note_{i}, part_{i}, {own}" for i, own in enumerate(around)])
    kept = [f"records[key_{number}] = r{number}" for number in range(len(around))]
    lines = [*lines, *kept]
    return written_out(bound=bound, arguments=arguments, lines=lines, result=result, unless=(KeyError, ValueError))
