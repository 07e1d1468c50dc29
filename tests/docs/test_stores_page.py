"""Stores that the page about them shows on one server, where there are several."""

from __future__ import annotations

from typing import Any

from pytest_django import Settings

from limits_app import limits
from limits_app.core.limits import CallLimit
from tests.docs.pages import DOCS, blocks
from tests.servers.redis import redis_sentinel


def test_a_store_behind_a_sentinel_counts(settings: Settings, transactional_db: None) -> None:
    block = next(one for one in blocks(DOCS / "stores.md", "python") if "SentinelClient" in one.text)
    shown: dict[str, Any] = {}
    exec(block.text, shown)  # noqa: S102 - it is our own documentation
    with redis_sentinel() as (*_, sentinel):
        shown["CACHES"]["default"]["OPTIONS"]["SENTINELS"] = [("127.0.0.1", sentinel.port)]
        settings.CACHES, settings.LIMITS = shown["CACHES"], shown["LIMITS"]
        twice = CallLimit(2, 3_600)
        admitted = [limits.try_acquire("mail", default_limits=[twice]).successful for _ in range(3)]
    assert admitted == [True, True, False]
