"""The objects of limits files as the policies and entities that they propose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from limits_app.models import Counted
from limits_app.models.plan import plans_by_groups
from limits_app.policies import (
    OF_CODE,
    Collector,
    Dropping,
    EntityRow,
    Place,
    PolicyValue,
    always_applies,
    policy_value,
    stored_code_limits,
)
from limits_app.services.limits_file.content import FileEntry, noted_limits
from limits_app.services.policy_warnings import dropped_message


def proposed_policy(entry: FileEntry, number: int) -> tuple[Place, PolicyValue]:
    """A policy of a file as a value with a number, and what it is for."""
    state = dict(zip(entry.section.identity, entry.key, strict=True)) | {**entry.state}
    place = Place(state["resource"], state["entity"], state["plan"])
    dates = {name: _moment(state[name]) for name in ("valid_from", "valid_until")}
    value = policy_value(
        {**state, **dates},
        noted_limits(state),
        policy_id=number,
        identifier=place.entity or None,
        plan=place.plan or None,
        has_resource=bool(place.resource),
    )
    return place, value


def _moment(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def proposed_collector(
    entries: Iterable[FileEntry], using: str, is_meant: Callable[[PolicyValue], bool] = lambda _policy: True
) -> Collector:
    """The collector of policies and entities that replace those of a database; policies are numbered from 1 on.

    Users and the limits that code sets are those of the database, and so are the plans of groups that are not among the
    objects.
    """
    policies, entities, priorities, groups = [], {}, {}, {}
    for number, entry in enumerate(entries, 1):
        if entry.section.name == "policies":
            place, policy = proposed_policy(entry, number)
            if is_meant(policy):
                policies.append((place, policy))
        elif entry.section.name == "entities":
            state = entry.state
            row = EntityRow(state["blocked"], state["unlimited"], state["cascade"], state["parent"], state["plan"])
            entities[entry.key[0]] = row
        elif entry.section.name == "plans":
            priorities[entry.key[0]] = entry.state["priority"]
        elif entry.section.name == "plan_groups":
            groups[entry.key[0]] = entry.state["plan"]
    by_groups = plans_by_groups(
        using, proposed=[(name, plan, priorities.get(plan, 0)) for name, plan in groups.items()]
    )
    return Collector(policies, entities, plans_by_groups=by_groups, code_limits=stored_code_limits(using))


def dropped_limits(entries: Iterable[FileEntry], changed: Iterable[FileEntry], using: str) -> Iterator[str]:
    """Say of each changed policy which limits of the policies that it replaces it drops; `entries` are all objects."""
    numbered = dict(enumerate(entries, 1))
    numbers = {entry.name: number for number, entry in numbered.items()}
    dropping = Dropping(proposed_collector(numbered.values(), using, always_applies), datetime.now(UTC))
    for entry in changed:
        is_total = entry.key[-1] == Counted.TOTAL
        for key, policies in dropping.dropped(*proposed_policy(entry, numbers[entry.name])):
            first = next(iter(policies))
            level = OF_CODE if first is None else numbered[first].label
            yield dropped_message(entry.label, key, level, others=len(policies) - 1, is_total=is_total)
