"""Counts the rejections of this process, and writes them every second in a background thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextvars import ContextVar
from functools import lru_cache
from operator import attrgetter
from time import time
from typing import Any, Final, NamedTuple, Protocol

from django.db import transaction

from limits_app import conf
from limits_app.engine.clock import Clock
from limits_app.engine.outcome import Outcome
from limits_app.models import Bucket, Denial, Period, UsageSnapshot
from limits_app.models.namespaces import sources
from limits_app.models.usage import ADD, EARLIEST, IDS_LENGTH, LATEST, PREPEND, upsert
from limits_app.usage.reading import HOURS_OF, bucket_of, since_1970, snapshot_row, storable
from limits_app.usage.writer import OF_WHOLE_SITE, BackgroundWriter, Origin

_USAGE: Final = conf.USAGE.name
_MOST: Final = 1_000
_MOST_OTHERS: Final = 100
_MINUTES_PER_HOUR: Final = 60
_WHOSE: Final = attrgetter("resource", "entity", "member", "shared", "key")
"""Of a status, what `_denied` returns the bucket of."""


class Identified(Protocol):
    """A web request with an id, by which people find its rejections, and the blocks in shadow mode that it has met."""

    @property
    def request_id(self) -> str: ...

    @property
    def blocks_in_shadow(self) -> Set[object]: ...


WEB_REQUEST: Final[ContextVar[Callable[[], Identified | None]]] = ContextVar("limits_app_request", default=lambda: None)
"""Returns the web request that is being answered; None outside of one."""


class Denied(NamedTuple):
    """A limit that rejected requests in a minute; `minute` is in minutes since 1970, or 0 for any minute."""

    minute: int
    resource: str
    bucket: Bucket
    entity: str
    key: str


_ANY_OTHER: Final = Denied(0, "", Bucket.OTHERS, "", "")


class Times(NamedTuple):
    """Number of rejections, the times of the first and last, in seconds since 1970, and ids of requests."""

    number: int
    first: float
    last: float
    ids: str = ""

    def merged(self, other: Times) -> Times:
        """The combination of both; the id of a request that is rejected several times in a row is kept once."""
        ids = self.ids if other.ids == self.ids.partition(" ")[0] else f"{other.ids} {self.ids}".strip()[:IDS_LENGTH]
        return Times(self.number + other.number, min(self.first, other.first), max(self.last, other.last), ids)


class Denials(BackgroundWriter[Denied, Times]):
    """Counts rejections until they are written: up to `most` different ones separately, and the rest together.

    `note` neither waits for the database nor fails. Counts that cannot be written are kept and written later.
    """

    what = "rejection counts"
    model = Denial

    def __init__(self, *, most: int = _MOST, clock: Clock | None = None, now: Callable[[], float] = time) -> None:
        self._most = most
        super().__init__(clock=clock, now=now)

    @property
    def waiting(self) -> int:
        """Number of rejections that are not written yet."""
        with self._lock:
            return sum(times.number for kept in self._kept.values() for times in kept.values())

    def note(self, outcome: Outcome) -> None:
        """Count a rejection for each limit that rejected the request, with the id of the present web request."""
        if not conf.current()[_USAGE]:
            return
        now, request = self.now(), WEB_REQUEST.get()()
        origin = self._origin() if sources.is_used else OF_WHOLE_SITE
        times = Times(1, now, now, "" if request is None else request.request_id)
        with self._lock:
            for status in outcome.violations:
                self._keep(origin, _denied(int(now // 60), *_WHOSE(status)), times)
        self._schedule_writing(origin)

    def _write(self, taken: Mapping[Denied, Times], using: str) -> int:
        noted: dict[Denied, Times] = {}
        for denied, times in taken.items():
            one = denied._replace(minute=denied.minute or int(times.first // 60), entity=storable(denied.entity))
            noted[one] = times.merged(noted[one]) if one in noted else times
        merge = {"count": ADD, "first": EARLIEST, "last": LATEST, "request_ids": PREPEND}
        with transaction.atomic(using=using):
            upsert(Denial, list(_rows(noted)), merge, using=using)
            upsert(UsageSnapshot, list(_snapshots(noted)), {"admitted_milli": ADD, "refused": ADD}, using=using)
        return sum(times.number for times in taken.values())

    def _keep(self, origin: Origin, key: Denied, value: Times) -> None:
        noted = self._kept[origin]
        # From the most to the least specific, where there would be too many entries.
        place = key
        if place not in noted and len(noted) >= self._most:
            place = key._replace(bucket=Bucket.OTHERS, entity="")
            if place not in noted and len(noted) >= self._most + _MOST_OTHERS:
                place = _ANY_OTHER
        noted[place] = noted[place].merged(value) if place in noted else value


@lru_cache(maxsize=1024)
def _denied(  # noqa: PLR0917 - the minute, and the fields of a status
    minute: int, resource: str | None, entity: str | None, member: str | None, shared: bool, key: str
) -> Denied:
    bucket = bucket_of(shared=shared, member=member)
    return Denied(minute, resource or "", bucket, (entity if member is None else member) or "", key)


def _rows(noted: Mapping[Denied, Times]) -> Iterator[dict[str, Any]]:
    for denied, times in noted.items():
        first, last = since_1970(seconds=times.first), since_1970(seconds=times.last)
        yield {
            "minute": since_1970(minutes=denied.minute),
            **_whose(denied),
            "count": times.number,
            "first": first,
            "last": last,
            "request_ids": times.ids,
        }


def _snapshots(noted: Mapping[Denied, Times]) -> Iterator[dict[str, Any]]:
    totals: Counter[tuple[Period, Denied]] = Counter()
    for denied, times in noted.items():
        for period, hours in HOURS_OF.items():
            minutes = hours * _MINUTES_PER_HOUR
            totals[period, denied._replace(minute=denied.minute // minutes * minutes)] += times.number
    for (period, denied), refused in totals.items():
        yield snapshot_row(period, denied.minute // _MINUTES_PER_HOUR, _whose(denied), refused=refused)


def _whose(denied: Denied) -> dict[str, str]:
    return {"resource": denied.resource, "bucket": denied.bucket, "entity": denied.entity, "key": denied.key}


denials: Final = Denials()
"""The counter of this process."""
