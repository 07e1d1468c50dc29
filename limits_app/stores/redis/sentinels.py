"""Finding the primary through Sentinel, within the timeouts of the store.

The clients of redis-py that call the Sentinels have timeouts and retries of their own: by default a request waits up to
30 seconds for a Sentinel that does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from redis import Redis
from redis.connection import ConnectionPool
from redis.sentinel import SentinelConnectionPool


class PrimaryFinder:
    """Stands for the pool of the site in the store's connections, which get the address of the primary from it.

    The Sentinels are those of the site's pool, with its passwords and TLS. `options` are the timeouts and retries of
    connections. The Sentinel that has answered is asked first the next time; no connection to any of them is kept.
    """

    is_master = True

    def __init__(self, pool: SentinelConnectionPool, options: Mapping[str, Any]) -> None:
        self.check_connection = pool.check_connection
        self._manager = pool.sentinel_manager
        self._service = pool.service_name
        self._sentinels = [SentinelServer(sentinel.connection_pool, options) for sentinel in self._manager.sentinels]

    def get_master_address(self) -> Any:
        """Return host and port of the primary; raises MasterNotFoundError where no Sentinel knows one."""
        # A copy for each call: `discover_master` swaps two of the list, of which a second thread could lose one.
        manager = copy(self._manager)
        manager.sentinels = list(self._sentinels)
        try:
            return manager.discover_master(self._service)
        finally:
            self._sentinels = manager.sentinels
            for sentinel in manager.sentinels:
                sentinel.connection_pool.disconnect(inuse_connections=False)


class SentinelServer(Redis):
    """The client of one Sentinel, with other timeouts and retries than that of the site, and its address in errors."""

    def __init__(self, pool: ConnectionPool, options: Mapping[str, Any]) -> None:
        own = {**pool.connection_kwargs, **options}
        super().__init__(connection_pool=ConnectionPool(connection_class=pool.connection_class, **own))

    def __repr__(self) -> str:
        options = self.connection_pool.connection_kwargs
        return f"{options.get('host')}:{options.get('port')}"


def primary_finder(pool: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the option of connections that leads them to the primary, where Sentinel knows it; else no option."""
    if isinstance(pool, SentinelConnectionPool) and pool.is_master:
        return {"connection_pool": PrimaryFinder(pool, options)}
    return {}
