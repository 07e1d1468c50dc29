"""The largest and the worst input costs little time and little memory, whatever becomes of it."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.test import override_settings

from limits_app.engine.limits import CallLimit, QuotaLimit
from limits_app.engine.notation import parse_limit
from limits_app.integrations.identity import client_of, entity_of_key, normalize_entity, resource_named
from limits_app.models.validators import validate_amounts, validate_json, validate_methods
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.outbound.hints import hints_of
from limits_app.outbound.messages import Response
from limits_app.services.limits_file import read_content
from limits_app.services.routes import Route

LONG = 1_000_000
MOST_SECONDS = 1.0
"""Of processor time; what is linear takes a few milliseconds, and what backtracks takes for ever."""
MOST_BYTES = 32 * LONG


def forwarded(header: str) -> str:
    request = HttpRequest()
    request.META = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": header}
    with override_settings(LIMITS={"TRUSTED_PROXIES": ["10.0.0.0/8"]}):
        return client_of(request)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def told(*headers: tuple[str, str]) -> object:
    return hints_of(Response(status=429, headers=headers), unix_seconds=1_775_000_000.0)


WORST: dict[str, Callable[[], object]] = {
    "hops": lambda: forwarded("10.0.0.1," * (LONG // 9)),
    "commas": lambda: forwarded("," * LONG),
    "one long hop": lambda: forwarded("1" * LONG),
    "colons": lambda: forwarded(":" * LONG),
    "an identifier": lambda: normalize_entity("x" * LONG),
    "an identifier of half characters": lambda: normalize_entity("\ud800" * LONG),
    "an API key": lambda: entity_of_key("k" * LONG),
    "the name of a group": lambda: resource_named("é." * (LONG // 2)),
    "digits of a rate": lambda: CallLimit.parse("9" * LONG + "/s"),
    "spaces in a rate": lambda: CallLimit.parse(" " * LONG + "1/s"),
    "digits of a quota": lambda: QuotaLimit.parse("9" * LONG + "/day"),
    "options of a limit": lambda: parse_limit("rpm=1/min" + ":soft" * (LONG // 5)),
    "days": lambda: WeeklyHours.parse("mon," * 63 + "sun", "UTC"),
    "entries of hours": lambda: WeeklyHours.parse(";".join(["mon-sun 00:00-23:59"] * 12), "UTC"),
    "methods": lambda: validate_methods("GET," * (LONG // 40)),
    "a number of a million digits": lambda: validate_amounts({"tpm": 10**LONG}),
    "deep JSON": lambda: validate_json(nested(10_000)),
    "wide JSON": lambda: validate_json(list(range(LONG // 10))),
    "a path": lambda: Route("/<path:all>/<slug:one>/end").fits("a/" * 4000 + "x"),
    "items of a header": lambda: told(("RateLimit-Policy", '"a";q=1;w=1,' * (LONG // 12))),
    "digits in a header": lambda: told(("Retry-After", "9" * LONG)),
    "a date in a header": lambda: told(("Retry-After", "Wed, " * (LONG // 5))),
    "brackets in a file": lambda: read_content("[" * LONG),
    "braces in a file": lambda: read_content("resources: " + "{a: " * (LONG // 4)),
    "laughs in a file": lambda: read_content("a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(999))),
    "tags in a file": lambda: read_content("!!python/object/apply:os.system [echo]"),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_input_takes_little_time_and_memory(name: str) -> None:
    begun = time.thread_time()
    with suppress(ValueError, ValidationError):
        WORST[name]()
    took = time.thread_time() - begun
    tracemalloc.start()
    with suppress(ValueError, ValidationError):
        WORST[name]()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took < MOST_SECONDS
    assert peak < MOST_BYTES


def test_long_headers_are_not_remembered() -> None:
    forwarded("203.0.113.1")
    tracemalloc.start()
    for number in range(500):
        assert forwarded(f"{number}{' ' * 10_000}, 203.0.113.9") == "ip:203.0.113.9"
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < LONG
