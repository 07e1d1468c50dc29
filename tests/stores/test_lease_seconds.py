"""How long permits are lent: what no store takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limits_app.core.errors import InvalidRequest
from limits_app.stores.database import DatabaseStore, open_database_store
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore, open_process_store
from limits_app.stores.redis import RedisStore, open_redis_store
from limits_app.stores.redis.cluster import RedisClusterStore

NOWHERE = "redis://127.0.0.1:1"

MAKE: list[Callable[..., object]] = [MemoryStore, DatabaseStore, open_database_store]
MAKE_IN: list[Callable[..., object]] = [ProcessStore, open_process_store]
MAKE_AT: list[Callable[..., object]] = [RedisStore, RedisClusterStore, open_redis_store]


@pytest.mark.parametrize("lease_seconds", [0, -1, 1e-7, float("nan"), "10", None])
@pytest.mark.parametrize("make", [*MAKE, *MAKE_IN, *MAKE_AT])
def test_a_store_that_would_lend_permits_for_no_time_is_not_made(
    make: Callable[..., object], lease_seconds: Any, tmp_path: Path
) -> None:
    place = {"directory": tmp_path / "state"} if make in MAKE_IN else {"url": NOWHERE} if make in MAKE_AT else {}
    with pytest.raises(InvalidRequest, match=r"lease_seconds must be between 0\.001 seconds and 366 days"):
        make(**place, lease_seconds=lease_seconds)
    assert not list(tmp_path.iterdir())
