"""Which limits policies silently free, worked out for all of them at once instead of one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from limits_app.models import Enforcement, PolicyEffect
from limits_app.services.dropped import Broader, Ruling
from limits_app.services.limits_file.checking import noted
from limits_app.services.limits_file.shape import LIMITS, Entry

__all__ = ["Dropped", "DroppedLimits"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A key that a policy does not limit though broader ones do, which it replaces: the first of them, and how many."""

    key: str
    policy: str
    level: str
    levels: int = 1

    def __str__(self) -> str:
        others = f" and {self.levels - 1} more" if self.levels > 1 else ""
        return f"{self.policy} drops {self.key!r} of {self.level}{others}: limit it too, or let it extend"


class DroppedLimits:
    """Says of policies which limits they drop; the rule is that of `services.dropped`."""

    def __init__(self, policies: Iterable[Entry]) -> None:
        self._broader = Broader(map(_ruling, policies), datetime.now(UTC))

    def of(self, policy: Entry) -> Iterator[Dropped]:
        """The keys that the replaced policies limit and this one does not."""
        for key, levels in self._broader.dropped_by(_ruling(policy)):
            yield Dropped(key, policy.label, levels[0].label, len(levels))


def _ruling(policy: Entry) -> Ruling:
    resource, entity, valid_from, hours = policy.key
    state = policy.state
    has_limits = state["effect"] == PolicyEffect.LIMITS
    return Ruling(
        label=policy.label,
        scope=(resource, entity),
        has_limits=has_limits,
        keys=tuple(noted(text).limit.key for text in state[LIMITS]) if has_limits else (),
        extends=state["extends"],
        is_enforced=state["enforcement"] == Enforcement.ENFORCE,
        rollout_percent=state["rollout_percent"],
        begins=_moment(valid_from),
        ends=_moment(state["valid_until"]),
        is_weekly=bool(hours),
    )


def _moment(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
