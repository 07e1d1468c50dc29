"""Balancers: who is asked first, and who next."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import seed
from typing import Any

import pytest

from limits_app.core.balancing import Balancer, balancer_named, checked_weights

FIVE = ("round_robin", "random", "weighted", "least_loaded", "failover")
THREE = (0, 1, 2)


def balancer(name: str, weights: tuple[float, ...] = (1, 1, 1), worker_index: int = 0) -> Balancer:
    return balancer_named(name)(weights, worker_index)


@pytest.mark.parametrize("name", ["round_robin", "least_loaded"])
def test_in_turns_each_is_first_and_the_others_follow_it(name: str) -> None:
    in_turns = balancer(name)
    assert [tuple(in_turns.order(THREE)) for _ in range(4)] == [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 1, 2)]


def test_turns_are_taken_among_the_candidates_of_each_request() -> None:
    in_turns = balancer("round_robin")
    assert [tuple(in_turns.order(some)) for some in ((0, 1, 2), (1, 2), (2,), (0, 2))] == [
        (0, 1, 2),
        (2, 1),
        (2,),
        (2, 0),
    ]


def test_threads_that_take_turns_do_not_get_the_same_one() -> None:
    in_turns = balancer("round_robin")
    with ThreadPoolExecutor(8) as executor:
        firsts = Counter(executor.map(lambda _: in_turns.order(THREE)[0], range(3000)))
    assert firsts == {0: 1000, 1: 1000, 2: 1000}


def test_at_random_each_order_comes_up_as_often_as_any_other() -> None:
    seed(1)
    at_random = balancer("random")
    orders = Counter(tuple(at_random.order(THREE)) for _ in range(6000))
    assert len(orders) == 6
    assert all(abs(count - 1000) < 150 for count in orders.values())


def test_with_weights_each_is_first_as_often_as_its_weight_says() -> None:
    seed(1)
    weighted = balancer("weighted", (1, 2.5, 6.5))
    firsts = Counter(weighted.order(THREE)[0] for _ in range(10_000))
    assert [abs(firsts[index] - expected) < 200 for index, expected in enumerate((1000, 2500, 6500))] == [True] * 3


def test_with_weights_the_next_is_drawn_from_those_that_are_left() -> None:
    seed(1)
    weighted = balancer("weighted", (1, 3, 1_000_000))
    seconds = Counter(weighted.order(THREE)[1] for _ in range(10_000))
    assert abs(seconds[1] - 7500) < 200


@pytest.mark.parametrize("name", FIVE)
def test_all_candidates_are_in_the_order_once(name: str) -> None:
    for some in (THREE, (1,), (0, 2)):
        assert sorted(balancer(name).order(some)) == list(some)


@pytest.mark.parametrize("name", ["", "Random", "round-robin", "rr"])
def test_a_balancer_that_is_none_is_an_error_that_lists_them(name: str) -> None:
    with pytest.raises(ValueError, match="must be one of round_robin, random, weighted, least_loaded, failover"):
        balancer_named(name)


def test_weights_are_one_unless_they_are_given() -> None:
    assert checked_weights(None, 3) == (1, 1, 1)
    assert checked_weights([1, 0.5, 10**9], 3) == (1, 0.5, 10**9)


@pytest.mark.parametrize("weights", [[], [1], [1, 2, 3]])
def test_there_is_one_weight_for_each_set(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be one for each of the 2 limit sets"):
        checked_weights(weights, 2)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 10**400, True, "1", None])
def test_a_weight_is_a_number_above_zero(weight: Any) -> None:
    with pytest.raises(ValueError, match="a weight must be a number above 0, not "):
        checked_weights([1, weight], 2)


def test_what_comes_next_can_be_seen_without_taking_a_turn() -> None:
    turns = balancer_named("round_robin")([1, 1, 1], 1)
    assert [turns.preview((0, 1, 2)) for _ in range(3)] == [(1, 2, 0)] * 3
    assert turns.order((0, 1, 2)) == (1, 2, 0)
    assert turns.preview((0, 1, 2)) == (2, 0, 1)
    assert balancer_named("random")([1, 1], 0).preview((0, 1)) == (0, 1)
    assert balancer_named("weighted")([1, 9], 0).preview((0, 1)) == [1, 0]
    assert balancer_named("failover")([1, 1], 0).preview((0, 1)) == (0, 1)
