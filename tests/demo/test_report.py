"""The report of the demo names every figure that is not exact, and judges responses to a change."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from project.demo.changing import Change
from project.demo.report import Changed, Cost, Crowded, Permits, Report, Spent, table
from project.demo.traffic import ADMITTED, REFUSED, Response

EXACT = Report(
    crowded=[Crowded("amber", "150 a year", 220, 150, 150, 70), Crowded("elder", "blocked", 5, 0, 0, 5)],
    served={11: 112, 12: 113},
    changed=[Changed("amber: 40 to 90", 11, 1, 3.14, 20, 20), Changed("amber: 40 to 90", 12, 1, 12.0, 9, 9)],
    afterwards=Crowded("amber", "25 more", 50, 25, 25, 25),
    permits=Permits(2, 11, refused_before=True, back_ms=42.4, refused_meanwhile=3, came_back=1),
    asked=[Crowded("acme", "100 tokens", 15, 4, 4, 11)],
    spent=[Spent("east", 200, 180, 180)],
    costs=[Cost("key:red-1", Decimal("0.04"), Decimal("0.040"))],
    processes=2,
    seconds=9.5,
)


def test_an_exact_report_has_no_problems() -> None:
    assert EXACT.problems() == []


def test_columns_are_aligned_numbers_to_the_right() -> None:
    assert table(["who", "sent", "ms"], [["amber", "5", "10.5"], ["basil", "120", "3.1"]]) == (
        "  who    sent    ms\n"
        "  amber     5  10.5\n"
        "  basil   120   3.1"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        pytest.param(
            "afterwards", {"admitted": 26, "refused": 24}, "26 were allowed and 24 rejected", id="one_too_many"
        ),
        pytest.param("afterwards", {"refused": 24}, "25 were allowed and 24 rejected", id="one_neither_nor"),
        pytest.param("changed", {"first_right": 2, "right": 19}, "in 19 of 20 responses", id="obeyed_late"),
        pytest.param("changed", {"right": 19}, "in 19 of 20 responses", id="disobeyed_later"),
        pytest.param("changed", {"first_right": 0, "right": 0}, "in 0 of 20 responses", id="never_obeyed"),
        pytest.param("spent", {"used": 200}, "180 tokens should have been used, not 200", id="a_region_spent_more"),
        pytest.param("costs", {"amount": Decimal("0.040001")}, "should cost 0.04 USD, not 0.040001", id="wrong_cost"),
        pytest.param("permits", {"refused_before": False}, "another one was granted", id="a_permit_too_many"),
        pytest.param("permits", {"came_back": 0}, "released, not 0", id="a_permit_lost"),
        pytest.param("permits", {"came_back": 2}, "released, not 2", id="a_permit_of_a_living_process_given"),
        pytest.param("permits", {"back_ms": 1000.1}, "later than 1000 ms", id="a_permit_back_too_late"),
    ],
)
def test_inexact_figures_are_reported(part: str, change: dict[str, Any], problem: str) -> None:
    found: Any = getattr(EXACT, part)
    changes: dict[str, Any] = {
        part: [replace(found[0], **change), *found[1:]] if isinstance(found, list) else replace(found, **change)
    }
    (said,) = replace(EXACT, **changes).problems()
    assert problem in said


def test_a_process_without_requests_is_reported() -> None:
    (said,) = replace(EXACT, served={11: 225}).problems()
    assert said == "2 server processes should have responded, not 1"


PROCESS = 7


def response(status: int, started: float, ended: float, process: int = PROCESS) -> Response:
    return Response("somebody", status, process, started, ended)


@pytest.mark.parametrize(
    ("other", "right", "of"),
    [
        pytest.param(response(REFUSED, 0.9, 1.1), 1, 1, id="sent before the change"),
        pytest.param(response(REFUSED, 1.9, 2.1), 1, 1, id="under way at the next change"),
        pytest.param(response(REFUSED, 1.0, 1.1), 1, 2, id="decided under the old limit"),
        pytest.param(response(ADMITTED, 1.9, 2.0), 2, 2, id="answered just before the next change"),
        pytest.param(response(REFUSED, 1.0, 1.1, process=8), 1, 1, id="of another process"),
    ],
)
def test_only_requests_between_two_changes_count(other: Response, right: int, of: int) -> None:
    change = Change("5 to 10 calls", ADMITTED, since=1.0, until=2.0)
    seen = change.seen_by(PROCESS, [other, response(ADMITTED, 1.2, 1.3)])
    assert (seen.right, seen.answers) == (right, of)


def test_a_process_that_never_obeys_a_change_has_no_first_right_response() -> None:
    change = Change("5 to 10 calls", ADMITTED, since=1.0, until=2.0)
    assert change.seen_by(PROCESS, [response(REFUSED, 1.2, 1.3)]).first_right == 0
    assert change.seen_by(PROCESS, []).problems()
