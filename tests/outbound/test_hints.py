"""What is read from the headers of an answer."""

from __future__ import annotations

import pytest

from limits_app.outbound.hints import Hints, Quota, hints_of
from tests.outbound.timelines import answer, refusal

NOON = 1_800_000_000.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        pytest.param("7", 7.0, id="seconds"),
        pytest.param("0.25", 0.25, id="parts_of_a_second"),
        pytest.param("Fri, 15 Jan 2027 08:00:30 GMT", 30.0, id="a_date"),
        pytest.param("Fri, 15 Jan 2027 07:00:00 GMT", 0.0, id="a_date_that_is_over"),
        pytest.param("999999999999", 366 * 86_400.0, id="not_for_ever"),
        pytest.param("-3", None, id="negative"),
        pytest.param("soon", None, id="a_word"),
        pytest.param("nan", None, id="no_number"),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, seconds: float | None) -> None:
    assert hints_of(refusal(Retry_After=value), unix_seconds=NOON) == Hints(True, seconds)


@pytest.mark.parametrize(
    ("headers", "quotas"),
    [
        pytest.param(
            {"RateLimit_Policy": '"rpm";q=100;w=60', "RateLimit": '"rpm";r=50;t=30'},
            [Quota("rpm", 100, 60.0, 50)],
            id="the_draft",
        ),
        pytest.param(
            {"RateLimit_Policy": '"s";q=5;w=1, "day";q=1000;w=86400;pk=:YQ==:', "RateLimit": '"day";r=3;t=9'},
            [Quota("s", 5, 1.0), Quota("day", 1000, 86_400.0, 3)],
            id="several_policies",
        ),
        pytest.param(
            {"RateLimit_Policy": '"bytes";q=100;w=60;qu="content-bytes", "rpm";q=7;w=60;qu="requests"'},
            [Quota("rpm", 7, 60.0)],
            id="only_those_of_requests",
        ),
        pytest.param(
            {"RateLimit_Policy": "10;w=60", "RateLimit": "limit=10, remaining=9, reset=60"},
            [Quota("10", 10, 60.0)],
            id="draft_seven",
        ),
        pytest.param(
            {"RateLimit": "limit=10, remaining=9, reset=60"}, [Quota("legacy", 10, 60.0, 9)], id="draft_seven_alone"
        ),
        pytest.param(
            {"RateLimit_Limit": "10, 10;w=60", "RateLimit_Remaining": "4", "RateLimit_Reset": "12"},
            [Quota("legacy", 10, 60.0, 4)],
            id="draft_three",
        ),
        pytest.param(
            {"X_RateLimit_Limit": "10", "X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "12"},
            [Quota("legacy", 10, 12.0, 0)],
            id="the_old_way",
        ),
        pytest.param(
            {"X_RateLimit_Limit": "10", "X_RateLimit_Reset": str(int(NOON) + 20)},
            [Quota("legacy", 10, 20.0)],
            id="the_old_way_with_a_moment",
        ),
        pytest.param({"X_RateLimit_Limit": "10", "X_RateLimit_Reset": str(int(NOON) - 20)}, [], id="a_moment_before"),
        pytest.param({"X_RateLimit_Limit": "ten", "X_RateLimit_Reset": "1"}, [], id="words"),
        pytest.param({"X_RateLimit_Limit": "10"}, [], id="no_window"),
        pytest.param({"RateLimit_Policy": '"rpm";q=0;w=60, "x";q=5;w=0, "y";q=-1;w=1, ;;;,='}, [], id="nonsense"),
        pytest.param({"RateLimit_Policy": f'"{"x" * 65}";q=1;w=1'}, [], id="a_name_without_end"),
    ],
)
def test_quotas_are_read_in_every_dialect(headers: dict[str, str], quotas: list[Quota]) -> None:
    assert list(hints_of(answer(**headers), unix_seconds=NOON).quotas) == quotas


def test_an_upstream_cannot_make_us_remember_any_number_of_quotas() -> None:
    many = ", ".join(f'"n{number}";q=1;w=1' for number in range(100))
    assert len(hints_of(answer(RateLimit_Policy=many), unix_seconds=NOON).quotas) == 8
