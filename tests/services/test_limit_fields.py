"""The fields of a limit: split from its text and joined to it, without loss, and each error at its field."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.forms import modelform_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limits_app.admin.forms import LIMIT_FIELDS, LimitForm
from limits_app.engine.amounts import MAX_AMOUNT, from_milli
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.notation import limit_text, parse_limit
from limits_app.engine.periods import QuotaPeriod
from limits_app.models import Limit, Policy
from limits_app.services.limit_fields import FIELDS, LimitKind, join, of_kind, split

KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", fullmatch=True).filter(lambda key: key != CallLimit.key)
KEYS |= st.just("calls")
WHOLE = st.integers(1, MAX_AMOUNT)
DECIMALS = st.integers(1, MAX_AMOUNT * 1000).map(from_milli)
SECONDS = st.integers(1, 366 * 86_400 * 1000).map(from_milli)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/Argentina/ComodRivadavia", "Etc/GMT+12"])

SHARES = st.sampled_from([(("low", 60), ("normal", 20)), (("normal", 0.125),), (("low", 99.999),)])


@st.composite
def rates(draw: st.DrawFn) -> LimitDefinition:
    algorithm = draw(st.sampled_from(RateLimitAlgorithm))
    amounts = DECIMALS if algorithm.takes_decimals else WHOLE
    burst = draw(st.none() | amounts) if algorithm.takes_burst else None
    rate = (draw(amounts), draw(SECONDS), algorithm, burst, draw(st.booleans()))
    return CallLimit(*rate) if draw(st.booleans()) else RateLimit(draw(KEYS), *rate)


LIMITS: st.SearchStrategy[LimitDefinition] = (
    rates()
    | st.builds(QuotaLimit, KEYS, WHOLE, st.sampled_from(QuotaPeriod).map(str), ZONES, soft=st.booleans())
    | st.builds(QuotaLimit, KEYS, WHOLE, session_seconds=SECONDS, soft=st.booleans())
    | st.builds(ResourceLimit, KEYS, WHOLE, st.none() | SECONDS)
)
LIMITS |= st.builds(RateLimit, KEYS, WHOLE, SECONDS, keep=SHARES) | st.builds(CallLimit, WHOLE, SECONDS, keep=SHARES)
LIMITS |= st.builds(QuotaLimit, KEYS, WHOLE, st.sampled_from(QuotaPeriod).map(str), ZONES, keep=SHARES)
LIMITS |= st.builds(ResourceLimit, KEYS, WHOLE, st.none() | SECONDS, keep=SHARES)
FORM = modelform_factory(Limit, form=LimitForm, fields=[name for line in LIMIT_FIELDS for name in line])


def sent(form: Any) -> dict[str, Any]:
    """What a browser sends of a form as it is shown."""
    shown = {name: form[name].value() for name in form.fields}
    return {name: "on" if value is True else str(value) for name, value in shown.items() if value not in (None, False)}


@given(limit=LIMITS, shared=st.booleans())
@settings(
    max_examples=4 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_limit_survives_its_text_and_its_fields(limit: LimitDefinition, shared: bool) -> None:
    row = Limit.from_definition(Policy(), limit, shared=shared)
    assert (row.definition(), row.shared) == (limit, shared)
    assert row.notation() == limit_text(limit, shared=shared)
    assert parse_limit(row.notation()).limit == limit
    assert join(split(row)) == (limit, shared)


@pytest.mark.slow
@given(limit=LIMITS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_limit_is_saved_unchanged_by_the_form(limit: LimitDefinition, db: None) -> None:
    Policy.objects.all().delete()
    row = Limit.from_definition(Policy.objects.create(), limit)
    row.save()
    form = FORM(instance=Limit.objects.get(pk=row.pk))
    again = FORM(sent(form), instance=Limit.objects.get(pk=row.pk))
    assert not again.errors
    assert again.changed_data == []
    again.save()
    assert Limit.objects.get(pk=row.pk).text == row.text
    assert Limit.objects.get(pk=row.pk).definition() == limit
    [kind] = [kind for kind in LimitKind if Limit.objects.filter(of_kind(kind)).exists()]
    assert kind == split(row)["kind"]


@pytest.mark.parametrize(
    ("key", "text", "fields"),
    [
        ("tpm", "1,000 / 1 min : gcra", {"kind": "rate", "capacity": 1000, "window_seconds": 60}),
        ("tokens", "5M/week", {"kind": "quota", "capacity": 5_000_000, "period": "week", "time_zone": "UTC"}),
        (
            "tokens",
            "5/month @ Mars/X : soft",
            {"period": "month", "time_zone": "Mars/X", "soft": True},
        ),
        ("tokens", "5 / month : from = 031", {"capacity": None}),
        ("tokens", "5/month:from=31+06h", {"kind": "quota", "period": "month", "starts": "31+6h"}),
        ("call_count", "5/60s", {"kind": "call", "capacity": 5, "window_seconds": 60}),
        ("slots", "5", {"kind": "resource", "capacity": 5, "max_hold_seconds": None}),
        ("tpm", "many", {"kind": "rate", "capacity": None}),
    ],
)
def test_a_text_that_was_written_by_hand_is_shown_in_the_form(
    key: str, text: str, fields: dict[str, Any], db: None
) -> None:
    form = FORM(instance=Limit(policy=Policy.objects.create(), key=key, text=text))
    shown = {name: form[name].value() for name in form.fields}
    assert {name: shown[name] for name in fields} == fields
    assert ("=&#x27;many&#x27; is invalid" in str(form.fields["capacity"].help_text)) is (text == "many")


def joined(**values: Any) -> dict[str, list[str]]:
    """The errors of a limit with these fields, and the defaults of others."""
    with pytest.raises(ValidationError) as caught:
        join({name: field.get_default() for name, field in FIELDS.items()} | values)
    errors: dict[str, list[str]] = caught.value.message_dict
    return errors


RATE = {"kind": "rate", "key": "tpm", "capacity": 1000, "window_seconds": 60, "algorithm": "token_bucket"}
QUOTA = {"kind": "quota", "key": "tokens", "capacity": 1000, "period": "day", "time_zone": "UTC"}
PERMITS = {"kind": "resource", "key": "connections", "capacity": 10}

WRONG: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (RATE, {"key": ""}, "key", "Enter what is counted, such as “tokens”"),
    (RATE, {"key": "call_count"}, "key", "is reserved for the kind “requests”"),
    (RATE, {"kind": "call", "key": "tpm"}, "key", "is reserved for the kind “requests”"),
    (RATE, {"kind": "tide"}, "kind", "'tide' is not a valid choice"),
    (RATE, {"capacity": 0}, "capacity", "capacity must be more than 0, not 0"),
    (RATE, {"capacity": 10**12 + 1}, "capacity", "capacity must not be more than 10^12"),
    (RATE, {"capacity": "1.5", "algorithm": "leaky_bucket"}, "capacity", "capacity must be a whole number, not 1.5"),
    (RATE, {"capacity": "1.5", "algorithm": "sliding_window"}, "capacity", "capacity must be a whole number"),
    (RATE, {"capacity": "1.5", "algorithm": "fixed_window"}, "capacity", "capacity must be a whole number"),
    (RATE, {"window_seconds": None}, "window_seconds", "Enter the length of the window in seconds: 60 is a minute"),
    (RATE, {"window_seconds": 0}, "window_seconds", "between 0.001 seconds and 366 days (31622400 seconds), not 0"),
    (RATE, {"window_seconds": 366 * 86_400 + 1}, "window_seconds", "must be between 0.001 seconds and 366 days"),
    (RATE, {"algorithm": "magic"}, "algorithm", "'magic' is not a valid choice"),
    (RATE, {"burst": 0}, "burst", "burst must be more than 0, not 0"),
    (RATE, {"burst": 10**12 + 1}, "burst", "burst must not be more than 10^12"),
    (RATE, {"burst": "0.5", "algorithm": "leaky_bucket"}, "burst", "burst must be a whole number"),
    (RATE, {"burst": 5, "algorithm": "sliding_window"}, "burst", "Not allowed for this algorithm: leave it empty"),
    (RATE, {"burst": 5, "algorithm": "fixed_window"}, "burst", "Not allowed for this algorithm: leave it empty"),
    (QUOTA, {"capacity": 0}, "capacity", "capacity must be more than 0, not 0"),
    (QUOTA, {"capacity": "2.5"}, "capacity", "capacity must be a whole number, not 2.5"),
    (QUOTA, {"key": "call_count"}, "key", "is reserved for the kind “requests”"),
    (QUOTA, {"period": ""}, "period", "Choose a calendar period, or enter the seconds from the first use."),
    (QUOTA, {"period": "year"}, "period", "'year' is not a valid choice"),
    (QUOTA, {"starts": "15"}, "starts", "starts must be a time such as 6h or 390min, or client, not '15'"),
    (QUOTA, {"starts": "client", "shared": True}, "starts", "cannot be client for a limit that is shared"),
    (QUOTA | {"period": "hour"}, {"starts": "6h"}, "starts", "starts goes with a day, a week or a month"),
    (QUOTA, {"session_seconds": 5}, "period", "Not allowed with seconds from the first use: leave one of them empty."),
    (QUOTA, {"period": "", "session_seconds": 5}, "time_zone", "Not allowed with seconds"),
    (
        QUOTA,
        {"period": "", "time_zone": "", "session_seconds": 0},
        "session_seconds",
        "session_seconds must be between 0.001 seconds and 366 days",
    ),
    (PERMITS, {"capacity": 0}, "capacity", "capacity must be at least 1, not 0"),
    (PERMITS, {"capacity": "2.5"}, "capacity", "capacity must be a whole number, not 2.5"),
    (PERMITS, {"key": "call_count"}, "key", "is reserved for the kind “requests”"),
    (PERMITS, {"soft": True}, "soft", "“Report only” is not available for concurrency limits."),
    (PERMITS, {"max_hold_seconds": 0}, "max_hold_seconds", "must be between 0.001 seconds and 366 days"),
    (PERMITS, {"max_hold_seconds": 10**9}, "max_hold_seconds", "must be between 0.001 seconds and 366 days"),
    (RATE, {"key": "7up"}, "key", "limit key '7up' must be a letter"),
    (RATE, {"key": "a\0b"}, "key", "must be a letter followed by"),
    (RATE, {"key": "k" * 10_240}, "key", "at most 64 characters"),
    (RATE, {"capacity": None}, "capacity", "cannot be null"),
    (RATE, {"capacity": "many"}, "capacity", "must be a decimal number"),
    (RATE, {"capacity": Decimal("sNaN")}, "capacity", "must be a"),
    (RATE, {"capacity": "Infinity"}, "capacity", "must be a decimal number"),
    (RATE, {"capacity": Decimal("1e999999")}, "capacity", "no more than 19 digits"),
    (RATE, {"capacity": "0.0001"}, "capacity", "at most three decimals"),
    (RATE, {"algorithm": ["gcra"]}, "algorithm", "is not a valid choice"),
    (RATE, {"kind": "call", "key": "", "max_hold_seconds": 5}, "max_hold_seconds", "for the kind “requests”"),
    (RATE, {"soft": "perhaps"}, "soft", "must be either True or False"),
    (QUOTA, {"period": ["day"]}, "period", "is not a valid choice"),
    (QUOTA, {"time_zone": "Europe/Berlino"}, "time_zone", "time_zone 'Europe/Berlino' is not known here: use an IANA"),
    (QUOTA, {"time_zone": "z" * 65}, "time_zone", "at most 64 characters"),
]


@pytest.mark.parametrize(("sound", "fields", "field", "said"), WRONG, ids=lambda value: f"{value!a:.40}")
def test_a_bad_limit_is_rejected_at_the_field_that_is_wrong(
    sound: dict[str, Any], fields: dict[str, Any], field: str, said: str
) -> None:
    complained = " ".join(joined(**{**sound, **fields})[field])
    assert said in complained
    assert len(complained) < 500


ELSEWHERE: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (RATE, "units", {"max_hold_seconds": 5, "period": "day", "time_zone": "UTC", "session_seconds": 5}),
    (QUOTA, "quota", {"window_seconds": 60, "algorithm": "gcra", "burst": 3, "max_hold_seconds": 3}),
    (
        PERMITS,
        "concurrency limit",
        {"window_seconds": 60, "algorithm": "gcra", "burst": 3, "period": "day", "session_seconds": 5},
    ),
]
"""Fields of other kinds of limits."""


@pytest.mark.parametrize(
    ("sound", "kind", "field", "value"),
    [(sound, kind, *field) for sound, kind, fields in ELSEWHERE for field in fields.items()],
)
def test_fields_of_another_kind_are_rejected(sound: dict[str, Any], kind: str, field: str, value: object) -> None:
    [said] = joined(**{**sound, field: value})[field]
    assert said.startswith(f"Not allowed for the kind “{kind}”: leave it empty, or choose the kind")


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"kind": "rate", "key": "tpm", "capacity": 5, "window_seconds": 1}, RateLimit("tpm", 5, 1)),
        ({"kind": "call", "capacity": 5, "window_seconds": 1}, CallLimit(5, 1)),
        ({**QUOTA, "time_zone": ""}, QuotaLimit.per_day("tokens", 1000)),
    ],
)
def test_empty_fields_are_filled_in(fields: dict[str, Any], limit: LimitDefinition) -> None:
    assert join({name: field.get_default() for name, field in FIELDS.items()} | fields) == (limit, False)


def test_fields_that_are_known_to_be_wrong_are_left_out() -> None:
    assert join({"kind": "rate", "key": "tpm", "capacity": 5}) is None
    with pytest.raises(ValidationError) as caught:
        join({"kind": "rate", "key": "call_count", "max_hold_seconds": 5})
    assert {*caught.value.message_dict} == {"key", "max_hold_seconds"}
