"""One scope in one go, written out: a record read, changed and written by one function, as most claims want it.

What is not as usual is left to the general way: each function says so before it has written anything.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias, cast

from limits_app.core.claim import Claim
from limits_app.core.parts import Amounts, Permit
from limits_app.core.plan import Plan
from limits_app.core.unrolled import IN_TIME, TAKEN_AT, Record, Shape, flat, names, where_given_back, written_out
from limits_app.stores.process.leasing import LEASE
from limits_app.stores.process.places import HOT
from limits_app.stores.process.records import Records
from limits_app.stores.process.state_file import Txn

__all__ = ["OneScope", "Way"]

Charge: TypeAlias = Callable[[Txn, int, Claim], tuple[Record] | Literal[False] | None]
"""(txn, now, claim): the record with the amounts charged; False when one of them does not fit; None when there is no
record, another layout wrote it, or its hour is over."""

Settle: TypeAlias = Callable[[Txn, Claim, Amounts], Literal[True] | None]
"""(txn, claim, changes): True when all is given back; None when that takes more, or more was used than was taken."""

_FIND: Final = (
    "key = hot\n  stored = txn.get(key)\n"
    "  if stored is None: key, stored = find_cold(txn, scope)\n"
    "  if stored is None or len(stored) != size: return None"
)
_OWN: Final = "if name != own_name{0}: return None"
_PACK: Final = "try: packed = pack(own_name, {0})\n  except error: return None"
_PUT: Final = "txn.put(key, packed)"
_HOLDER: Final = "holder = identity() + claim.number.to_bytes(8)"
_LEND: Final = "txn.put(lease_key + holder, written(a{0}, now + lease_us, now + hold_us))"
_BOUND: Final = (
    "scope, hot, find_cold, size, unpack, pack, error, own_name, codec, "
    "identity, written, lease_us, hold_us, lease_key, "
)
_TAKE_BACK: Final = "if not txn.delete(lease_key + holder): return None"


@dataclass(frozen=True, slots=True)
class Way:
    """How the claims of a plan are charged and settled in one go, by the store of which `owner` is.

    `version` is that of the plan as the file has it, which has none before the first change; b"" where it is not known.
    """

    charge: Charge
    settle: Settle
    owner: OneScope | None
    version: bytes | None


_GENERAL: Final = Way(lambda txn, now, claim: None, lambda txn, claim, changes: None, None, b"")  # noqa: ARG005
"""Where only the general way will do."""


class OneScope:
    """Compiles the ways of plans about one scope, with no log and at most one permit in it.

    `identity` names the process.
    """

    def __init__(self, records: Records, identity: Callable[[], bytes]) -> None:
        self._records = records
        self._identity = identity

    def known(self, plan: Plan) -> Way:
        """How to go about a plan, as far as that is known."""
        way = plan.memo
        return way if isinstance(way, Way) and way.owner is self else _GENERAL

    def way(self, plan: Plan) -> Way:
        """Work out how to go about a plan, when it comes again, and its layout has been seen in the file.

        Of those that come only once there may be many, and their scopes are new.
        """
        if plan.memo is None:
            plan.memo = _GENERAL
            return _GENERAL
        part = plan.only
        codec = None if part is None else self._records.known(part.layout)
        if part is None or codec is None or codec.logs or len(plan.lent) > 1 or part.is_credit:
            return _GENERAL
        rules = part.layout.rules
        shape = Shape.of(rules, part.asked, counts=part.counts)
        [(place, permit)] = plan.lent or [(None, Permit(0, 0, b""))]
        charger, settler = _written_out(shape, tuple([len(rule.start) for rule in rules]), len(plan.asks), place)
        form = codec.form
        bound = (
            *(part.short_key, HOT + part.short_key, self._records.places.find_cold),
            *(form.size, form.unpack, form.pack, struct.error, codec.name, codec),
            *(self._identity, LEASE.pack, *permit),
        )
        charge, settle = charger(*bound, *shape.takes(rules)), settler(*bound, *shape.settles(rules))
        version = plan.version.to_bytes(8) if plan.version else None
        way = plan.memo = Way(cast("Charge", charge), cast("Settle", settle), self, version)
        return way


@lru_cache(maxsize=1024)
def _written_out(
    shape: Shape, widths: tuple[int, ...], amounts: int, permit: int | None
) -> tuple[Callable[..., object], Callable[..., object]]:
    """Both functions, for states of these numbers of integers; at `permit` (by place) stands what is lent."""
    own = [names(f"i{index}_{{}}", range(width)) for index, width in enumerate(widths)]
    numbers = "".join(own) + (f"{names('u{}', range(shape.width))}until, " if shape.counts else "")
    states = [f"({state})" for state in own]
    taking = shape.lines(shape.taking, refused="False", states=states)
    settling = shape.lines(shape.settling, states=states)
    head = [_FIND, f"[name, {numbers}] = unpack(stored)"]
    pack = _PACK.format(numbers)
    charge = written_out(
        bound=_BOUND + shape.around(shape.taking),
        arguments="txn, now, claim",
        lines=[
            *head,
            _OWN.format(" or now >= until" if shape.counts else ""),
            f"[{names('a{}', range(amounts))}] = claim.amounts",
            *flat([[*lines, f"[{own[index]}] = s{index}"] for index, _, lines in taking]),
            *_counted(shape, shape.asked),
            pack,
            _PUT,
            *([] if permit is None else [_HOLDER, _LEND.format(permit)]),
        ],
        result=f"({_record(shape, own)}codec), ",
    )
    settle = written_out(
        bound=_BOUND + shape.around(shape.settling),
        arguments="txn, claim, changes",
        lines=[
            TAKEN_AT,
            *head,
            _OWN.format(f" or not {IN_TIME}" if shape.counts else ""),
            f"[{names('a{}', range(amounts))}] = changes",
            *flat(
                [where_given_back(place, [*lines, f"[{own[index]}] = s{index}"]) for index, place, lines in settling]
            ),
            *_counted(shape, [(index, place) for index, place in shape.asked if index not in shape.permits]),
            pack,
            *([] if permit is None else [_HOLDER, _TAKE_BACK]),
            _PUT,
        ],
        result="True",
    )
    return charge, settle


def _counted(shape: Shape, asked: Iterable[tuple[int, int]]) -> list[str]:
    return [f"u{index} += a{place}" for index, place in asked] if shape.counts else []


def _record(shape: Shape, own: Sequence[str]) -> str:
    """The record as `Codec.decode` gives it, without the codec."""
    asked = dict(shape.asked)
    states = "".join(f"s{index}, " if index in asked else f"({state}), " for index, state in enumerate(own))
    return states + (f"{names('u{}', range(shape.width))}until, " if shape.counts else "")
