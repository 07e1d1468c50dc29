"""The version of the configuration, and the log of its changes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from struct import pack
from typing import Any

from limits_app.engine import Change, ChangeLog, Changes, announced, least_version
from limits_app.stores.redis.calls import Calls
from limits_app.stores.redis.commands import RedisCommand


class StoredVersions:
    """The versions of all namespaces. On a cluster, one is stored with each tag, and the log with the first tag."""

    def __init__(self, run: Callable[[Any], Any], calls: Calls) -> None:
        self._run = run
        self._calls = calls
        self._names = calls.names

    def current(self, namespace: str) -> int:
        """Return the version; 0 where there is none."""
        return int(self._run(RedisCommand("GET", self._names.version(self._names.tags[0], namespace))) or 0)

    def advance(self, changes: Collection[Change], namespace: str) -> int:
        """Raise the version, add changes to the log, and return the version."""
        first, *others = [self._names.version(tag, namespace) for tag in self._names.tags]
        encoded = b"".join([change.encode() for change in announced(changes)])
        keys, plan = [first, self._names.changes(namespace)], pack("<dd", 1, least_version())
        version = int(self._run(self._calls.script("version", keys, plan, encoded)))
        for key in others:
            self._run(self._calls.script("version", [key], pack("<dd", 0, version)))
        return version

    def changes_since(self, version: int, namespace: str) -> tuple[int, Changes] | None:
        """Return the version and the changes after another one; None where these are not in the log any more."""
        keys = self._names.version(self._names.tags[0], namespace), self._names.changes(namespace)
        current, log = self._run(RedisCommand("MGET", *keys))
        return ChangeLog(int(current or 0), log or b"").since(version)
