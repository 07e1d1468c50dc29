"""Background jobs: roll-up and pruning, which one process of the site does where no task or command is scheduled.

A process that answers requests or runs tasks starts a thread. The thread that gets the lease of a job, a row in the
database, does it until it ends; then another process takes over. While a job is behind, other processes get leases of
parts of it, and help. Stores that only one machine sees are rolled up by a process of each machine. No job is done in
a test runner, in a management command, or in a process that only forks others, since these answer no requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

from django.db import connections
from django.db.models import Q, QuerySet

from limits_app import conf
from limits_app.acquiring import on_fork
from limits_app.conf import test_runner
from limits_app.engine import SECOND_US, Clock, as_clock, monotonic_us, unique_name
from limits_app.models import BackgroundJob, helper_name, job_row, leased_helpers
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
from limits_app.services.usage import ROLL_UP, ROLL_UP_HELPERS, add_counts, machine_roll_up, roll_up_all
from limits_app.stores.background import BackgroundTask
from limits_app.usage.writer import is_writing_in_background

logger = logging.getLogger("limits_app")

_HOLDER_US: Final = 60 * SECOND_US
"""How often a process that does a job looks whether it is due."""
_OTHERS_US: Final = 600 * SECOND_US
"""How often the other processes look whether the lease of a job has ended."""
_LEASE: Final = timedelta(minutes=5)
_PRUNE_SECONDS: Final = 60.0
_BEHIND: Final = timedelta(minutes=3)
"""How long after it was last finished a job that is due at each look is behind, so that others help."""


class Job(NamedTuple):
    """A job: how often it is due, and for how long after a scheduled run it is left to the schedule.

    `run` returns whether the job is finished; if not, it is due again at the next look, which is after a second where
    others can help. `help` does the part of the helper of a number, and returns whether nothing is left for it.
    A job that each machine does for itself has `name_here`, which returns its name there, or None for nothing to do.
    """

    name: str
    every: timedelta
    scheduled: timedelta
    run: Callable[[], bool]
    help: Callable[[int], bool] | None = None
    helpers: Iterable[int] = ()
    name_here: Callable[[], str | None] | None = None


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
        self.jobs = jobs
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
        self._is_unfinished = False

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
        for job in self.jobs:
            name = job.name if job.name_here is None else job.name_here()
            if name is None:
                continue
            row = job_row(name)
            if not self._lease(row, job):
                holds = self._help(row, job) or holds
                continue
            holds = True
            now = in_site_time(self._now())
            if not row.filter(Q(ran_at=None) | Q(ran_at__lte=now - job.every)).exists():
                continue
            if job.run():
                row.filter(holder=self._holder).update(ran_at=now)
            elif job.help is not None:
                self._is_unfinished = True
        return holds

    def _help(self, row: QuerySet[BackgroundJob], job: Job) -> bool:
        """Do a part of a job that another process does and that is behind; returns whether there is a part."""
        now = self._now()
        is_behind = Q(leased_until__gte=in_site_time(now), ran_at__lt=in_site_time(now - job.every - _BEHIND))
        if job.help is None or not row.filter(is_behind).exclude(self._is_scheduled(job)).exists():
            return False
        for number in sorted({*job.helpers} - leased_helpers(job.name, job.helpers, since=now, but=self._holder)):
            part = job_row(helper_name(job.name, number))
            if not self._lease(part, job):
                continue
            if job.help(number):
                part.filter(holder=self._holder).update(holder="", leased_until=in_site_time(self._now()))
            else:
                self._is_unfinished = True
            return True
        return False

    def _lease(self, row: QuerySet[BackgroundJob], job: Job) -> bool:
        """Get or keep the lease of a job, which is not given while the job is scheduled."""
        now = self._now()
        is_free = Q(holder=self._holder) | Q(leased_until=None) | Q(leased_until__lt=in_site_time(now))
        until = in_site_time(now + _LEASE)
        free = row.filter(is_free).exclude(self._is_scheduled(job))
        return free.update(holder=self._holder, leased_until=until) > 0

    def _is_scheduled(self, job: Job) -> Q:
        """Whether a task, a command or code does a job."""
        return Q(scheduled_at__isnull=False, scheduled_at__gte=in_site_time(self._now() - job.scheduled))

    def _step(self) -> int:
        if test_runner.current_test() is not None:
            return _OTHERS_US
        self._is_unfinished = False
        try:
            holds = [self._run_in(namespace) for namespace in _namespaces()]
        except Exception as error:  # noqa: BLE001 - a thread has no caller; the next round tries again
            self._log(error)
            return _OTHERS_US
        finally:
            connections.close_all()  # those of this thread
        if self._is_unfinished:
            return SECOND_US
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
    return roll_up_all(_aliases(shared=True)).is_complete


def _roll_up_machine() -> bool:
    return add_counts(_aliases(shared=False)).is_complete


def _aliases(*, shared: bool) -> list[str]:
    """The stores that other machines see too, or else those that only this machine sees."""
    process = conf.StoreKind.PROCESS
    return [alias for alias in conf.get(conf.STORES) if (conf.store_settings(alias).kind is not process) is shared]


def _help_to_roll_up(number: int) -> bool:
    """Add what this helper collects of the stores that have so many collectors."""
    rolled_up = add_counts(helper=number)
    return rolled_up.is_complete or not any(rolled_up.added.values())


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
        Job(ROLL_UP, timedelta(), timedelta(minutes=10), _roll_up, _help_to_roll_up, ROLL_UP_HELPERS),
        Job(f"{ROLL_UP} of a machine", timedelta(), timedelta(minutes=10), _roll_up_machine, name_here=machine_roll_up),
        Job("prune", timedelta(days=1), timedelta(days=2), _prune),
    ),
    _roll_up_own,
)
"""The jobs of this process."""
