"""MySQL and MariaDB: steps are transactions of a few statements."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from limits_app.stores.database.links import Failure, Link

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from limits_app.stores.database.links import LinkOptions

__all__ = ["MySQLLink"]

_DEADLOCK: Final = 1213
_FROM_THE_CLIENT: Final = range(2000, 3000)
"""Errors that no server has sent: it is gone, or was never there."""
_MISSING: Final = {1054, 1146}
"""There is no such column, or no such table."""
_NO_ANSWER: Final = 0
_SHUTTING_DOWN: Final = {1053, 1927, 4031}


class MySQLLink(Link):
    """A connection to MySQL or MariaDB, by the driver that Django uses."""

    begins = "START TRANSACTION"
    adds = ("INSERT IGNORE INTO", "")
    clock = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"

    @classmethod
    def configure(cls, wrapper: BaseDatabaseWrapper, options: LinkOptions) -> None:
        """Wait for the server not for long."""
        given = wrapper.settings_dict["OPTIONS"]
        given["connect_timeout"] = max(ceil(options.connect_timeout), 1)
        given["read_timeout"] = given["write_timeout"] = max(ceil(options.reply_timeout), 2)

    def prepare(self) -> None:
        """Wait not long for locks, nor let others wait, and lock rows only, not what lies between them."""
        idle = ceil(self.options.idle_timeout)
        lock = max(round(self.options.lock_timeout), idle + 1)
        # MySQL has no end for transactions of clients that say nothing, and skips what MariaDB reads here.
        self.run(f"SET SESSION innodb_lock_wait_timeout = {lock} /*M!100300 , idle_transaction_timeout = {idle} */")
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        # The hour that comes twice when summer ends is two hours here.
        self.run("SET time_zone = '+00:00'")

    def meaning(self, error: Exception) -> Failure:
        """By the number of the error."""
        number = error.args[0] if error.args else _NO_ANSWER
        return Failure(
            number == _DEADLOCK,
            lost=number in _FROM_THE_CLIENT or number in _SHUTTING_DOWN or number == _NO_ANSWER,
            silent=isinstance(error.__context__, TimeoutError),
            unmigrated=number in _MISSING,
        )
