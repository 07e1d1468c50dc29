"""Watching: who is told of decisions, which costs nothing where nobody is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final, Protocol, TypeVar

from django.db import connections

from limits_app import signals
from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import LimitTimeout
from limits_app.core.outcome import Outcome
from limits_app.services.nearness import Crossing, nearness
from limits_app.usage import denials

__all__ = ["WATCHERS", "Watcher", "admitted", "admitted_in_task", "tell", "waiting"]

logger = logging.getLogger("limits_app")

T = TypeVar("T")


class Watcher(Protocol):
    """Somebody who counts decisions; must neither wait nor fail."""

    def admitted(self, resource: str) -> None:
        """A request was admitted on a resource."""

    def refused(self, outcome: Outcome, *, waited: bool) -> None:
        """A request was refused, perhaps after it had waited."""

    def waited(self, seconds: float) -> None:
        """A request has waited so long, and was admitted or not."""


WATCHERS: Final[list[Watcher]] = []
"""Whoever is in this list is told of every decision in this process."""

_TELLING: Final[set[asyncio.Future[None]]] = set()


def tell(outcome: Outcome, *, waited: bool = False) -> None:
    """Count a refusal, and let those who care know about it; nothing is formatted when nobody does."""
    denials.note(outcome)
    for watcher in WATCHERS:
        watcher.refused(outcome, waited=waited)
    if signals.limit_exceeded.receivers:
        signals.limit_exceeded.send_robust(sender=None, outcome=outcome)


def admitted(resource: str, decision: T) -> T:
    """Tell of what was admitted, if it was; other decisions, such as a look at what would be, are none."""
    if WATCHERS or signals.limit_near.receivers:
        _tell(_crossings(resource, decision))
    return decision


def admitted_in_task(resource: str, decision: T) -> T:
    """`admitted` for asyncio: receivers of signals, who may ask a database, do so in a thread and after the fact."""
    if WATCHERS or signals.limit_near.receivers:
        crossings = _crossings(resource, decision)
        if crossings:
            telling = asyncio.get_running_loop().run_in_executor(None, _tell_in_thread, crossings)
            _TELLING.add(telling)
            telling.add_done_callback(_TELLING.discard)
    return decision


@contextmanager
def waiting() -> Iterator[None]:
    """Measure how long the block waits."""
    if not WATCHERS:
        yield
        return
    started = monotonic()
    try:
        yield
    except LimitTimeout:
        _waited(monotonic() - started)
        raise
    _waited(monotonic() - started)


def _waited(seconds: float) -> None:
    for watcher in WATCHERS:
        watcher.waited(seconds)


def _crossings(resource: str, decision: object) -> Sequence[Crossing]:
    if not isinstance(decision, Acquisition) or not decision.successful:
        return ()
    if WATCHERS:
        resources = _resources(decision, resource)
        for watcher in WATCHERS:
            for one in resources:
                watcher.admitted(one)
    return nearness.crossings(decision) if signals.limit_near.receivers else ()


def _resources(acquisition: Acquisition, resource: str) -> Collection[str]:
    """What a request was about: several resources perhaps, whoever of a pool serves it."""
    if len(acquisition.claim.plan.scopes) == 1:
        return (resource,)
    scopes = [one.scope for one in acquisition.claim.plan.scopes]
    return {scope.resource or resource for scope in scopes if scope.member is None} or (resource,)


def _tell(crossings: Sequence[Crossing]) -> None:
    try:
        for crossing in crossings:
            crossing.tell()
    except Exception:
        logger.exception("that a limit is near its end could not be told")


def _tell_in_thread(crossings: Sequence[Crossing]) -> None:
    try:
        _tell(crossings)
    finally:
        connections.close_all()
