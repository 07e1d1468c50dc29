"""Writes what a process remembers to the store or the database every second, in a background thread."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import time
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, models, router

from limits_app.acquiring import at_end, on_fork
from limits_app.conf import test_runner
from limits_app.engine import SECOND_US, Clock, as_clock, monotonic_us
from limits_app.engine.locks import RLock
from limits_app.models.namespaces import WHOLE_SITE, SiteNamespace, current_namespace, entered, sources
from limits_app.stores.background import BackgroundTask

logger = logging.getLogger("limits_app")

_EVERY_US: Final = SECOND_US
_EXIT_SECONDS: Final = 3.0

K = TypeVar("K")
V = TypeVar("V")

_enabled = True


def write_in_background(enabled: bool) -> None:
    """Start threads that write, or start none, as in tests: there `flush()` writes."""
    global _enabled  # noqa: PLW0603 - one switch for all writers of the process
    _enabled = enabled


def is_writing_in_background() -> bool:
    """Whether threads may write."""
    return _enabled


class Origin(NamedTuple):
    """Where something was noted: the namespace, and the database that it is written to."""

    namespace: SiteNamespace
    using: str


OF_WHOLE_SITE: Final = Origin(WHOLE_SITE, DEFAULT_DB_ALIAS)
"""That of a site without namespaces."""


class BackgroundWriter(ABC, Generic[K, V]):
    """Calls `flush` in a background thread until it succeeds, and once more when the process ends.

    Subclasses keep unwritten items in `_kept`, behind `_lock`, by its origin. `now` is the time in seconds
    since 1970.
    """

    what: ClassVar[str]
    """The name of the items, for the log."""
    model: ClassVar[type[models.Model]]
    """The table that it is written to."""

    def __init__(self, *, clock: Clock | None = None, now: Callable[[], float] = time) -> None:
        self.now = now
        self.exit_seconds = _EXIT_SECONDS
        self._task = BackgroundTask(self._look, _EVERY_US, clock=as_clock(monotonic_us) if clock is None else clock)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start with new locks and empty in a child process, because the parent writes what it has kept."""
        self._lock = RLock()  # reentrant, because a finalizer may be rejected while this thread holds the lock
        self._writing = RLock()
        self._is_failing = False
        self._is_started = False
        self._noted_in_a_test = False
        self._kept: defaultdict[Origin, dict[K, V]] = defaultdict(dict)

    def flush(self) -> int:
        """Write everything; returns how much that was. What raises an error is kept, and the rest is written."""
        with self._writing:
            with self._lock:
                origins = list(self._kept)
                self._is_started = False  # items that are kept from now on need another run
            written, errors = 0, []
            for origin in origins:
                try:
                    written += self._flush(origin)
                except Exception as error:  # noqa: BLE001 - an error in one namespace must not delay the others
                    errors.append(error)
            if errors:
                raise errors[0]
            return written

    def flush_here(self) -> int:
        """Write the items of the present namespace."""
        with self._writing:
            return self._flush(self._origin())

    def _flush(self, origin: Origin) -> int:
        """Write the items of a namespace, all or nothing; the caller holds `_writing`."""
        with self._lock:
            taken = self._kept.pop(origin, {})
            is_left = self._noted_in_a_test and test_runner.current_test() is None
            self._noted_in_a_test = False
        if not taken or is_left:
            return 0
        try:
            with entered(origin.namespace):
                return self._write(taken, origin.using)
        except BaseException:
            with self._lock:
                since = self._kept.pop(origin, {})
                for key, value in (*taken.items(), *since.items()):
                    self._keep(origin, key, value)
            raise

    def clear(self) -> None:
        """Discard unwritten items."""
        with self._lock:
            self._kept.clear()

    @abstractmethod
    def _write(self, taken: Mapping[K, V], using: str) -> int:
        """Write to a database, all or nothing; returns how much that was."""

    @abstractmethod
    def _keep(self, origin: Origin, key: K, value: V) -> None:
        """Keep a value until it is written, together with an earlier one of its key; the caller holds `_lock`."""

    def _origin(self) -> Origin:
        """Where something is noted now."""
        namespace = current_namespace() if sources.is_used else WHOLE_SITE
        return OF_WHOLE_SITE if namespace is WHOLE_SITE else Origin(namespace, router.db_for_write(self.model))

    def _schedule_writing(self, origin: Origin) -> None:
        """Start the thread, in a transaction after its commit: the thread might wait for the transaction otherwise."""
        if not _enabled or self._is_started or self._is_of_a_test():
            return
        at_end(self._at_exit)
        connection = connections[origin.using]
        if connection.in_atomic_block:
            connection.on_commit(self._start)
        else:
            self._start()

    def _is_of_a_test(self) -> bool:
        """Whether a test runner runs: its tests call `flush`, and what they leave is never written."""
        if test_runner.current_test() is None:
            return False
        self._noted_in_a_test = True
        return True

    def _start(self) -> None:
        self._is_started = True
        self._task.start()

    def _look(self) -> int | None:
        """Write; returns the delay until the next look, or None where there was nothing to write.

        So the thread and its connections last as long as there is something every second.
        """
        try:
            has_written = self.flush() > 0
        except Exception as error:  # noqa: BLE001 - any error is retried
            if not self._is_failing:
                logger.warning("%s cannot be written now; they are kept and written later: %s", self.what, error)
            self._is_failing = True
            connections.close_all()  # those of this thread
            return _EVERY_US
        self._is_failing = False
        if has_written:
            return _EVERY_US
        connections.close_all()
        return None

    def _at_exit(self) -> None:
        if self._writing.acquire(timeout=self.exit_seconds):
            self._writing.release()
            with suppress(Exception):
                self.flush()
