"""Keys that a request names and no limit has: a warning for each resource, however many entities somebody makes up."""

from __future__ import annotations

from typing import Any

import pytest

from limits_app import CallLimit, InvalidRequest, RateLimit, limits
from limits_app.services import Share
from limits_app.testing import fresh_limits
from tests.services.pool_rows import make_pool, serve


def test_entities_on_a_resource_are_warned_of_once_together(caplog: pytest.LogCaptureFixture) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.set_resource_limits("mail", [CallLimit(10, 60)])
    for name in ("api", "mail", "free"):
        for number in range(5):
            limits.acquire(name, entity=f"user:{number}", requested={"typo": 1})
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["call_count", "call_count", "none"]


def test_usage_is_warned_of_by_itself_and_once_too(caplog: pytest.LogCaptureFixture) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 1000, 60), RateLimit("rpm", 1000, 60)])
    for number in range(3):
        with limits.acquire("api", entity=f"user:{number}", requested={"tpm": 1}) as acquisition:
            acquisition.update({"tpm": 1, "rpm": 1, "typo": 1})
    assert [message.split(" ")[1] for message in caplog.messages] == ["'rpm'", "'typo'"]


def test_members_of_a_pool_and_several_resources_are_warned_of_once_too(caplog: pytest.LogCaptureFixture) -> None:
    serve("api", make_pool({"eu": [CallLimit(10, 60)], "us": [CallLimit(10, 60)]}))
    for number in range(4):
        limits.acquire("api", entity=f"user:{number}").update({"typo": 1})
    assert len(caplog.messages) == 1
    caplog.clear()
    limits.set_resource_limits("mail", [CallLimit(10, 60)])
    for number in range(3):
        who = f"user:{number}"
        shares = [Share("mail", who, {"typo": 1}), Share("free", who, {"typo": 1})]
        limits.try_acquire_all(shares).update({"nothing": 1})
        limits.try_acquire_all([Share("free", who), Share("none", who)]).update({"nothing": 1})
    assert sorted(message.split(" ")[1] for message in caplog.messages) == ["'nothing'"] * 2 + ["'typo'"] * 2


def test_tests_begin_with_warnings_that_nobody_has_had(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with fresh_limits():
            limits.acquire("free", requested={"typo": 1})
    assert len(caplog.messages) == 2


def test_a_key_that_is_refused_is_not_said_to_be_skipped(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    settings.LIMITS = {**settings.LIMITS, "UNKNOWN_KEYS": "raise"}
    with pytest.raises(InvalidRequest, match="key 'typo' is not one of the limits of this request; the set has"):
        limits.acquire("api", requested={"typo": 1})
    assert caplog.messages == []
