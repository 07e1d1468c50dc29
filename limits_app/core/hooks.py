"""What a surrounding program may plug into the engine; `apps` does it for Django."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from limits_app.core.claim import Claim
    from limits_app.core.store import Store

__all__ = ["HOOKS", "Hooks"]


@dataclass(slots=True)
class Hooks:
    """Callables that the engine asks or tells."""

    unknown_keys_raise: Callable[[], bool] = lambda: False
    """Whether a requested key that the set does not have is an error instead of a warning."""
    process_store: Callable[[], Store | None] = lambda: None
    """The store that limit sets of mode `process` use; None for the default one."""
    shared_store: Callable[[], Store | None] = lambda: None
    """The store that limit sets of modes `celery`, `distributed` and `ray` use; None for the default one."""
    lease_lost: list[Callable[[Claim], None]] = field(default_factory=list)
    """Told about each claim whose permits went to others while its holder lived."""


HOOKS: Final = Hooks()
