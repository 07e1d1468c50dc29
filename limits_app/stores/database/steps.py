"""Steps: what a store does with one link, again where it got in the way of others, and never twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from random import random
from threading import local
from time import sleep
from typing import TYPE_CHECKING, Final, TypeVar

from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import on_fork

if TYPE_CHECKING:
    from limits_app.core.claim import Claim
    from limits_app.stores.database.links import Link, Promise
    from limits_app.stores.database.pool import LinkPool

__all__ = ["Steps"]

T = TypeVar("T")

_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.001
_MOST_DOUBTS: Final = 10_000


class _Here(local):
    """What the running thread is doing."""

    def __init__(self) -> None:
        self.stepping = False
        self.later: list[Callable[[], None]] = []


class Steps:
    """Takes steps of a process, each with a link of its own."""

    def __init__(self, pool: LinkPool) -> None:
        self._pool = pool
        self._here = _Here()
        self._doubts: dict[Claim, Promise] = {}
        on_fork(self)

    def after_fork(self) -> None:
        """A child has nothing to do with what its parent was at."""
        self._here = _Here()
        self._doubts = {}

    def is_stepping(self) -> bool:
        """Whether the running thread is in the middle of a step: what asks now is a finalizer or a signal handler."""
        return self._here.stepping

    def take(self, work: Callable[[Link], T], claim: Claim | None = None) -> T | None:
        """The result of `work`; None when it turned out that it was done for this claim before.

        Raises StoreUnavailable when it cannot be done, or when nobody can say whether it was;
        asked for the same claim again, it is done exactly once.
        """
        if self._here.stepping:
            raise StoreUnavailable("nobody can ask in the middle of a step")
        if self._pool.is_busy:  # whom we would wait for may be waiting for us
            self._pool.kind.check_caller(self._pool.alias)
        self._here.stepping = True
        try:
            with self._pool.turn if self._pool.kind.takes_turns else nullcontext():
                return self._taken(work, claim)
        finally:
            self._here.stepping = False

    def do_later(self, deed: Callable[[], None]) -> None:
        """Do something once the step has been taken that the running thread is in."""
        self._here.later.append(deed)

    def catch_up(self) -> None:
        """Do what was put off in the middle of the last step."""
        while self._here.later:
            self._here.later.pop(0)()

    def _taken(self, work: Callable[[Link], T], claim: Claim | None) -> T | None:
        failure: Exception | None = None
        for tried in range(_TRIES):
            link = self._pool.take()
            try:
                done = claim is not None and claim in self._doubts and self._was_done(link, claim)
                result = None if done else work(link)
            except link.error as error:
                self._failed(link, error, claim)
                failure = error
                # Those who were in each other's way come back at different times.
                sleep(random() * tried * _PAUSE_SECONDS)
            except BaseException as error:
                self._interrupted(link, error, claim)
                raise
            else:
                self._pool.give(link)
                return result
        raise StoreUnavailable(
            f"the database {self._pool.alias!r} could not do it in {_TRIES} tries: {failure}"
        ) from failure

    def _failed(self, link: Link, error: Exception, claim: Claim | None) -> None:
        """Raises StoreUnavailable, unless it is worth another try."""
        meaning = link.meaning(error)
        if meaning.lost or not link.is_alive():
            self._lost(link, claim)
            if meaning.silent:
                raise StoreUnavailable(f"the database {self._pool.alias!r} does not answer: {error}") from error
            return
        link.promise = None
        self._pool.give(link)
        if not meaning.transient:
            alias = self._pool.alias
            advice = f"; run `manage.py migrate --database {alias}`" if meaning.unmigrated else ""
            why = str(error).partition("\n")[0]  # what follows is the statement
            raise StoreUnavailable(f"the database {alias!r} cannot do it: {why}{advice}") from error

    def _interrupted(self, link: Link, error: BaseException, claim: Claim | None) -> None:
        """Something else came up: a link that was not in the middle of something is good for another step."""
        if isinstance(error, Exception) and link.promise is None and link.is_alive():
            self._pool.give(link)
        else:
            self._lost(link, claim)

    def _lost(self, link: Link, claim: Claim | None) -> None:
        """Part with a link, and with those that have probably met the same."""
        if claim is not None and link.promise is not None:
            while len(self._doubts) >= _MOST_DOUBTS:
                self._doubts.pop(next(iter(self._doubts)))
            self._doubts[claim] = link.promise
        self._pool.drop(link)
        self._pool.drop_idle()

    def _was_done(self, link: Link, claim: Claim) -> bool:
        """Whether what was sent for a claim, and never answered, has been done; then it is taken as answered."""
        promise = self._doubts[claim]
        done = link.was_done(promise)
        self._doubts.pop(claim, None)
        if done:
            promise.conclude()
        return done
