"""How many connections a process uses at the same time, and how long others wait for one."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from time import monotonic

import pytest

from limits_app.acquiring.runtime import PROCESS
from limits_app.engine.errors import StoreUnavailable
from limits_app.stores.connection_limit import MOST_CONNECTIONS, ConnectionLimit
from tests.stores.support import PATIENCE


@pytest.fixture
def limit() -> ConnectionLimit:
    return ConnectionLimit()


def test_one_more_than_all_is_an_error_once_a_caller_has_found_the_server_silent(limit: ConnectionLimit) -> None:
    used = [limit.check_out(0) for _ in range(MOST_CONNECTIONS)]
    started = monotonic()
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(limit.check_out, 0.3)
        assert wait([waiting], 0.6).not_done  # the other callers may be waiting for the processor
        limit.silent()
        with pytest.raises(StoreUnavailable, match=r"none of 32 connections .* not answered for 0\.3 s"):
            waiting.result(PATIENCE)
    assert 0.6 <= monotonic() - started < 2
    limit.check_in(used.pop())
    assert limit.check_out(0)


def test_one_more_than_all_does_not_wait_indefinitely(limit: ConnectionLimit) -> None:
    used = [limit.check_out(0) for _ in range(MOST_CONNECTIONS)]
    with pytest.raises(StoreUnavailable, match=r"not answered for 0\.5 s"):
        limit.check_out(0.005)
    assert used


def test_the_wait_goes_on_while_the_server_answers_and_ends_with_a_free_connection(limit: ConnectionLimit) -> None:
    used = [limit.check_out(0) for _ in range(MOST_CONNECTIONS)]
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(limit.check_out, 0.2)
        for _ in range(10):
            Event().wait(0.05)
            limit.answered()
        assert not waiting.done()
        limit.check_in(used.pop())
        assert waiting.result(PATIENCE)


def test_dropped_checkouts_return_by_themselves(limit: ConnectionLimit) -> None:
    for _ in range(2 * MOST_CONNECTIONS):
        limit.check_out(0)
    used = [limit.check_out(0) for _ in range(MOST_CONNECTIONS)]
    with pytest.raises(StoreUnavailable):
        limit.check_out(0)
    del limit, used
    gc.collect()


def test_a_child_process_starts_with_all(limit: ConnectionLimit) -> None:
    used = [limit.check_out(0) for _ in range(MOST_CONNECTIONS)]
    child = os.fork()
    if child == 0:
        del used
        mine = [limit.check_out(0) for _ in range(MOST_CONNECTIONS)]
        try:
            limit.check_out(0)
        except StoreUnavailable:
            os._exit(len(mine) - MOST_CONNECTIONS)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert PROCESS.forks == 0
    assert len(used) == MOST_CONNECTIONS
