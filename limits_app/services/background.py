"""Background jobs: roll-up and pruning, which one process of the site does where no task or command is scheduled.

A process that answers requests or runs tasks starts a thread. The thread that gets the lease of a job, a row in the
database, does it until it ends; then another process takes over. No job is done in a test runner, in a management
command, or in a process that only forks others, since these answer no requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

from django.db import connections
from django.db.models import Q, QuerySet

from limits_app import conf
from limits_app.acquiring import on_fork
from limits_app.conf import test_runner
from limits_app.engine import Clock, as_clock, monotonic_us, unique_name
from limits_app.models import BackgroundJob, job_row
from limits_app.models.fields import in_site_time
from limits_app.models.namespaces import (
    WHOLE_SITE,
    all_namespaces,
    current_namespace,
    entered,
    entered_by_name,
    is_entered,
    sources,
)
from limits_app.policies import configuration
from limits_app.services import retention
from limits_app.services.usage import roll_up_all
from limits_app.stores.background import BackgroundTask
from limits_app.usage.writer import is_writing_in_background

logger = logging.getLogger("limits_app")

_SECOND: Final = 1_000_000
_HOLDER_US: Final = 60 * _SECOND
"""How often a process that does a job looks whether it is due."""
_OTHERS_US: Final = 600 * _SECOND
"""How often the other processes look whether the lease of a job has ended."""
_LEASE: Final = timedelta(minutes=5)
_PRUNE_SECONDS: Final = 60.0


class Job(NamedTuple):
    """A job: how often it is due, and for how long after a scheduled run it is left to the schedule.

    `run` returns whether the job is finished; if not, it is due again at the next look.
    """

    name: str
    every: timedelta
    scheduled: timedelta
    run: Callable[[], bool]


class BackgroundJobs:
    """The thread of this process that does jobs; `now` returns the time.

    `own` does what each process has to do itself, and returns whether there is anything.
    """

    def __init__(
        self,
        jobs: tuple[Job, ...],
        own: Callable[[], bool],
        *,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._jobs = jobs
        self.run_own = own
        self._now = now
        self._task = BackgroundTask(self._step, _HOLDER_US, clock=as_clock(monotonic_us) if clock is None else clock)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child is another holder, and starts its own thread with its first request."""
        self._holder = unique_name()
        self.is_started = False
        """Whether this process has a thread that does jobs."""
        self._is_failing = False

    def start(self, **details: object) -> None:  # noqa: ARG002 - a receiver of signals
        """Start the thread, unless it runs."""
        if self.is_started or not is_writing_in_background() or test_runner.current_test() is not None:
            return
        if not conf.get(conf.BACKGROUND_JOBS):
            return
        self.is_started = True
        self._task.start()

    def run_due(self) -> bool:
        """Do the jobs of the present namespace that are due and not done elsewhere; returns whether there are any."""
        holds = False
        for job in self._jobs:
            row = job_row(job.name)
            if not self._lease(row, job):
                continue
            holds = True
            now = in_site_time(self._now())
            if row.filter(Q(ran_at=None) | Q(ran_at__lte=now - job.every)).exists() and job.run():
                row.filter(holder=self._holder).update(ran_at=now)
        return holds

    def _lease(self, row: QuerySet[BackgroundJob], job: Job) -> bool:
        """Get or keep the lease of a job, which is not given while the job is scheduled."""
        now = self._now()
        is_free = Q(holder=self._holder) | Q(leased_until=None) | Q(leased_until__lt=in_site_time(now))
        is_due = Q(scheduled_at=None) | Q(scheduled_at__lt=in_site_time(now - job.scheduled))
        until = in_site_time(now + _LEASE)
        return row.filter(is_free, is_due).update(holder=self._holder, leased_until=until) > 0

    def _step(self) -> int:
        if test_runner.current_test() is not None:
            return _OTHERS_US
        try:
            holds = [self._run_in(namespace) for namespace in _namespaces()]
        except Exception as error:  # noqa: BLE001 - a thread has no caller; the next round tries again
            self._log(error)
            return _OTHERS_US
        finally:
            connections.close_all()  # those of this thread
        return _HOLDER_US if any(holds) else _OTHERS_US

    def _run_in(self, namespace: Callable[[], AbstractContextManager[None]]) -> bool:
        """Do the jobs of a namespace; an error does not affect the others."""
        try:
            with namespace():
                if not is_entered(current_namespace()):  # a router may choose by thread, and would choose another
                    return False
                has_own = self.run_own()
                holds = self.run_due() or has_own
        except Exception as error:  # noqa: BLE001 - it is logged
            self._log(error)
            return False
        self._is_failing = False
        return holds

    def _log(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning("background jobs failed; they are tried again every few minutes: %s", error)
        self._is_failing = True


def _namespaces() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Context managers that enter each namespace that is in the settings, or else that this process knows."""
    if conf.get(conf.NAMESPACES) is not None:
        for name in all_namespaces():
            yield partial(entered_by_name, name)
        return
    namespaces = dict.fromkeys([current_namespace(), *[kept.namespace for kept in configuration.all()]])
    for namespace in namespaces:
        if namespace is not WHOLE_SITE or not sources.is_used:
            yield partial(entered, namespace)


def _roll_up() -> bool:
    roll_up_all()
    return True


def _roll_up_own() -> bool:
    """Roll up the stores that are in the memory of this process."""
    own = [alias for alias in conf.get(conf.STORES) if conf.store_settings(alias).kind is conf.StoreKind.MEMORY]
    if own:
        roll_up_all(own)
    return bool(own)


def _prune() -> bool:
    archive = conf.get(conf.USAGE_ARCHIVE_DIR)
    return retention.prune_all(archive=archive, seconds=_PRUNE_SECONDS).is_complete


jobs: Final = BackgroundJobs(
    (
        Job("roll_up", timedelta(), timedelta(minutes=10), _roll_up),
        Job("prune", timedelta(days=1), timedelta(days=2), _prune),
    ),
    _roll_up_own,
)
"""The jobs of this process."""
