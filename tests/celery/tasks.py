"""The tasks that the workers of the tests run; each says in Redis what it did and when."""

from __future__ import annotations

import os
from functools import cache
from threading import Event
from typing import Any, cast

from celery import chord
from celery.exceptions import SoftTimeLimitExceeded
from redis import Redis

from limits_app import limits
from limits_app.integrations.celery import LimitedTask, limited_task
from limits_app.stores.redis.opening import DEFAULTS
from tests.celery.app import app

# What a killed process held is free after the lease, which no setting makes shorter.
cast("dict[str, float]", DEFAULTS)["lease_seconds"] = 3.0


@cache
def diary() -> Redis:
    """Where tasks say what they did."""
    return Redis.from_url(f"{os.environ['LIMITS_TEST_REDIS']}/3", decode_responses=True)


_NOTE = """
local now = redis.call('TIME')
redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. string.format('%d%06d', now[1], now[2]))
"""


_NOTE_ONCE = f"""
if redis.call('SADD', KEYS[2], ARGV[2]) == 1 then
  {_NOTE}
end
"""


def note(page: str, line: object) -> None:
    """Write a line, and the server's time in microseconds."""
    diary().eval(_NOTE, 1, page, str(line))


def note_once(page: str, line: object, key: str) -> None:
    """Write a line unless one was written with this key, in the same step in which that is noted."""
    diary().eval(_NOTE_ONCE, 2, page, f"{page}:keys", str(line), key)


@limited_task("work", entity="tenant:{tenant}", app=app, bind=True, acks_late=True, max_retries=0)
def work(self: LimitedTask, tenant: str, number: int) -> int:
    """Done as soon as it may run; a single retry would be one too many."""
    assert self.limits.entity == f"tenant:{tenant}"
    diary().rpush("begun", f"{number} {self.limits.acquisition.claim.decided_at}")
    note("done", number)
    return number


@limited_task("work", entity="tenant:strict", app=app, bind=True, acks_late=True, max_retries=0)
def endure(self: LimitedTask, number: int) -> int:
    """Takes so long that it can be killed in the middle; what it does has its id as the idempotency key."""
    diary().rpush("begun", f"{number}/{os.getpid()} {self.limits.acquisition.claim.decided_at}")
    Event().wait(0.05)
    note("ended", number)
    note_once("done", number, self.request.id)
    return number


@limited_task("tokens", requested={"tpm": "job.tokens"}, app=app, bind=True, acks_late=True)
def spend(self: LimitedTask, job: dict[str, int]) -> int:
    """Uses less than it asked for."""
    self.limits.update({"tpm": job["used"]})
    return job["used"]


@limited_task("desk", app=app, bind=True, acks_late=True, max_retries=3)
def hold(self: LimitedTask, seconds: float, retries: int = 0) -> int:
    """Holds a permit; meanwhile somebody may end it. Afterwards it may want to be tried again."""
    note("held", os.getpid())
    try:
        Event().wait(seconds)
    except SoftTimeLimitExceeded:
        note("interrupted", os.getpid())
        raise
    if self.request.retries < retries:
        raise self.retry(countdown=0.5)
    return int(self.request.retries)


@limited_task("inside", app=app, bind=True, acks_late=True)
def ask_inside(self: LimitedTask, number: int) -> int:
    """Asks for more when it is running already."""
    with self.limits.acquire(resource="work", entity="tenant:inside"):
        note("inside", number)
    return number


@app.task
def wait_for_desk(number: int) -> int:
    """Waits for the only desk in its thread or greenlet, and keeps it for a while."""
    note("asked", number)
    with limits.acquire("desk", timeout=60):
        note("sat", number)
        Event().wait(0.2)
    return number


@app.task
def say(number: int) -> int:
    """Needs nothing."""
    note("said", number)
    return number


@app.task
def spend_slices(number: int) -> int:
    """Spend some of a slice, and be rejected as often; returns how much was spent."""
    for _ in range(number):
        with limits.acquire("hot", requested={"units": 1}) as acquisition:
            acquisition.update({"units": 1})
        limits.try_acquire("full")
    return number


@app.task
def total(numbers: list[int]) -> int:
    """The end of a chord."""
    note("total", sum(numbers))
    return sum(numbers)


@app.task
def start_chord(numbers: list[int]) -> Any:
    """Begin a chord where the application is at home."""
    return chord([work.s("chord", number) for number in numbers])(total.s()).id
