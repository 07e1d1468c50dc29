"""Whatever comes in, a parser gives a value that is valid, or its own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from limits_app.conf import KEYS, SettingKey
from limits_app.engine.clock import zone_of
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.keys import check_entity, check_resource
from limits_app.engine.limit_checks import parse_amount, parse_seconds
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit
from limits_app.engine.notation import parse_limit
from limits_app.models.validators import (
    validate_amounts,
    validate_json,
    validate_methods,
    validate_object,
    validate_path,
    validate_resource_name,
    validate_text,
    validate_view_name,
)
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.outbound.hints import hints_of
from limits_app.outbound.messages import Response
from limits_app.services.limits_file import InvalidFile, read_content
from tests.fuzz.guided import targets
from tests.fuzz.making import FEW, MANY, anything, nearly

pytestmark = pytest.mark.release

RATES = nearly("1000/min", "30/10s", "5/2h", "2.5/ms")
LIMITS = nearly(
    "rpm=1000/min", "calls=30/10s:gcra", "budget=5M/month@Europe/Berlin", "slots=10:hold=30s", "m=5/2h:session"
)
HOURS = nearly("mon-fri 09:00-17:00; sat,sun", "sat 22:00-06:00", "sun-tue")
YAML = nearly(
    "version: 1\nresources:\n  - name: api\n    limits: [rpm=1000/min]\n",
    "entities:\n  - identifier: user:42\n    parent: tenant:acme\n",
    "policies:\n  - resource: api\n    limits:\n      - calls=3/h\n    reason: |\n      because\n",
    "pools:\n  - name: regions\n    members:\n      - {name: eu, config: {key: {env: KEY}}}\n",
)
PATHS = nearly("/api/orders/", "/api/<int:pk>/", "/<path:all>", "/a/<slug:b>/<uuid:c>", "<<x>>")
MODELS_REFUSE = (
    validate_amounts,
    validate_json,
    validate_methods,
    validate_object,
    validate_resource_name,
    validate_text,
    validate_view_name,
)


def tried(parse: Callable[..., Any], *given_: Any, refuses: type[Exception]) -> Any:
    """What a parser gives; None where it refuses with the error that it promises, and in few words."""
    problem = ""
    try:
        return parse(*given_)
    except refuses as error:
        problem = str(error)
    assert 0 < len(problem) < 10_000
    return None


@MANY
@given(RATES)
def test_a_rate_is_valid_or_refused(text: str) -> None:
    for kind in (RateLimit, CallLimit):
        arguments = {"key": "k"} if kind is RateLimit else {}
        limit = tried(lambda kind=kind, arguments=arguments: kind.parse(text, **arguments), refuses=InvalidLimit)
        assert limit is None or 0 < limit.capacity <= 10**12


@MANY
@given(nearly("1000/day", "5M/month@Europe/Berlin", "1k/week@UTC"))
def test_a_quota_is_valid_or_refused(text: str) -> None:
    quota = tried(QuotaLimit.parse, text, refuses=InvalidLimit)
    assert quota is None or 0 < quota.capacity <= 10**12


@MANY
@given(LIMITS)
def test_a_limit_as_people_write_it_is_valid_or_refused(text: str) -> None:
    noted = tried(parse_limit, text, refuses=InvalidLimit)
    assert noted is None or 0 < noted.limit.capacity <= 10**12


@FEW
@given(nearly("400k", "2.5", "5M") | nearly("10s", "1.5h", "min"))
def test_amounts_and_times_are_numbers_or_refused(text: str) -> None:
    for parse in (parse_amount, parse_seconds):
        assert (tried(parse, text, refuses=InvalidLimit) or 0) >= 0


@MANY
@given(HOURS, nearly("Europe/Berlin", "UTC", "../../etc/passwd", "/etc/passwd", "posixrules"))
def test_weekly_hours_are_minutes_of_a_week_or_refused(text: str, zone: str) -> None:
    hours = tried(WeeklyHours.parse, text, zone, refuses=ValueError)
    assert hours is None or all(0 <= start < end <= 7 * 24 * 60 for start, end in hours.spans)
    zone_of(zone)


@MANY
@given(YAML)
def test_a_limits_file_is_read_or_refused_by_line(text: str) -> None:
    content = tried(read_content, text, refuses=InvalidFile)
    assert content is None or content.name


@FEW
@given(PATHS)
def test_a_route_can_be_compiled_or_is_refused(text: str) -> None:
    tried(validate_path, text, refuses=ValidationError)


@FEW
@given(anything())
def test_names_are_text_that_fits_or_refused(value: Any) -> None:
    for check in (check_resource, check_entity):
        assert tried(check, value, refuses=InvalidLimit) in {None, value if isinstance(value, str) else None}


@FEW
@given(anything())
def test_json_columns_are_valid_or_rejected(value: Any) -> None:
    for validate in (validate_json, validate_object, validate_amounts):
        tried(validate, value, refuses=ValidationError)


@FEW
@given(st.text(max_size=80))
def test_text_columns_are_valid_or_rejected(text: str) -> None:
    for validate in MODELS_REFUSE[2:]:
        tried(validate, text, refuses=ValidationError)


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
def test_a_setting_is_valid_or_refused(key: SettingKey[object]) -> None:
    @FEW
    @given(anything())
    def is_parsed_or_refused(value: Any) -> None:
        tried(key.parse, value, refuses=ValueError)

    is_parsed_or_refused()


NOW = 1_775_000_000.0
A_YEAR = 366 * 86_400
FIELDS = st.sampled_from(
    [
        *("Retry-After", "RateLimit", "RateLimit-Policy"),
        *(f"{prefix}RateLimit-{name}" for prefix in ("", "X-") for name in ("Limit", "Remaining", "Reset")),
    ]
)
VALUES = nearly(
    '"rpm";q=100;w=60',
    '"rpm";r=50;t=30',
    "limit=10, remaining=1, reset=5",
    "100, 100;w=60",
    "Wed, 21 Oct 2099 07:28:00 GMT",
    "Thu, 01 Jan 0001 00:00:00 +2359",
    "120",
    "99999999999999",
    "1775000060",
)


@MANY
@given(st.lists(st.tuples(FIELDS, VALUES), max_size=6), st.sampled_from([200, 429, 503]))
def test_hints_of_an_upstream_are_valid_or_ignored(headers: list[tuple[str, str]], status: int) -> None:
    hints = hints_of(Response(status=status, headers=headers), unix_seconds=NOW)
    assert hints.retry_after is None or 0 <= hints.retry_after <= A_YEAR
    assert len(hints.quotas) <= 8
    for quota in hints.quotas:
        assert quota.capacity > 0
        assert 0 < quota.window_seconds <= A_YEAR
        assert quota.remaining is None or quota.remaining >= 0
        assert len(quota.name) <= 64


def test_tests_of_this_folder_run_on_any_bytes() -> None:
    found = targets()
    assert "test_a_limits_file_is_read_or_refused_by_line" in found
    for run in found.values():
        run(b"")
        run(bytes(range(256)) * 4)
