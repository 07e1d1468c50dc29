"""The simulation of slices at a small size. It fails itself where more is admitted than a limit allows."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from benchmarks.simulation import Outcome, Setting, drawn, simulate, table
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit

CAPACITY = 20_000
LIMITS = {
    "quota": QuotaLimit("call_count", CAPACITY, "hour"),
    "token bucket": CallLimit.per_hour(CAPACITY),
    "fast refill": CallLimit(CAPACITY, 20),
    "gcra": CallLimit(CAPACITY, 3600, "gcra"),
}


def simulated(limit: AnyLimit, seconds: int, demand: float) -> Outcome:
    return simulate(Setting(limit, seconds, demand, machines=10, processes=4, seconds=20))


@pytest.mark.parametrize("seconds", [1, 5, 60])
@pytest.mark.parametrize("name", LIMITS)
def test_requests_above_the_limit_use_all_of_it_and_no_more(name: str, seconds: int) -> None:
    found = simulated(LIMITS[name], seconds, 3)
    _, allowed, out = found.curve[-1]
    if name == "quota":
        assert found.admitted + found.lost + out == allowed
    else:  # what has refilled while a slice was held is not returned
        assert 0.9 * allowed < found.admitted < allowed


@pytest.mark.parametrize("name", LIMITS)
def test_requests_below_the_limit_are_all_admitted_with_fewer_calls(name: str) -> None:
    found = simulated(LIMITS[name], 5, 0.5)
    assert found.admitted == found.requests == CAPACITY // 2
    assert found.calls < found.requests / 2
    assert found.lost > 0


def test_the_table_and_the_picture_show_the_outcomes() -> None:
    found = simulated(LIMITS["quota"], 5, 1.25)
    assert len(table({("quota", 1.25, 5): found}).splitlines()) == 3
    lines = ET.fromstring(drawn({5: found})).iter("{http://www.w3.org/2000/svg}polyline")  # noqa: S314 - it is our own
    assert [len(str(line.get("points")).split()) for line in lines] == [21] * 3
