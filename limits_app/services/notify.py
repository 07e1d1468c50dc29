"""Notifications: observers and signals of decisions.

They cost next to nothing where no observer and no receiver is registered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from time import monotonic
from typing import Final, Protocol

from django.db import connections

from limits_app import signals
from limits_app.acquiring import Acquisition
from limits_app.engine.errors import LimitTimeout
from limits_app.engine.outcome import Outcome
from limits_app.services.near_limits import Crossing, thresholds
from limits_app.usage.denial_counter import denials

logger = logging.getLogger("limits_app")


class DecisionObserver(Protocol):
    """Counts decisions; must not block or raise."""

    def admitted(self, resource: str, priority: str = "") -> None:
        """A request on a resource was admitted, of a priority where a limit keeps a share free."""

    def refused(self, outcome: Outcome, *, waited: bool) -> None:
        """A request was rejected, perhaps after it had waited."""

    def waited(self, seconds: float) -> None:
        """A request has waited for `seconds`, whether it was admitted or not."""


OBSERVERS: Final[list[DecisionObserver]] = []
"""The observers of every decision in this process."""

_SENDING: Final[set[asyncio.Future[None]]] = set()


def rejected(outcome: Outcome, *, waited: bool = False) -> None:
    """Count a rejection, and notify observers and receivers."""
    denials.note(outcome)
    for observer in OBSERVERS:
        observer.refused(outcome, waited=waited)
    if signals.limit_exceeded.receivers:
        signals.limit_exceeded.send_robust(sender=None, outcome=outcome)


def admitted(resource: str, acquisition: Acquisition, *, in_task: bool = False) -> None:
    """Notify observers of a request that was admitted, and receivers of limits that are nearly used up.

    `in_task` calls receivers in a thread, and does not wait for them: they may use a database.
    """
    if OBSERVERS:
        priority = next((limit.priority for limit in acquisition.shape.limits if limit.priority), "")
        for admitted_on in _resources(acquisition, resource):
            for observer in OBSERVERS:
                observer.admitted(admitted_on, priority)
    if not signals.limit_near.receivers:
        return
    crossings = thresholds.crossings(acquisition)
    if crossings and in_task:
        sending = asyncio.get_running_loop().run_in_executor(None, copy_context().run, _send_in_thread, crossings)
        _SENDING.add(sending)
        sending.add_done_callback(_SENDING.discard)
    else:
        _send(crossings)


@contextmanager
def waiting() -> Iterator[None]:
    """Measure how long the block waits."""
    started = monotonic()
    try:
        yield
    except LimitTimeout:
        _report_wait(started)
        raise
    _report_wait(started)


def _report_wait(started: float) -> None:
    for observer in OBSERVERS:
        observer.waited(monotonic() - started)


def _resources(acquisition: Acquisition, resource: str) -> Collection[str]:
    """The resources of a request, without the pools that serve them."""
    scopes = acquisition.scopes
    if len(scopes) == 1:
        return (resource,)
    return {scope.resource or resource for scope in scopes if scope.member is None} or (resource,)


def _send(crossings: Sequence[Crossing]) -> None:
    try:
        for crossing in crossings:
            crossing.send()
    except Exception:
        logger.exception("the limit_near signal could not be sent")


def _send_in_thread(crossings: Sequence[Crossing]) -> None:
    try:
        _send(crossings)
    finally:
        connections.close_all()
