"""Scripts are written out for requests that are small, and are as short as they can be."""

from __future__ import annotations

import re

import pytest

from limits_app.stores.redis.scripts import COUNTING, SOFT, script
from limits_app.stores.redis.straightening import Shape, straightened

TWINS = ("fixed_window", "gcra", "leaky_bucket", "permits", "quota", "sliding_window", "token_bucket")
ONE = Shape.of(1, [(1, "gcra")])

LOOPS = """\
local sums, many = {}, 0
local names, sums = {}, {}
for index = 1, count do
  for place = 1, 2 do
    sums[index] = KEYS[before + index]
  end
end
for ask = 1, asks do
  sums[scope] = take[name](sums[scope], KEYS[key])
end
for place = 1, #writes do
  call(writes[place])
end
"""

STRAIGHT = """\
local sums, many = {}, 0
local names_1, sums_1, names_2, sums_2
do
  for place = 1, 2 do
    sums_1 = KEYS[before + 1]
  end
end
do
  for place = 1, 2 do
    sums_2 = KEYS[before + 2]
  end
end
do
  sums_2 = take.gcra(sums_2, KEYS[key])
end
do
  sums_1 = take.quota(sums_1, KEYS[key])
end
for place = 1, #writes do
  call(writes[place])
end
"""


def test_loops_over_scopes_and_limits_are_written_out() -> None:
    assert straightened(LOOPS, Shape(2, ((2, "gcra"), (1, "quota")))) == STRAIGHT


@pytest.mark.parametrize(
    ("scopes", "limits", "is_written_out"),
    [(0, 0, False), (1, 0, True), (1, 3, True), (1, 4, False), (2, 2, True), (2, 3, True), (3, 3, False)],
)
def test_only_small_requests_have_a_script_of_their_own(scopes: int, limits: int, *, is_written_out: bool) -> None:
    assert (Shape.of(scopes, [(1, "gcra")] * limits) is not None) is is_written_out


@pytest.mark.parametrize("verb", ["acquire", "join", "settle", "undo", "credit", "choose", "choose_emptiest"])
@pytest.mark.parametrize("others", [frozenset[str](), frozenset([COUNTING, SOFT])])
def test_straight_scripts_have_no_loop_over_scopes_or_limits_where_they_decide(verb: str, others: set[str]) -> None:
    twins = frozenset(TWINS) | others
    looped = script(verb, twins).text
    straight = script(verb, twins, Shape.of(2, [(1, "gcra"), (2, "permits"), (2, "quota")])).text
    loops = re.compile(rb"for \w+ = 1, (?:count|scopes|asks) do|(?:states|raws|counts)\[")
    assert loops.search(looped)
    assert not loops.search(straight.split(b"local places, wants")[0])


@pytest.mark.parametrize("verb", ["acquire", "join", "settle", "undo", "credit", "choose", "choose_emptiest"])
@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("straight", [False, True])
def test_no_script_makes_a_function_that_it_does_not_call(verb: str, twin: str, *, straight: bool) -> None:
    shape = Shape.of(1, [(1, twin)]) if straight else None
    text = script(verb, frozenset({twin}), shape).text.decode()
    made = re.findall(r"local function (\w+)", text)
    assert made
    assert [name for name in made if len(re.findall(rf"\b{name}\b", text)) < 2] == []
    assert "--" not in text


def test_requests_of_one_shape_share_their_script() -> None:
    assert script("acquire", frozenset({"gcra"}), ONE) is script("acquire", frozenset({"gcra"}), ONE)
