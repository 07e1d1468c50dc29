"""Workers and limit sets on a Ray of this machine: `make ray`. Ends with 1 when something is not as it should be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ray

from limits_app import CallLimit, LimitSet
from limits_app.stores.redis import open_redis_store
from limits_app.workers import gather
from tests.servers.redis import redis_server
from tests.workers.people import Clerk, memory_set

SECONDS = 60
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Start Ray and Redis, and check."""
    environment = {"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "project.settings"}
    os.environ.update(environment)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    try:
        with redis_server() as server:
            check_actors(server.url)
            check_tasks(server.url)
        check_errors()
    finally:
        ray.shutdown()
    print("Workers and limit sets work on Ray.")  # noqa: T201 - it is what a command is for


def check_actors(url: str) -> None:
    """All workers share a limit."""
    shared = LimitSet([CallLimit.per_day(50)], store=open_redis_store(None, url=url))
    with Clerk.options(mode="ray", max_workers=2, limits=shared, actor_options={"num_cpus": 0.5}).init("Bob") as clerks:
        assert gather([clerks.say_name() for _ in range(5)], timeout=SECONDS) == ["Bob"] * 5
        assert sum(gather([clerks.take(20) for _ in range(6)], timeout=SECONDS)) == 50
        assert clerks.get_pool_stats()["max_queued_tasks"] == 3


def check_tasks(url: str) -> None:
    """A set that is sent into Ray's own tasks is attached to the same state there."""
    shared = LimitSet([CallLimit.per_day(5)], store=open_redis_store(None, url=url))
    task: Any = ray.remote(_try)
    assert sum(ray.get([task.remote(shared) for _ in range(12)], timeout=SECONDS)) == 5


def check_errors() -> None:
    """They are those of the worker, and what cannot be sent is said at once."""
    with Clerk.options(mode="ray", num_retries=1, retry_wait=0).init("Ann") as clerk:
        assert isinstance(clerk.fail().exception(SECONDS), LookupError)
        assert clerk.fail_times(1).result(SECONDS) == 2
    with pytest.raises(ValueError, match="mode 'ray' cannot send"):
        Clerk.options(mode="ray", limits=memory_set()).init()


def _try(limit_set: LimitSet) -> bool:
    return bool(limit_set.try_acquire())


if __name__ == "__main__":
    main()
