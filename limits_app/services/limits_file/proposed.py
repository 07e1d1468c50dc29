"""The objects of limits files as the rows that they propose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal

from limits_app.engine import PricedFor, StoredPrice, UnitPrice
from limits_app.models import Counted
from limits_app.policies import EntityRow, ProposedPolicy, ProposedRows, dropped_by_proposed
from limits_app.services.limits_file.content import FileEntry, noted_limits
from limits_app.services.policy_warnings import dropped_message


def proposed_rows(entries: Iterable[FileEntry]) -> ProposedRows:
    """Policies and entities that replace those of a database; each policy has the number of its entry, from 1 on."""
    rows = ProposedRows()
    for number, entry in enumerate(entries, 1):
        match entry.section.name:
            case "policies":
                rows.policies[number] = _proposed_policy(number, entry)
            case "entities":
                fields = {**entry.state, "billing_from": _date(entry.state["billing_from"])}
                rows.entities[entry.key[0]] = EntityRow(*[fields[column] for column in EntityRow._fields])
            case "plans":
                rows.priorities[entry.key[0]] = entry.state["priority"]
            case "prices":
                rows.prices.extend(_proposed_price(entry))
            case "plan_groups":
                rows.plans_of_groups[entry.key[0]] = entry.state["plan"]
    return rows


def _proposed_policy(number: int, entry: FileEntry) -> ProposedPolicy:
    state = dict(zip(entry.section.identity, entry.key, strict=True)) | {**entry.state}
    dates = {name: _date(state[name]) for name in ("valid_from", "valid_until")}
    return ProposedPolicy.of(entry.label, {**state, **dates}, noted_limits(state), number=number)


def _proposed_price(entry: FileEntry) -> Iterator[StoredPrice]:
    """A price that has not begun yet, as if it had always been valid; members of pools are left out."""
    resource, member, unit, currency, valid_from = entry.key
    if not member and datetime.fromisoformat(valid_from) > datetime.now(UTC):
        price = UnitPrice.of(unit, currency, Decimal(entry.state["amount"]), int(entry.state["per"]))
        yield StoredPrice(PricedFor(resource), price, 0)


def _date(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def dropped_limits(entries: Iterable[FileEntry], changed: Iterable[FileEntry], using: str) -> Iterator[str]:
    """Say of each changed policy which limits of the policies that it replaces it drops; `entries` are all objects."""
    numbered = dict(enumerate(entries, 1))
    numbers = {entry.name: number for number, entry in numbered.items()}
    changed_numbers = [numbers[entry.name] for entry in changed]
    dropped = dropped_by_proposed(proposed_rows(numbered.values()), changed_numbers, using)
    for number, key, (first, *others) in dropped:
        entry = numbered[number]
        is_total = entry.key[-1] == Counted.TOTAL
        yield dropped_message(entry.label, key, first, others=len(others), is_total=is_total)
