"""Rules for URLs with more than limits: what forms, the doctor and files make of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from limits_app.models import BucketKind, Endpoint, UsagePeriod, UsageSnapshot
from limits_app.services.doctor import diagnose
from limits_app.services.limit_form.outlook import outlook
from limits_app.services.limit_form.saving import replaced, save
from limits_app.services.limit_sentences import SimpleLimit, What, Who, is_sentence, read, sentence
from limits_app.services.limits_file import apply, export, read_content

pytestmark = pytest.mark.django_db(transaction=True)

CONDITIONS = [
    {"combined_with": "form:username"},
    {"cost": "header:X-Cost"},
    {"refusal_status": 403},
    {"refusal_body": "no"},
]


@pytest.mark.parametrize("field", CONDITIONS)
def test_a_sentence_neither_shows_nor_replaces_a_rule_with_other_conditions(field: dict[str, object]) -> None:
    plain = {"path": "/login/", "limits": "calls=5/min", "counted_by": "ip"}
    rule = Endpoint.objects.create(name="log-in", **plain, **field)
    limit = SimpleLimit(What.URL, Who.ADDRESS, ("calls=9/min",), path="/login/")
    assert not is_sentence(rule)
    assert replaced(limit) is None
    other = Endpoint.objects.create(name="other", **plain)
    assert is_sentence(other)
    assert replaced(limit) == other


def test_a_sentence_has_the_counted_responses_and_the_time_of_a_block() -> None:
    limit = SimpleLimit(
        What.URL,
        Who.ADDRESS,
        ("calls=5/h:sliding_window",),
        path="/login/",
        responses="errors,401",
        block_for="10m",
    )
    saved = save(limit, actor="", reason="").row
    assert isinstance(saved, Endpoint)
    assert (saved.responses, saved.block_for) == ("errors,401", "10m")
    assert read(saved) == limit
    assert sentence(limit) == (
        "Each IP address may make 5 requests per hour on /login/. "
        "Only responses with status 4xx, 5xx, 401 count, so at most this number of requests run at the same time. "
        "Once it is exceeded, all further requests are rejected for 10 min."
    )


def test_a_rule_for_certain_responses_is_another_one() -> None:
    plain = SimpleLimit(What.URL, Who.ADDRESS, ("calls=9/min:sliding_window",), path="/login/")
    first = save(plain, actor="", reason="").row
    errors = save(replace(plain, responses="errors"), actor="", reason="").row
    assert first != errors
    assert replaced(plain) == first
    assert replaced(replace(plain, responses="errors", block_for="1h")) == errors


FILE = """
endpoints:
  - name: log-in
    path: /login/
    counted_by: ip
    combined_with: "form:username\\nheader:X-Device"
    responses: 401,403
    block_for: 10m
    refusal_status: 403
    refusal_body: Too many attempts.
    limits: 5/10min
  - {name: search, path: /search/, cost: "header:X-Cost", limits: tokens=100/min}
"""


def test_limits_files_have_the_conditions() -> None:
    apply(read_content(FILE))
    rule = Endpoint.objects.get(name="log-in")
    assert (rule.responses, rule.block_for, rule.refusal_status) == ("401,403", "10m", 403)
    assert rule.combined_with == "form:username\nheader:X-Device"
    text = "".join(export())
    assert "form:username" in text
    assert "header:X-Cost" in text


@pytest.mark.parametrize(
    ("part", "others", "is_found"),
    [
        ("form:username", [], True),
        ("form:username", [{"counted_by": "ip"}], False),
        ("form:username", [{"counted_by": "header", "header": "X-T"}], True),
        ("form:username", [{"counted_by": "ip", "enabled": False}], True),
        ("form:username", [{"counted_by": "ip", "path": "/other/"}], True),
        ("path:pk", [], False),
        ("ip", [], False),
    ],
)
def test_the_doctor_finds_rules_that_clients_escape_from(
    part: str, others: list[dict[str, object]], is_found: bool
) -> None:
    fields = {"path": "/login/", "limits": "5/min"}
    Endpoint.objects.create(name="log-in", counted_by="ip", combined_with=part, **fields)
    for other in others:
        Endpoint.objects.create(name="other", **(fields | other))
    messages = [finding.message for finding in diagnose() if finding.id == "limits_app.D034"]
    assert bool(messages) is is_found


@pytest.mark.parametrize(
    ("counted_by", "others", "is_found"),
    [
        ("header", [], True),
        ("session", [], True),
        ("session", [{"counted_by": "header", "header": "X-T"}], True),
        ("header", [{"counted_by": "ip"}], False),
        ("session", [{"counted_by": "user"}], False),
        ("header", [{"counted_by": "ip", "combined_with": "cookie:c"}], True),
        ("header", [{"counted_by": "ip", "enabled": False}], True),
        ("user", [], False),
        ("everyone", [], False),
    ],
)
def test_the_doctor_finds_rules_by_what_clients_choose(
    counted_by: str, others: list[dict[str, object]], is_found: bool
) -> None:
    fields: dict[str, Any] = {"path": "/search/", "limits": "5/min"}
    header = "X-Device" if counted_by == "header" else ""
    Endpoint.objects.create(name="search", counted_by=counted_by, header=header, **fields)
    for other in others:
        Endpoint.objects.create(name="other", **(fields | other))
    messages = [finding.message for finding in diagnose() if finding.id == "limits_app.D037"]
    assert any("the rule 'search'" in message for message in messages) is is_found


@pytest.mark.parametrize(
    ("limits", "responses", "is_found"),
    [
        ("5/min", "errors", True),
        ("tokens=5/min:leaky_bucket", "401", True),
        ("5/min:sliding_window", "errors", False),
        ("5/min:fixed_window, tokens=5/day@UTC, db=2:permits", "errors", False),
        ("5/min", "", False),
    ],
)
def test_the_doctor_finds_rules_whose_buckets_are_undone(limits: str, responses: str, is_found: bool) -> None:
    Endpoint.objects.create(name="log-in", path="/login/", counted_by="ip", limits=limits, responses=responses)
    messages = [finding.message for finding in diagnose() if finding.id == "limits_app.D035"]
    assert bool(messages) is is_found


def test_a_preview_reads_the_use_of_a_rule_with_the_same_conditions() -> None:
    limit = SimpleLimit(
        What.URL, Who.ADDRESS, ("calls=50/h:sliding_window",), path="/login/", responses="errors", block_for="10m"
    )
    rule = save(limit, actor="", reason="").row
    assert isinstance(rule, Endpoint)
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    for number, failures in enumerate((40, 8, 3)):
        UsageSnapshot.objects.create(
            period=UsagePeriod.HOUR,
            start=hour,
            resource=Endpoint.objects.get(pk=rule.pk).resource_name,
            bucket=BucketKind.ENTITY,
            entity=f"ip:192.0.2.{number}",
            key="call_count",
            admitted_milli=failures * 1000,
        )
    block = "What the block would have rejected then is not included."
    assert outlook(limit) == f"Last 7 days: no client would have been rejected. {block}"
    lower = replace(limit, limits=("calls=5/h:sliding_window",))
    assert outlook(lower) == f"Last 7 days: 2 clients would have been rejected. {block}"
    assert outlook(replace(lower, block_for="")) == "Last 7 days: 2 clients would have been rejected."
    for other in ("", "5xx"):
        assert "nothing was recorded" in outlook(replace(lower, responses=other)), "that counts other requests"
