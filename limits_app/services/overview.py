"""Overview: what holds for many rows of a list, and how much of it is used, in one read of the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from django.utils import timezone

from limits_app.core.amounts import Amount
from limits_app.core.errors import LimitsError, StaleConfiguration
from limits_app.core.limits import Blocked
from limits_app.core.outcome import Stats, survey
from limits_app.models import PolicyEffect
from limits_app.resolver import Choice, Pair, Standing, StoreVersion, StoreVersions, choices, scopes

__all__ = ["LimitState", "RowState", "Standing", "overview"]

_MOST_TRIES: Final = 3
"""How often the configuration may change while a page is being built."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit that holds: where it was set, and what is used and left of it; None while that is not known.

    A limit that is `shared` is one for everybody.
    """

    key: str
    level: str
    shared: bool
    capacity: Amount
    used: Amount | None
    available: Amount | None

    @property
    def share(self) -> float:
        """The share in use, from 0 to 1; above 1 in debt."""
        return self.used / self.capacity if self.used is not None and self.capacity else 0.0


@dataclass(frozen=True, slots=True)
class RowState:
    """What holds for an entity on a resource: the limits, the tightest first, and the `levels` that they come from.

    `tried` are the levels of policies in the shadow; `standing` says what each policy does, by its primary key.
    `known` is False while the store is down: an outage must not look like no usage.
    """

    resource: str
    entity: str | None
    limits: tuple[LimitState, ...]
    effect: PolicyEffect
    levels: tuple[str, ...]
    tried: tuple[str, ...]
    standing: dict[int, Standing]
    known: bool = True


def overview(pairs: Collection[Pair]) -> list[RowState]:
    """Give the state of entities (None: the site itself) on resources, in their order: two queries, and one look.

    What is said about all resources has no state of its own: a pair without a resource has limits that nobody used.
    While a store is down everything is said of its resources but what is used.
    """
    if not pairs:
        return []
    for _ in range(_MOST_TRIES):
        try:
            return _read(pairs)
        except StaleConfiguration:
            continue
    return _rows(pairs, choices(pairs, timezone.now()), [None] * len(pairs))


def _read(pairs: Collection[Pair]) -> list[RowState]:
    versions = StoreVersions()  # before the queries, so that stores reject a change in between
    found = choices(pairs, timezone.now())
    by_store: dict[str, dict[int, tuple[Pair, Choice]]] = {}
    for number, (pair, choice) in enumerate(zip(pairs, found, strict=True)):
        by_store.setdefault(pair[0].store if pair[0] else "", {})[number] = pair, choice
    stats: dict[int, dict[str, Stats] | None] = {}
    for alias, rows in by_store.items():
        stats |= zip(rows, _looked(versions.of(alias), rows.values()), strict=True)
    return _rows(pairs, found, [stats[number] for number in range(len(pairs))])


def _looked(place: StoreVersion, rows: Collection[tuple[Pair, Choice]]) -> Iterable[dict[str, Stats] | None]:
    """What is used of the limits of each row, by key; None for all of them while their store is down."""
    if not place.available:
        return [None] * len(rows)
    try:
        scoped = [
            [] if resource is None else scopes(resource.name, choice, place.store) for (resource, _), choice in rows
        ]
        unique = {one.scope.key: one for some in scoped for one in some}
        stats = survey(unique.values(), place.store, place.version)
        return [{key: value for one in some for key, value in stats[one.scope.key].items()} for some in scoped]
    except StaleConfiguration:
        raise
    except LimitsError:
        return [None] * len(rows)


def _rows(pairs: Collection[Pair], found: Sequence[Choice], stats: Sequence[dict[str, Stats] | None]) -> list[RowState]:
    rows = []
    for (resource, entity), choice, of_pair in zip(pairs, found, stats, strict=True):
        state = RowState(
            resource="" if resource is None else resource.name,
            entity=None if entity is None else entity.identifier,
            limits=_limits(choice, of_pair or {}),
            effect=_effect(choice),
            levels=_levels(choice, Standing.COUNTS, Standing.EXTENDED),
            tried=_levels(choice, Standing.SHADOW),
            standing={verdict.candidate.policy_id or 0: verdict.standing for verdict in choice.verdicts},
            known=of_pair is not None,
        )
        rows.append(state)
    return rows


def _levels(choice: Choice, *standings: Standing) -> tuple[str, ...]:
    """The levels of the policies that stand so, each once, in order of precedence."""
    levels = [verdict.candidate.level for verdict in choice.verdicts if verdict.standing in standings]
    return tuple(dict.fromkeys(levels))


def _limits(choice: Choice, stats: dict[str, Stats]) -> tuple[LimitState, ...]:
    limits = [
        LimitState(
            held.limit.key,
            held.candidate.level,
            held.shared,
            held.limit.capacity,
            _amount(stats, held.limit.key, "used"),
            _amount(stats, held.limit.key, "available"),
        )
        for held in choice.limits
        if not isinstance(held.limit, Blocked)
    ]
    return tuple(sorted(limits, key=lambda limit: -limit.share))


def _amount(stats: dict[str, Stats], key: str, name: str) -> Amount | None:
    amount = stats.get(key, {}).get(name)
    return amount if isinstance(amount, int | float) else None


def _effect(choice: Choice) -> PolicyEffect:
    """What comes of all policies together; where nothing is said at all, that is unlimited."""
    if not choice.limits:
        return PolicyEffect.UNLIMITED
    return PolicyEffect.BLOCKED if isinstance(choice.limits[0].limit, Blocked) else PolicyEffect.LIMITS
