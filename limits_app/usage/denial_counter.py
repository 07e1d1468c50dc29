"""Counts the rejections of this process, and adds them to those in the store every second in a background thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from contextvars import ContextVar
from functools import lru_cache
from operator import attrgetter
from time import time
from typing import Final, Protocol

from limits_app import conf
from limits_app.acquiring import CountingStore, is_counting
from limits_app.engine import Batch, Clock, Rejected, Times, unique_name
from limits_app.engine.outcome import Outcome
from limits_app.models import BucketKind, Denial
from limits_app.models.namespaces import current_keys, sources
from limits_app.models.prefixes import prefix_of
from limits_app.stores.registry import resilient_store
from limits_app.usage import rollup
from limits_app.usage.one_time_clients import is_one_time
from limits_app.usage.reading import bucket_of, counted_for
from limits_app.usage.writer import OF_WHOLE_SITE, BackgroundWriter, Origin

_USAGE: Final = conf.USAGE.name
_MOST_KINDS: Final = 1_000
_MOST_OTHERS: Final = 100
_WHOSE: Final = attrgetter("resource", "entity", "member", "shared", "key")
"""Of a status, what `_rejected` returns the bucket of."""


class Identified(Protocol):
    """A web request with an id, by which people find its rejections, and the blocks in shadow mode that it has met."""

    @property
    def request_id(self) -> str: ...

    @property
    def blocks_in_shadow(self) -> Set[object]: ...


WEB_REQUEST: Final[ContextVar[Callable[[], Identified | None]]] = ContextVar("limits_app_request", default=lambda: None)
"""Returns the web request that is being answered; None outside of one."""


_ANY_OTHER: Final = Rejected(0, "", BucketKind.OTHERS, "", "")
"""Minute 0 stands for any minute."""


class Denials(BackgroundWriter[Rejected, Times]):
    """Counts rejections until they are added to those in the store: up to `most` different ones separately.

    Of more clients in one second, those of each kind are added up. `note` neither waits for the store nor fails. Counts
    that cannot be added are kept and added later. Without a store that counts they are rolled up immediately.
    """

    what = "rejection counts"
    model = Denial

    def __init__(self, *, most: int = _MOST_KINDS, clock: Clock | None = None, now: Callable[[], float] = time) -> None:
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
                self._keep(origin, _rejected(int(now // 60), *_WHOSE(status)), times)
        self._schedule_writing(origin)

    def _write(self, taken: Mapping[Rejected, Times], using: str) -> int:
        noted = {
            rejected._replace(minute=rejected.minute or int(times.first // 60)): times
            for rejected, times in taken.items()
        }
        store = _counting_store()
        if store is None:
            rollup.add(Batch(unique_name(), (), is_full=False, rejections=noted), using=using)
        else:
            store.add_rejections(noted, current_keys().counters)
        return sum(times.number for times in taken.values())

    def _keep(self, origin: Origin, key: Rejected, value: Times) -> None:
        noted = self._kept[origin]
        # From the most to the least specific, where there would be too many entries.
        kept = key
        if kept not in noted and len(noted) >= self._most:
            kind = prefix_of(key.entity) if key.bucket == BucketKind.ENTITY and is_one_time(key.entity) else ""
            kept = key._replace(bucket=BucketKind.OTHERS, entity=kind)
            if kept not in noted and len(noted) >= self._most + _MOST_OTHERS:
                kept = _ANY_OTHER
        noted[kept] = noted[kept].merged(value) if kept in noted else value


@lru_cache(maxsize=1024)
def _rejected(  # noqa: PLR0917 - the minute, and the fields of a status
    minute: int, resource: str | None, entity: str | None, member: str | None, shared: bool, key: str
) -> Rejected:
    bucket = bucket_of(shared=shared, member=member)
    return Rejected(minute, resource or "", bucket, counted_for(entity=entity, member=member) or "", key)


def _counting_store() -> CountingStore | None:
    """The default store, or else the first one that counts; None where none does."""
    for alias in dict.fromkeys([conf.get(conf.STORE), *conf.get(conf.STORES)]):
        store = resilient_store(alias).open()
        if is_counting(store):
            return store
    return None


denials: Final = Denials()
"""The counter of this process."""
