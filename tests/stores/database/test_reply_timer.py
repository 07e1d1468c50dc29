"""The timer of replies, for drivers without a timeout."""

from __future__ import annotations

from threading import Event

import pytest

from limits_app.stores.database import servers
from limits_app.stores.database.servers import ReplyTimer
from tests.stores.support import PATIENCE, until
from tests.threads import no_more_threads


class Waiting:
    """A connection that waits for a reply."""

    def __init__(self) -> None:
        self.interrupted = Event()

    def interrupt(self) -> None:
        assert not self.interrupted.is_set()
        self.interrupted.set()


def test_a_late_reply_is_interrupted_once_and_one_in_time_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_INTERVAL_US", 1000)
    monkeypatch.setattr(servers, "_IDLE_ROUNDS", 3)
    timer, late, early, patient = ReplyTimer(), Waiting(), Waiting(), Waiting()
    with timer.closing:  # so that the timer cannot look in between
        timer.start(early, 0)
        timer.stop(early)
    for _ in range(2):  # the second time, its thread has ended
        late.interrupted.clear()
        timer.start(late, 0)
        timer.start(patient, PATIENCE)
        assert late.interrupted.wait(PATIENCE)
        timer.stop(late)
        timer.stop(patient)
        until(lambda: timer._task._thread is None)
    assert not early.interrupted.is_set()
    assert not patient.interrupted.is_set()


def test_without_a_thread_replies_have_no_timeout_until_there_is_one() -> None:
    timer, waiting = ReplyTimer(), Waiting()
    with no_more_threads():
        timer.start(waiting, 0)
    timer.check()
    assert waiting.interrupted.is_set()
