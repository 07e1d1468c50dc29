"""The links of one process: as many as there are threads in the middle of a step, and some that wait for the next."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.utils.connection import ConnectionDoesNotExist

from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import around_fork
from limits_app.stores.database.mysql import MySQLLink
from limits_app.stores.database.opening import in_time
from limits_app.stores.database.postgresql import PostgresLink
from limits_app.stores.database.sqlite import SQLiteLink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limits_app.stores.database.links import Link, LinkOptions

__all__ = ["LinkPool"]

_KINDS: Final[Mapping[str, type[Link]]] = {"postgresql": PostgresLink, "mysql": MySQLLink, "sqlite": SQLiteLink}
_IDLE_SECONDS: Final = 60.0
_LIFE_SECONDS: Final = 3600.0

_INHERITED: Final[list[Link]] = []
"""Links of parent processes that were in use at a fork: closing one here would end it there."""


class LinkPool:
    """Opens links to one of the site's databases, and closes those that nobody has needed for a while."""

    def __init__(self, alias: str, options: LinkOptions) -> None:
        self.alias = alias
        self.options = options
        try:
            vendor = connections[alias].vendor
        except ConnectionDoesNotExist as error:
            raise ImproperlyConfigured(f"DATABASES has no {alias!r}, in which the state of limits is to be") from error
        if vendor not in _KINDS:
            raise ImproperlyConfigured(f"limits cannot be kept in {vendor}: name a database of {', '.join(_KINDS)}")
        self.kind = _KINDS[vendor]
        self._idle: deque[Link] = deque()
        # Also those that a renewal has opened after the store was closed.
        weakref.finalize(self, _close_all, self._idle)
        self._busy: set[Link] = set()
        self.turn = RLock()
        """For those who are to take turns, and around every fork."""
        around_fork(self)

    @property
    def is_busy(self) -> bool:
        """Whether somebody is in the middle of a step."""
        return bool(self._busy)

    def take(self) -> Link:
        """A link for one step; StoreUnavailable when none can be opened."""
        try:
            link = self._idle.pop()
        except IndexError:
            link = self._open()
        self._busy.add(link)
        return link

    def give(self, link: Link) -> None:
        """Put a link back that is in order."""
        self._busy.discard(link)
        link.used_at = now = monotonic()
        if now - link.opened_at > _LIFE_SECONDS:
            link.close()
        else:
            self._idle.append(link)
        with suppress(IndexError):  # another thread may take it
            if now - self._idle[0].used_at > _IDLE_SECONDS:
                self._idle.popleft().close()

    def drop(self, link: Link) -> None:
        """Part with a link that is of no use any more."""
        self._busy.discard(link)
        link.close()

    def close(self) -> None:
        """Close all links that wait."""
        _close_all(self._idle)

    drop_idle = close

    def before_fork(self) -> None:
        """No link survives a fork; those in use finish first where the file's locks would be mixed up."""
        self.turn.acquire()
        self.close()

    def after_fork(self) -> None:
        """A child opens links of its own."""
        _INHERITED.extend(self._busy)
        self._idle.clear()
        self._busy = set()
        self.turn = RLock()

    def _open(self) -> Link:
        wrapper = connections[self.alias].copy()
        wrapper.settings_dict["AUTOCOMMIT"] = True
        wrapper.inc_thread_sharing()  # another thread may open it
        self.kind.configure(wrapper, self.options)
        driver: Any = wrapper.Database  # type: ignore[attr-defined]  # every wrapper has it
        connect = partial(self.kind, wrapper, self.options)
        try:
            return in_time(connect, self.options.connect_timeout) if self.kind.is_far else connect()
        except TimeoutError as error:
            seconds = self.options.connect_timeout
            raise StoreUnavailable(f"the database {self.alias!r} cannot be reached within {seconds:g} s") from error
        except (Error, driver.Error) as error:
            raise StoreUnavailable(f"the database {self.alias!r} cannot be reached: {error}") from error


def _close_all(links: deque[Link]) -> None:
    while links:
        with suppress(IndexError):  # another thread may take it
            links.pop().close()
