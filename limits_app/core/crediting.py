"""Credit in one scope: what was used becomes less, though no claim gives it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from limits_app.core.algorithms import Rule
from limits_app.core.unrolled import Record, Settle

__all__ = ["crediter"]


def crediter(rules: Sequence[Rule], asked: Mapping[int, int]) -> Settle:
    """Credit one scope as `settler` settles it; what was counted stays, since it was admitted."""

    def credited(record: Record, now: int, changes: Sequence[int], _taken_at: int) -> Record:
        after = list(record)
        for index, place in asked.items():
            after[index] = rules[index].credit(after[index], now, -changes[place])
        return tuple(after)

    return credited
