"""`denials` and `why`."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta

import pytest
from django.utils.timezone import localtime, now

from limits_app import CallLimit, limits
from limits_app.models import Denial
from tests.commands.running import run


@pytest.fixture(autouse=True)
def _rejected() -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(100)])
    _denied("user:7", now())


def _denied(entity: str, at: datetime) -> None:
    minute = at.replace(second=0, microsecond=0)
    row = {"resource": "api", "key": "call_count", "entity": entity, "minute": minute, "count": 3}
    Denial.objects.create(**row, first=at, last=at)


@pytest.mark.parametrize(
    ("options", "entities"),
    [
        ("", ["user:7", "user:8"]),
        ("--since today", ["user:7"]),
        ("--since yesterday --until today", ["user:8"]),
        ("--since 00:00", ["user:7"]),
        ("--entity user:8", ["user:8"]),
        ("--resource api --key call_count --most 1", ["user:7"]),
    ],
)
def test_denials_are_listed_with_their_reasons(options: str, entities: list[str]) -> None:
    _denied("user:8", localtime(now()).replace(hour=0, minute=0) - timedelta(minutes=10))
    found = json.loads(run(f"denials {options} --format json").out)
    assert [one["entity"] for one in found] == entities
    if found[0]["entity"] == "user:7":
        assert found[0]["why"] == "user:7 reached the limit of 100 requests per minute on api."


def test_why_is_a_sentence_and_names_the_event_of_the_policy() -> None:
    at = f"{localtime(now()):%H:%M}"
    ran = run(f"why user:7 --at {at}")
    assert "3 times: user:7 reached the limit of 100 requests per minute on api." in ran.out
    assert re.search(r"The policy is that of audit event (\d+) \(limits audit show \1\)\.", ran.out)
    assert run("why user:7").out == ran.out


def test_why_without_rejections_names_other_causes() -> None:
    limits.acquire("api", entity="user:8").release()
    limits.roll_up()
    nothing = run("why bob").err
    assert "No request of bob was rejected in the last hour. `limits denials` lists those of 48 hours." in nothing
    assert "note: no usage of the entity 'bob' before the last roll-up: check the spelling" in nothing


def test_a_clock_time_that_is_ahead_is_that_of_yesterday() -> None:
    ahead = localtime(now()) + timedelta(minutes=30)
    _denied("user:9", ahead - timedelta(days=1))
    assert "user:9 reached" in run(f"why user:9 --at {ahead:%H:%M}").out
