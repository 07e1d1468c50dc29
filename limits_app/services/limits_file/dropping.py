"""Which limits policies silently free, worked out for all of them at once instead of one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from limits_app.models import Enforcement, PolicyEffect
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
        self._scopes: dict[tuple[str, str], list[Entry]] = {}
        self._everybody: dict[str, list[Entry]] = {}
        self._resources_of: dict[str, list[str]] = {}
        for policy in policies:
            resource, entity, *_ = policy.key
            if policy.state["enforcement"] == Enforcement.OFF:
                continue
            self._scopes.setdefault((resource, entity), []).append(policy)
            if entity:
                self._resources_of.setdefault(entity, []).append(resource)
                continue
            for key in _keys(policy):
                self._everybody.setdefault(key, []).append(policy)

    def of(self, policy: Entry) -> Iterator[Dropped]:
        """The keys that the replaced policies limit and this one does not."""
        if policy.state["effect"] != PolicyEffect.LIMITS or policy.state["extends"]:
            return
        kept = {*_keys(policy)}
        for key, levels in self._replaced(policy):
            if key not in kept and levels:
                yield Dropped(key, policy.label, levels[0].label, len(levels))

    def _replaced(self, policy: Entry) -> Iterator[tuple[str, list[Entry]]]:
        resource, entity, valid_from, hours = policy.key
        if valid_from or hours:
            always = [one for one in self._scopes.get((resource, entity), ()) if one.key[2:] == ("", "")]
            if always:
                yield from _by_key(always)
                return
        if entity and not resource:
            own = {*self._resources_of.get(entity, ())} - {""}
            for key, levels in self._everybody.items():
                yield key, [one for one in levels if one.key[0] not in own]
            return
        for scope in _broader(resource, entity):
            if found := self._scopes.get(scope):
                yield from _by_key(found)
                return


def _broader(resource: str, entity: str) -> list[tuple[str, str]]:
    """The scopes that are asked after this one, in order."""
    if not resource:
        return []
    return [("", entity), (resource, ""), ("", "")] if entity else [("", "")]


def _by_key(policies: Iterable[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    found: dict[str, list[Entry]] = {}
    for policy in policies:
        for key in _keys(policy):
            found.setdefault(key, []).append(policy)
    yield from found.items()


def _keys(policy: Entry) -> list[str]:
    """What a policy limits; nothing where it has another effect."""
    return [noted(text).limit.key for text in policy.state[LIMITS]] if policy.state["effect"] == "limits" else []
