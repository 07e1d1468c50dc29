"""Objects that are gone through while other threads add to them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from limits_app.core.runtime import WeakRegistry
from limits_app.testing.conformance.concurrency import switch_interval

THREADS = 4
EACH = 3000


class Thing:
    """Something that can be referred to."""


def test_what_lives_is_there_once_and_what_is_gone_is_not() -> None:
    living = WeakRegistry[Thing]()
    first, second = Thing(), Thing()
    for one in (first, second, first):
        living.add(one)
    assert living.all() == [first, second]
    del first, one
    assert living.all() == [second]
    living.clear()
    assert living.all() == []


def test_the_place_of_one_that_is_gone_may_be_taken() -> None:
    living = WeakRegistry[Thing]()
    for _ in range(100):
        thing = Thing()
        living.add(thing)
        assert living.all() == [thing]


def test_it_can_be_gone_through_while_others_come_and_go() -> None:
    living, done = WeakRegistry[Thing](), Event()

    def come_and_go() -> None:
        kept = []
        for turn in range(EACH):
            thing = Thing()
            living.add(thing)
            if turn % 10 == 0:
                kept.append(thing)
        done.wait()
        assert all(thing in living.all() for thing in kept)

    with switch_interval(1e-6), ThreadPoolExecutor(THREADS) as executor:
        coming = [executor.submit(come_and_go) for _ in range(THREADS)]
        while len(living.all()) < THREADS * EACH // 10:
            pass
        done.set()
        for one in coming:
            one.result()
