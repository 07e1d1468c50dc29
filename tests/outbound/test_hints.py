"""What is read from the headers of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter, tzset

import pytest

from limits_app.outbound.hints import Hints, Quota, hints_of
from tests.outbound.timelines import answer, refusal

NOON = 1_800_000_000.0


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose time is not that of Greenwich."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        tzset()
        yield
    tzset()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        pytest.param("7", 7.0, id="seconds"),
        pytest.param("0.25", 0.25, id="parts_of_a_second"),
        pytest.param("Fri, 15 Jan 2027 08:00:30 GMT", 30.0, id="a_date"),
        pytest.param("Fri, 15 Jan 2027 07:00:00 GMT", 0.0, id="a_date_that_is_over"),
        pytest.param("Fri Jan 15 08:00:30 2027", 30.0, id="a_date_of_asctime"),
        pytest.param("Fri, 15 Jan 2027 08:00:30 -0000", 30.0, id="a_date_without_a_zone"),
        pytest.param("999999999999", 366 * 86_400.0, id="not_for_ever"),
        pytest.param("-3", None, id="negative"),
        pytest.param("soon", None, id="a_word"),
        pytest.param("nan", None, id="no_number"),
    ],
)
@pytest.mark.usefixtures("far_east")
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
            {"RateLimit_Policy": '"a,b;c";q=9;w=60, "\\\\", "d\\"', "RateLimit": '"a,b;c";r=3;t=5, "b";r=0;t=1'},
            [Quota("a,b;c", 9, 60.0, 3)],
            id="names_with_commas",
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


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({"RateLimit": '"x";r=0;t=30'}, 30.0, id="alone"),
        pytest.param({"RateLimit": '"x";r=0;t=30, "y";r=0;t=40, "z";r=1;t=50'}, 40.0, id="the_longest"),
        pytest.param({"RateLimit": '"x";r=0'}, None, id="for_how_long_nobody_knows"),
        pytest.param({"RateLimit": '"x";r=0;t=30', "RateLimit_Policy": '"x";q=5;w=60'}, None, id="a_known_quota"),
    ],
)
def test_an_exhausted_limit_may_lack_its_quota(headers: dict[str, str], seconds: float | None) -> None:
    assert hints_of(answer(**headers), unix_seconds=NOON).empty_seconds == seconds


def test_rejection_without_a_time_ends_when_requests_remain() -> None:
    told = {"RateLimit": '"x";r=0;t=30', "RateLimit_Policy": '"x";q=5;w=60'}
    assert hints_of(refusal(**told), unix_seconds=NOON).retry_after == 30.0
    assert hints_of(refusal(Retry_After="3", **told), unix_seconds=NOON).retry_after == 3.0


@pytest.mark.parametrize("text", ['"' * 60_001, '"\\' * 30_000, ',;"a' * 15_000], ids=["quotes", "escapes", "all"])
def test_a_field_that_is_long_and_wrong_costs_little(text: str) -> None:
    before = perf_counter()
    hints_of(answer(RateLimit=text, RateLimit_Policy=text), unix_seconds=NOON)
    assert perf_counter() - before < 1


def test_an_upstream_cannot_make_us_remember_any_number_of_quotas() -> None:
    many = ", ".join(f'"n{number}";q=1;w=1' for number in range(100))
    assert len(hints_of(answer(RateLimit_Policy=many), unix_seconds=NOON).quotas) == 8
