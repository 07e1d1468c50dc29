"""What a surrounding program may plug into the engine; `apps` does it for Django."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from limits_app.core.claim import Claim

__all__ = ["HOOKS", "Hooks"]


@dataclass(slots=True)
class Hooks:
    """Callables that the engine asks or tells."""

    unknown_keys_raise: Callable[[], bool] = lambda: False
    """Whether a requested key that the set does not have is an error instead of a warning."""
    state_dir: Callable[[], Path | None] = lambda: None
    """The directory for the state of the process store; None for the default."""
    lease_lost: list[Callable[[Claim], None]] = field(default_factory=list)
    """Told about each claim whose permits went to others while its holder lived."""


HOOKS: Final = Hooks()
