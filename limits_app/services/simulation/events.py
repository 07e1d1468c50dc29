"""Events of a simulation: read from CSV, or from recorded usage."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from limits_app.engine import (
    CALLS,
    EPOCH,
    HOUR_US,
    MICROSECOND,
    MILLI,
    SECOND_US,
    check_entity,
    check_key,
    check_resource,
    parse_amount,
    to_milli,
    usage_of_units,
)
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.engine.limits import CallLimit
from limits_app.models import BucketKind, UsagePeriod, UsageSnapshot
from limits_app.usage.reading import without_members


def share_of(amount: int, step: int, steps: int) -> int:
    """The part of an amount that comes in one of so many equal steps, from 0 on; together they are all of it."""
    return amount * (step + 1) // steps - amount * step // steps


RequestedMilli = tuple[tuple[str, int], ...]
"""Amounts in thousandths, by limit key."""

_KNOWN: Final = ("time", "entity", "resource", "seconds")
_MOST_CELLS: Final = 65_536
_LATEST_US: Final = 2**52


class SimulatedRequest(NamedTuple):
    """A request: when, in microseconds since 1970, who (None: the site itself), of what, how much, and for how long
    permits are held.

    `implied` says that calls and permits which are not named count one, as in a request.
    """

    now_us: int
    resource: str
    entity: str | None
    requested: RequestedMilli
    hold_us: int = 0
    implied: bool = True


def csv_events(
    lines: Iterable[str], *, resource: str | None = None, most_remembered: int = _MOST_CELLS
) -> Iterator[SimulatedRequest]:
    """Read events with the columns `time`, `entity`, `resource` and `seconds`, and one for each limit key.

    Times are ISO 8601 with a zone, or seconds since 1970, in ascending order; an empty cell requests nothing.
    Without a column for the resource, all events are for `resource`. Of at most `most_remembered` different rows it is
    remembered what they request.
    Raises InvalidRequest with the number of an invalid line.
    """
    rows = csv.reader(lines)
    try:
        head = [cell.strip() for cell in next(rows, [])]
        columns = _Columns(head, resource, most_remembered)
        last = -_LATEST_US
        for row in rows:
            if not row:
                continue
            event = columns.read(row)
            if event.now_us < last:
                raise InvalidRequest("it is earlier than the event before it: sort the file by time")
            last = event.now_us
            yield event
    except (ValueError, csv.Error) as error:
        raise InvalidRequest(f"line {max(rows.line_num, 1)}: {error}") from error


class _Columns:
    """Reads rows, and caches the fields of a row besides its time, since most rows repeat."""

    def __init__(self, head: Sequence[str], resource: str | None, most_remembered: int) -> None:
        if "time" not in head:
            raise InvalidRequest(
                f"the file must have a column “time”; other columns are {', '.join(_KNOWN[1:])} and limit keys"
            )
        if resource is None and "resource" not in head:
            raise InvalidRequest("the file must have a column “resource”, or name one resource for all events")
        if len({*head}) < len(head):
            raise InvalidRequest("two columns have the same name")
        self._width = len(head)
        self._time = head.index("time")
        self._names = [name for name in head if name != "time"]
        self._keys = {name: _key(name) for name in head if name not in _KNOWN}
        self._resource = resource
        self._read = lru_cache(most_remembered)(self._rest)

    def read(self, row: list[str]) -> SimulatedRequest:
        if len(row) != self._width:
            raise InvalidRequest(f"it has {len(row)} cells; the first line has {self._width}")
        time = row.pop(self._time)
        rest = self._read(tuple(row))
        return SimulatedRequest(_moment_us(time), *rest)

    def _rest(self, row: tuple[str, ...]) -> tuple[str, str | None, RequestedMilli, int]:
        cells = dict(zip(self._names, row, strict=True))
        entity, resource, seconds = (cells.get(name, "") for name in ("entity", "resource", "seconds"))
        amounts = tuple((key, _usage(key, cells[name])) for name, key in self._keys.items() if cells[name].strip())
        hold_us = _milli(seconds) * 1000 if seconds.strip() else 0
        return (
            check_resource(resource.strip() or self._resource),
            check_entity(entity) if entity else None,
            amounts,
            hold_us,
        )


def recorded_events(
    *, since: datetime | None = None, until: datetime | None = None, resource: str | None = None, steps: int = 720
) -> Iterator[SimulatedRequest]:
    """Read recorded usage by the hour (None: of all resources), and spread each use evenly over the hour.

    The distribution within the hour was not recorded, so short bursts are not seen.
    """
    for start, hour in groupby(_snapshots(since, until, resource), key=lambda row: row[0]):
        begins_us = (start - EPOCH) // MICROSECOND
        used: dict[tuple[str, str | None], list[tuple[str, int]]] = {}
        for _, name, entity, key, milli in hour:
            used.setdefault((name, entity or None), []).append((key, milli))
        for step in range(steps):
            for (name, entity), amounts in used.items():
                shares = tuple((key, share) for key, milli in amounts if (share := _share(milli, step, steps)))
                if shares:
                    yield SimulatedRequest(begins_us + HOUR_US * step // steps, name, entity, shares, implied=False)


def _snapshots(since: datetime | None, until: datetime | None, resource: str | None) -> Iterator[Any]:
    snapshots = UsageSnapshot.objects.filter(period=UsagePeriod.HOUR, bucket=BucketKind.ENTITY, admitted_milli__gt=0)
    if since is not None:
        snapshots = snapshots.filter(start__gte=since)
    if until is not None:
        snapshots = snapshots.filter(start__lt=until)
    if resource is not None:
        snapshots = snapshots.filter(resource=resource)
    names = ("start", "resource", "entity", "key", "admitted_milli")
    return without_members(snapshots).order_by("start", "resource", "entity", "key").values_list(*names).iterator()


def _share(milli: int, step: int, steps: int) -> int:
    """The part of an amount in one step, in whole units where the amount is a whole number."""
    unit = MILLI if milli % MILLI == 0 else 1
    return share_of(milli // unit, step, steps) * unit


def _key(name: str) -> str:
    name = CallLimit.key if name == CALLS else name
    try:
        check_key(name)
    except InvalidLimit as error:
        raise InvalidRequest(f"the column {name!r} is not a limit key: {error}") from error
    return name


def _usage(key: str, cell: str) -> int:
    """An amount as usage has it."""
    return usage_of_units(key, parse_amount(cell.strip()))


def _milli(cell: str) -> int:
    return to_milli(parse_amount(cell.strip()), decimals=True)


def _moment_us(cell: str) -> int:
    cell = cell.strip()
    if cell.isascii() and cell.isdigit():
        now_us = int(cell) * SECOND_US
    elif cell.replace(".", "", 1).isdigit() and cell.isascii():
        now_us = round(float(cell) * 1e6)
    else:
        moment = datetime.fromisoformat(cell)
        if moment.tzinfo is None:
            raise InvalidRequest(f"{cell!r} has no time zone: write 2026-03-01T12:00:00+00:00")
        now_us = (moment - EPOCH) // MICROSECOND
    if not 0 <= now_us < _LATEST_US:
        raise InvalidRequest(f"{cell!r} must be a time between 1970 and 2112")
    return now_us
