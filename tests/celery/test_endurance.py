"""What two workers do for a while when processes of theirs are killed in the middle of tasks."""

from __future__ import annotations

import pytest

from tests.celery.endurance import PER_SECOND, endure


@pytest.mark.slow
@pytest.mark.release
def test_killed_processes_lose_no_task_and_none_is_done_twice() -> None:
    found = endure(10, kill_every=4)
    assert (found.lost, found.twice) == (0, 0)
    assert found.begun_again == found.kills > 0
    assert found.fullest_window <= PER_SECOND
    # How much of the limit is used is measured on a machine that does nothing else: `python -m tests.celery.endurance`.
    assert found.share > 0.5
