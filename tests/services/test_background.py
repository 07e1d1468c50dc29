"""Roll-up and pruning run by themselves: one process does them, unless a task or a command does."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.signals import request_finished
from django.db import connections
from pytest_django import Settings

from limits_app import CallLimit, limits
from limits_app.conf import test_runner
from limits_app.models import BackgroundJob, UsagePeriod, UsageSnapshot, note_scheduled
from limits_app.services.background import BackgroundJobs, Job, jobs
from limits_app.testing import FakeClock
from limits_app.usage import pruning
from limits_app.usage.writer import write_in_background
from tests.forking import exit_code_of_child
from tests.stores.database.databases import ALIAS

HOUR = 3600
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


class Site:
    """Processes with a clock, and the jobs that they have done."""

    def __init__(self) -> None:
        self.now = NOON
        self.clock = FakeClock()
        self.done: list[str] = []
        self.finishes = True

    def process(self, name: str, *, owns: bool = False) -> BackgroundJobs:
        """A process with two jobs: one at every look, and one each day."""
        listed = (
            Job("often", timedelta(), 10 * MINUTE, lambda: self.do(f"{name} often")),
            Job("daily", DAY, 2 * DAY, lambda: self.do(f"{name} daily")),
        )
        return BackgroundJobs(listed, lambda: owns and self.do(f"{name} own"), clock=self.clock, now=lambda: self.now)

    def sharing(self, name: str) -> BackgroundJobs:
        """A process with a job that two others can help with."""

        def help_with(number: int) -> bool:
            return self.do(f"{name} helps as {number}")

        job = Job("often", timedelta(), 10 * MINUTE, lambda: self.do(f"{name} often"), help_with, (1, 2))
        return BackgroundJobs((job,), lambda: False, clock=self.clock, now=lambda: self.now)

    def do(self, what: str) -> bool:
        self.done.append(what)
        return self.finishes

    def taken(self) -> list[str]:
        """What was done since the last call."""
        done, self.done = self.done, []
        return done


@pytest.fixture
def site() -> Site:
    write_in_background(True)
    return Site()


@pytest.mark.django_db
def test_one_process_does_the_jobs_and_another_takes_over_after_its_lease(site: Site) -> None:
    first, second = site.process("first"), site.process("second")
    assert [first.run_due(), second.run_due()] == [True, False]
    assert site.taken() == ["first often", "first daily"]
    site.now += MINUTE
    assert [second.run_due(), first.run_due()] == [False, True]
    assert site.taken() == ["first often"]
    site.now += 5 * MINUTE
    assert not second.run_due(), "the lease lasts five minutes"
    site.now += timedelta(microseconds=1)
    assert [second.run_due(), first.run_due()] == [True, False]
    assert site.taken() == ["second often"]


@pytest.mark.django_db
def test_a_job_is_done_again_when_its_time_is_over_or_it_was_not_finished(site: Site) -> None:
    process, site.finishes = site.process("one"), False
    for is_due in (True, True, False):
        process.run_due()
        assert ("one daily" in site.taken()) is is_due
        site.now, site.finishes = site.now + MINUTE, True
    site.now = NOON + MINUTE + DAY
    process.run_due()
    assert "one daily" in site.taken()


@pytest.mark.django_db
def test_others_help_while_a_job_is_behind_each_with_a_part(site: Site) -> None:
    first, *others = [site.sharing(name) for name in ("first", "second", "third", "fourth")]
    first.run_due()
    site.finishes = False
    for minutes, helping in ((3, []), (4, ["second helps as 1", "third helps as 2"])):
        site.now = NOON + minutes * MINUTE
        assert first.run_due()
        assert [other.run_due() for other in others] == [bool(helping), bool(helping), False]
        assert [done for done in site.taken() if done != "first often"] == helping
    site.now += MINUTE
    assert [others[1].run_due(), others[0].run_due()] == [True, True]
    assert site.taken() == ["third helps as 2", "second helps as 1"], "each keeps its part"
    first.run_due()
    site.finishes = True
    assert others[0].run_due()
    site.now += timedelta(microseconds=1)
    assert others[2].run_due()
    assert site.taken()[1:] == ["second helps as 1", "fourth helps as 1"], "a part is free when nothing is left"
    first.run_due()
    assert not any(other.run_due() for other in others), "the job is no longer behind"


@pytest.mark.django_db
def test_the_part_of_a_helper_that_was_killed_is_taken_over_after_its_lease(site: Site) -> None:
    first, second, third = (site.sharing(name) for name in ("first", "second", "third"))
    first.run_due()
    site.finishes = False
    site.now = NOON + 4 * MINUTE
    first.run_due()
    assert second.run_due()
    site.now += 5 * MINUTE
    first.run_due()
    assert third.run_due()
    site.now += timedelta(microseconds=1)
    fourth = site.sharing("fourth")
    assert fourth.run_due()
    assert site.taken()[-2:] == ["third helps as 2", "fourth helps as 1"]
    note_scheduled("often", now=site.now)
    assert not any(process.run_due() for process in (first, second, third, fourth)), "it is left to a task"


@pytest.mark.django_db
def test_what_a_task_or_command_does_is_left_to_it(site: Site) -> None:
    process = site.process("one")
    note_scheduled("often", now=site.now)
    process.run_due()
    assert site.taken() == ["one daily"]
    site.now += 10 * MINUTE
    process.run_due()
    assert site.taken() == []
    site.now += timedelta(microseconds=1)
    process.run_due()
    assert site.taken() == ["one often"]
    note_scheduled("daily", now=site.now)
    site.now += 2 * DAY
    process.run_due()
    assert site.taken() == ["one often"]


@pytest.mark.django_db
def test_the_roll_up_and_the_pruning_of_code_count_as_scheduled() -> None:
    limits.roll_up()
    limits.prune_usage()
    assert [*BackgroundJob.objects.filter(scheduled_at=None)] == []
    assert {*BackgroundJob.objects.values_list("name", flat=True)} == {"roll_up", "prune"}


@pytest.mark.django_db(transaction=True)
def test_a_thread_looks_every_minute_while_it_does_jobs(site: Site) -> None:
    process, other = site.process("first"), site.process("second", owns=True)
    with test_runner.ignored():
        process.start()
        process.start()
        assert site.taken() == []
        site.clock.advance(60)
        assert site.taken() == ["first often", "first daily"]
        other.start()
        for _ in range(3):
            site.now += MINUTE
            site.clock.advance(60)
            assert {*site.taken()} == {"first often", "second own"}


@pytest.mark.django_db(transaction=True)
def test_nothing_is_done_in_a_test_runner_or_where_it_is_switched_off(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = site.process("one")
    with monkeypatch.context() as runner:
        runner.setattr(test_runner, "current_test", object)
        process.start()
        site.clock.advance(HOUR)
        assert site.taken() == []
    settings.LIMITS = {"BACKGROUND_JOBS": False}
    process.start()
    site.clock.advance(HOUR)
    assert site.taken() == []


@pytest.mark.django_db(transaction=True)
def test_an_error_is_logged_once_and_the_job_tried_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    failing = True

    def run() -> bool:
        if failing:
            raise OSError("the disk is full")
        return site.do("done")

    process = BackgroundJobs((Job("often", timedelta(), MINUTE, run),), bool, clock=site.clock, now=lambda: site.now)
    with test_runner.ignored(), caplog.at_level(logging.WARNING, "limits_app"):
        process.start()
        site.clock.advance(2 * HOUR)
        assert caplog.text.count("background jobs failed") == 1
        assert "the disk is full" in caplog.text
        failing = False
        site.clock.advance(HOUR)
    assert site.taken()[0] == "done"


def test_a_forked_child_starts_a_thread_of_its_own(site: Site) -> None:
    process = site.process("one")
    with test_runner.ignored():
        process.start()
        assert exit_code_of_child(lambda: int(process.is_started)) == 0
    assert process.is_started


def test_the_first_request_starts_the_thread(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    started: list[object] = []
    monkeypatch.setattr(jobs, "start", lambda **_: started.append(1))
    settings.LIMITS = {}  # which has it started again
    for _ in range(3):
        request_finished.send(sender=None)
    assert started == [1]


@pytest.mark.django_db(transaction=True)
def test_each_machine_rolls_up_the_store_that_it_alone_sees(settings: Settings, tmp_path: Path, site: Site) -> None:
    for machine in ("first", "second", "third"):
        settings.LIMITS = {"STATE_DIR": tmp_path / machine}
        assert limits.try_acquire("api", entity=f"user:{machine}", default_limits=[CallLimit(5, HOUR)])
        processes = [BackgroundJobs(jobs.jobs, bool, clock=site.clock) for _ in range(2)]
        assert [process.run_due() for process in processes] == [True, False], "one process of each machine"
    rolled_up = UsageSnapshot.objects.filter(period=UsagePeriod.HOUR).values_list("entity", flat=True)
    assert {*rolled_up} == {"user:first", "user:second", "user:third"}
    assert BackgroundJob.objects.filter(name__startswith="roll_up:").count() == 3
    limits.roll_up()
    assert BackgroundJob.objects.filter(scheduled_at__isnull=False).count() == 2, "the site's, and this machine's"
    pruning.prune(now=datetime.now(UTC) + timedelta(days=8))
    assert BackgroundJob.objects.count() == 5
    BackgroundJob.objects.filter(name="prune").update(scheduled_at=datetime.now(UTC) + timedelta(days=9))
    pruning.prune(now=datetime.now(UTC) + timedelta(days=10))
    assert [job.name for job in BackgroundJob.objects.all()] == ["prune"], "those of machines that are gone are deleted"


@pytest.mark.django_db
def test_each_process_rolls_up_the_counts_of_its_memory(settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    note_scheduled("roll_up")
    assert limits.try_acquire("api", entity="user:1", default_limits=[CallLimit(5, HOUR)])
    assert jobs.run_own()
    assert UsageSnapshot.objects.get(period=UsagePeriod.HOUR).admitted == 1


@pytest.mark.slow
@pytest.mark.usefixtures("site_database")
def test_of_processes_that_look_at_the_same_time_one_gets_the_lease(site: Site) -> None:
    def run(process: BackgroundJobs) -> bool:
        try:
            return process.run_due()
        finally:
            connections[ALIAS].close()

    with ThreadPoolExecutor(4) as threads:
        for turn in range(5):
            processes = [site.process(f"{turn}-{number}") for number in range(4)]
            assert sum(threads.map(run, processes)) >= 1
            assert sorted(what.partition(" ")[2] for what in site.taken()).count("often") == 1
            site.now += 10 * MINUTE
