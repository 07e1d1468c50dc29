"""Setting prices: what a list of prices would change, and writing that in one audited step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, QuerySet
from django.utils.timezone import now

from limits_app import audit
from limits_app.engine import UnitPrice
from limits_app.engine.errors import InvalidLimit
from limits_app.models import Price, write_alias
from limits_app.models.fields import aware
from limits_app.models.price import next_full_hour, permits_of, problem_of_permits
from limits_app.models.snapshots import batches
from limits_app.services import definitions


class PriceKind(StrEnum):
    """What becomes of a price in a list."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"


class PriceState(StrEnum):
    """Whether a price applies, to the extent that no more specific one does."""

    PAST = "past"
    CURRENT = "current"
    FUTURE = "future"


class PricedUnit(NamedTuple):
    """What a price is for, and its currency: of each there is one price at a time."""

    resource: str
    member: str
    unit: str
    currency: str


@dataclass(frozen=True, slots=True)
class ListedPrice:
    """A price of a list: where it was read, its row, and whether it is left out where the unit has no price yet."""

    source: str
    row: Price
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class PriceChange:
    """What becomes of a price: the price in force before it (None: none), and the new one (None: it is skipped)."""

    kind: PriceKind
    source: str
    before: Price | None = None
    after: Price | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, object]:
        """The change as plain data, for JSON."""
        row = self.after
        priced_unit: Mapping[str, Any] = {} if row is None else priced_unit_of(row)._asdict()
        return {
            "change": self.kind.value,
            "source": self.source,
            **priced_unit,
            "before": None if self.before is None else self.before.in_words,
            "after": None if row is None else row.in_words,
            "valid_from": None if row is None else aware(row.valid_from).astimezone(UTC).isoformat(),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class PricePlan:
    """What a list of prices would change."""

    changes: tuple[PriceChange, ...]

    @property
    def problems(self) -> list[str]:
        """Why prices are skipped."""
        return [change.reason for change in self.changes if change.kind is PriceKind.SKIPPED]

    @property
    def new(self) -> list[PriceChange]:
        """The prices that are added or changed."""
        return [change for change in self.changes if change.kind in {PriceKind.ADDED, PriceKind.CHANGED}]

    def counts(self) -> dict[str, int]:
        """How many prices are added, changed, unchanged and skipped."""
        kinds = [change.kind for change in self.changes]
        return {kind.value: kinds.count(kind) for kind in PriceKind}

    def as_data(self) -> list[dict[str, object]]:
        """Every change but the unchanged prices, as plain data."""
        return [change.as_dict() for change in self.changes if change.kind is not PriceKind.UNCHANGED]


class PricesChanged(InvalidLimit):
    """The prices were changed after a plan was shown."""

    def __str__(self) -> str:
        return "The prices were changed after the preview was shown: run the command again."


def priced_unit_of(row: Price) -> PricedUnit:
    """What a price is for."""
    return PricedUnit(row.resource, row.member, row.unit, row.currency)


def with_states(rows: QuerySet[Price]) -> QuerySet[Any]:
    """The same prices, with `is_past` for those that a later one has replaced; see `state_of`."""
    same = {name: OuterRef(name) for name in PricedUnit._fields}
    later = Price.objects.using(rows.db).filter(**same, valid_from__gt=OuterRef("valid_from"), valid_from__lte=now())
    return rows.annotate(is_past=Exists(later))


def state_of(row: Any) -> PriceState:
    """Whether a price of `with_states` applies."""
    if not row.has_begun:
        return PriceState.FUTURE
    return PriceState.PAST if row.is_past else PriceState.CURRENT


def read_price(fields: Mapping[str, object], *, valid_from: datetime | None = None) -> Price:
    """A checked price from plain data, valid from the next full hour unless it says a later one; InvalidDefinition."""
    row: Price = definitions.read(Price(), fields, alone=True).row
    start = next_full_hour() if valid_from is None else valid_from
    if not fields.get("valid_from") or aware(row.valid_from) < aware(start):
        row.valid_from = start
    return row


def plan_prices(prices: Iterable[ListedPrice], skipped: Iterable[PriceChange] = ()) -> PricePlan:
    """Compare prices with the stored ones, and change nothing.

    A price that is in force already when it would begin is unchanged, also where it is for another number of units.
    """
    latest: dict[tuple[PricedUnit, datetime], ListedPrice] = {}
    for listed in prices:
        latest[priced_unit_of(listed.row), aware(listed.row.valid_from)] = listed
    in_force = _StoredPrices({priced_unit for priced_unit, _ in latest})
    permits = permits_of({priced_unit.unit for priced_unit, _ in latest}, write_alias())
    changes: list[PriceChange] = []
    for (priced_unit, start), listed in sorted(latest.items(), key=lambda item: item[0]):
        if problem := problem_of_permits(listed.row, permits):
            changes.append(PriceChange(PriceKind.SKIPPED, listed.source, reason=problem))
        elif (change := in_force.change(priced_unit, start, listed)) is not None:
            changes.append(change)
    return PricePlan((*changes, *skipped))


def set_prices(
    prices: Sequence[ListedPrice],
    skipped: Sequence[PriceChange] = (),
    *,
    expected: PricePlan | None = None,
    actor: str = "",
    source: str = "code",
    reason: str = "",
) -> PricePlan:
    """Write prices in one audited transaction, all or none; returns the changes.

    Each changed price is a new row, except that a row which has not begun is changed. With `expected`, a plan that was
    shown before, nothing else is done than that; raises PricesChanged otherwise.
    """
    using = write_alias()
    with audit.acting(actor=actor, source=source, reason=reason, using=using):
        plan = plan_prices(prices, skipped)
        if expected is not None and plan.as_data() != expected.as_data():
            raise PricesChanged
        rows = [change.after for change in plan.new if change.after is not None]
        manager = Price.objects.using(using)
        changed = [row for row in rows if row.pk is not None]
        manager.bulk_create([row for row in rows if row.pk is None], batch_size=definitions.ROWS_OF_STATEMENT)
        manager.bulk_update(changed, ["amount", "per"], batch_size=definitions.ROWS_OF_STATEMENT)
    return plan


class _StoredPrices:
    """The stored prices of some priced_units, and those that a list adds to them."""

    def __init__(self, priced_units: Iterable[PricedUnit]) -> None:
        self._rows: dict[PricedUnit, list[Price]] = {priced_unit: [] for priced_unit in priced_units}
        rows = Price.objects.using(write_alias()).order_by("valid_from")
        for batch in batches({priced_unit.resource for priced_unit in self._rows}):
            for row in rows.filter(resource__in=batch):
                if priced_unit_of(row) in self._rows:
                    self._rows[priced_unit_of(row)].append(row)

    def change(self, priced_unit: PricedUnit, start: datetime, listed: ListedPrice) -> PriceChange | None:
        """What becomes of a price that would begin at a time; None where it is left out."""
        rows, row = self._rows[priced_unit], listed.row
        begun = [other for other in rows if aware(other.valid_from) <= start]
        if not begun:
            if listed.is_optional:
                return None
            rows.append(row)
            return PriceChange(PriceKind.ADDED, listed.source, None, row)
        before = begun[-1]
        if unit_price(before) == unit_price(row):
            return PriceChange(PriceKind.UNCHANGED, listed.source, before, row)
        if aware(before.valid_from) == start and before.pk is not None:
            row.pk, row._state.adding = before.pk, False
        rows.append(row)
        return PriceChange(PriceKind.CHANGED, listed.source, before, row)


def unit_price(row: Price) -> UnitPrice:
    """The price of one unit of a row."""
    return row.as_stored().price
