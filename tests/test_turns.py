"""Who has a turn while somebody wants to be alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.turns import turn

PATIENCE = 20


class Guest:
    """Somebody who has a turn in a thread, from when it is granted until it is given back."""

    def __init__(self, directory: Path, *, alone: bool) -> None:
        self.inside, self.leaving = Event(), Event()
        self._thread = Thread(target=self._stay, args=(directory, alone))
        self._thread.start()

    def _stay(self, directory: Path, alone: bool) -> None:
        with turn(directory, alone=alone):
            self.inside.set()
            self.leaving.wait(PATIENCE)

    def waits(self) -> bool:
        """Whether it stands outside."""
        return not self.inside.wait(0.05)

    def leave(self) -> None:
        """Give the turn back."""
        self.leaving.set()
        self._thread.join(PATIENCE)


@pytest.fixture
def guests(tmp_path: Path) -> Iterator[list[Guest]]:
    """Two who share, one who wants to be alone, and one who comes after all of them."""
    with ExitStack() as stack:
        guests = []
        for alone in (False, False, True, False):
            guest = Guest(tmp_path, alone=alone)
            stack.callback(guest.leave)
            guests.append(guest)
            assert guest.inside.wait(PATIENCE) if len(guests) < 3 else guest.waits()
        yield guests


def test_a_test_that_runs_alone_waits_for_all_others_and_later_ones_wait_for_it(guests: list[Guest]) -> None:
    first, second, lone, late = guests
    first.leave()
    assert lone.waits()
    second.leave()
    assert lone.inside.wait(PATIENCE)
    assert late.waits()
    lone.leave()
    assert late.inside.wait(PATIENCE)


def test_a_child_that_lives_on_has_no_turn(tmp_path: Path) -> None:
    until, done = os.pipe()
    with turn(tmp_path, alone=True):
        child = os.fork()
        if child == 0:
            os.close(done)
            os.read(until, 1)
            os._exit(0)
    guest = Guest(tmp_path, alone=True)
    try:
        assert guest.inside.wait(PATIENCE)
    finally:
        os.close(done)
        os.waitpid(child, 0)
        os.close(until)
        guest.leave()
