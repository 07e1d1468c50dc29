"""Rules for URLs with more than limits: what forms, the doctor and files make of them."""

from __future__ import annotations

import pytest

from limits_app.models import Endpoint
from limits_app.services.doctor import diagnose
from limits_app.services.limit_form.saving import replaced
from limits_app.services.limit_sentences import SimpleLimit, What, Who, is_sentence
from limits_app.services.limits_file import apply, export, read_content

pytestmark = pytest.mark.django_db(transaction=True)

CONDITIONS = [
    {"combined_with": "form:username"},
    {"responses": "errors"},
    {"cost": "header:X-Cost"},
    {"block_for": "10m"},
    {"refusal_status": 403},
    {"refusal_body": "no"},
]


@pytest.mark.parametrize("field", CONDITIONS)
def test_a_sentence_neither_shows_nor_replaces_a_rule_with_conditions(field: dict[str, object]) -> None:
    plain = {"path": "/login/", "limits": "calls=5/min", "counted_by": "ip"}
    rule = Endpoint.objects.create(name="log-in", **plain, **field)
    limit = SimpleLimit(What.URL, Who.ADDRESS, ("calls=9/min",), path="/login/")
    assert not is_sentence(rule)
    assert replaced(limit) is None
    other = Endpoint.objects.create(name="other", **plain)
    assert is_sentence(other)
    assert replaced(limit) == other


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
