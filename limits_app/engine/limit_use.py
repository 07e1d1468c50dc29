"""What a request took of one limit, and reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from limits_app.engine.limits import AnyLimit
from limits_app.engine.outcome import OutcomeAmount


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The amounts of one limit that were requested and used (None: not reported)."""

    requested: OutcomeAmount
    used: OutcomeAmount | None
    limit: AnyLimit | None = field(default=None, compare=False, repr=False)
    """The definition of the limit."""
