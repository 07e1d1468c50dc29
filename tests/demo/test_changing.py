"""Which responses tell whether a change was obeyed."""

from __future__ import annotations

import pytest

from project.demo.changing import Change
from project.demo.traffic import ADMITTED, REFUSED, Response

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
def test_only_what_was_sent_after_a_change_and_answered_before_the_next_one_counts(
    other: Response, right: int, of: int
) -> None:
    change = Change("5 to 10 calls", ADMITTED, since=1.0, until=2.0)
    seen = change.seen_by(PROCESS, [other, response(ADMITTED, 1.2, 1.3)])
    assert (seen.right, seen.answers) == (right, of)


def test_a_process_that_never_obeys_a_change_has_no_first_right_response() -> None:
    change = Change("5 to 10 calls", ADMITTED, since=1.0, until=2.0)
    assert change.seen_by(PROCESS, [response(REFUSED, 1.2, 1.3)]).first_right == 0
    assert change.seen_by(PROCESS, []).problems()
