"""Limited tasks in real workers on a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from operator import itemgetter

import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from tests.celery.site import PATIENCE, ROOT, CelerySite, celery_site
from tests.servers.rabbitmq import rabbitmq_server
from tests.servers.redis import until


@pytest.mark.slow  # as long as the limit says
@pytest.mark.alone
@pytest.mark.release
def test_a_thousand_tasks_end_in_little_more_than_the_least_time_that_the_limit_allows(site: CelerySite) -> None:
    sent = [site.send("work", "bulk", number) for number in range(1000)]
    assert sorted(result.get(timeout=PATIENCE) for result in sent) == list(range(1000))
    moments = [moment for _, moment in site.lines("begun")]
    assert len(moments) == 1000
    least = (1000 - 10) / 100
    # A quarter more, since the machine may be busy with other things.
    assert least * 0.99 <= (max(moments) - min(moments)) / 1_000_000 <= least * 1.25


@pytest.mark.slow  # as long as the limit says
def test_tasks_run_in_the_order_in_which_they_were_sent(site: CelerySite) -> None:
    sent = [site.send("work", "ordered", number) for number in range(80)]
    assert sorted(result.get(timeout=PATIENCE) for result in sent) == list(range(80))
    order = [int(text) for text, _ in sorted(site.lines("begun"), key=itemgetter(1))]
    assert sum(abs(place - number) for place, number in enumerate(order)) / 80 <= 0.05 * 80


def test_a_chord_ends_once_although_its_tasks_were_queued_again(site: CelerySite) -> None:
    site.send("start_chord", list(range(30))).get(timeout=PATIENCE)
    until(lambda: bool(site.lines("total")), "the chord does not end")
    assert [text for text, _ in site.lines("total")] == [str(sum(range(30)))]
    assert len(site.lines("done")) == 30


def test_usage_that_is_reported_leaves_the_rest_to_others(site: CelerySite) -> None:
    used = [site.send("spend", {"tokens": 60, "used": 10}).get(timeout=PATIENCE) for _ in range(4)]
    assert used == [10, 10, 10, 10]


def test_waiting_uses_up_no_retries_and_nothing_is_held_between_them(site: CelerySite) -> None:
    retrying = site.send("hold", 0.2, 2)
    others = [site.send("hold", 0.2) for _ in range(3)]
    assert retrying.get(timeout=PATIENCE) == 2
    assert [other.get(timeout=PATIENCE) for other in others] == [0, 0, 0]
    # One permit: whoever held it between the retries of the first, it was not that one.
    assert len(site.lines("held")) == 3 + 3


def test_a_refusal_that_leaves_the_body_queues_the_task_again(site: CelerySite) -> None:
    sent = [site.send("ask_inside", number) for number in range(30)]
    assert sorted(result.get(timeout=PATIENCE) for result in sent) == list(range(30))
    moments = [moment for _, moment in site.lines("inside")]
    assert max(moments) - min(moments) >= 900_000


def test_a_task_that_is_interrupted_in_its_time_gives_its_permit_back(site: CelerySite) -> None:
    slow = site.send("hold", PATIENCE, soft_time_limit=1)
    error = slow.get(timeout=PATIENCE, propagate=False)
    assert type(error).__name__ == "SoftTimeLimitExceeded"
    assert site.send("hold", 0).get(timeout=5) == 0


@pytest.mark.slow  # until a lease ends
def test_permits_of_killed_tasks_are_free_again(site: CelerySite) -> None:
    revoked = site.send("hold", PATIENCE)
    until(lambda: len(site.lines("held")) == 1, "it does not begin")
    revoked.revoke(terminate=True, signal="SIGKILL")
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=PATIENCE)
    timed_out = site.send("hold", PATIENCE, time_limit=1)
    with pytest.raises(TimeLimitExceeded):
        timed_out.get(timeout=PATIENCE)
    assert site.send("hold", 0).get(timeout=PATIENCE) == 0


@pytest.mark.slow  # until a lease ends
def test_a_task_whose_process_is_killed_runs_again_in_another_one(site: CelerySite) -> None:
    killed = site.send("hold", 1)
    until(lambda: len(site.lines("held")) == 1, "it does not begin")
    os.kill(int(site.lines("held")[0][0]), signal.SIGKILL)
    assert killed.get(timeout=PATIENCE) == 0
    assert len(site.lines("held")) == 2


def test_a_waiting_task_can_be_revoked(site: CelerySite) -> None:
    holder = site.send("hold", 3)
    until(lambda: len(site.lines("held")) == 1, "it does not begin")
    waiting = site.send("hold", 0)
    waiting.revoke()
    with pytest.raises(TaskRevokedError):
        waiting.get(timeout=PATIENCE)
    assert holder.get(timeout=PATIENCE) == 0


@pytest.mark.product
@pytest.mark.slow  # until the worker has started
def test_children_that_end_after_some_tasks_return_their_slices_and_write_their_rejections() -> None:
    with celery_site() as site:
        site.prepare()
        worker = site.start_worker(2, "--max-tasks-per-child=2")
        site.until_ready()
        sent = [site.send("spend_slices", 20) for _ in range(12)]
        assert sum(result.get(timeout=PATIENCE) for result in sent) == 240
        worker.terminate()  # ends the children that have had one task only
        worker.wait(PATIENCE)
        assert _reported(site) == (240, 239)


def _reported(site: CelerySite) -> tuple[int, int]:
    """Return what the site has used of `hot`, and how often `full` has rejected."""
    program = (
        "import django; django.setup(); from limits_app import limits; limits.roll_up(); "
        "print(limits.status('hot').limits['units']['used'], sum(one.count for one in limits.denials(resource='full')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=site.environment, check=True, capture_output=True, text=True
    )
    used, rejected = ended.stdout.split()[-2:]
    return int(used), int(rejected)


@pytest.mark.product
@pytest.mark.slow  # until the server has started
@pytest.mark.release
def test_rabbitmq_gives_the_tasks_of_a_dead_worker_to_another_one_and_loses_none() -> None:
    with rabbitmq_server() as broker, celery_site(broker=broker) as site:
        site.prepare()
        first, _ = site.start_worker(processes=2), site.start_worker(processes=2)
        site.until_ready()
        sent = [site.send("work", "strict", number) for number in range(100)]
        until(lambda: len(site.lines("begun")) >= 40, "they do not begin")
        site.kill(first)
        assert sorted(result.get(timeout=PATIENCE) for result in sent) == list(range(100))
        moments = sorted(moment for _, moment in site.lines("begun"))
        assert all(later - earlier >= 1_000_000 for earlier, later in zip(moments, moments[20:], strict=False))
        assert {text for text, _ in site.lines("done")} == {str(number) for number in range(100)}

        site.send("start_chord", list(range(5))).get(timeout=PATIENCE)
        until(lambda: bool(site.lines("total")), "the chord does not end")
        assert [text for text, _ in site.lines("total")] == ["10"]
