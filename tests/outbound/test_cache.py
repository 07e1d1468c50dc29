"""Answers from memory: what is kept, for how long, and for whom."""

from __future__ import annotations

import asyncio

import pytest

from limits_app.outbound import CachingClient, Request, Response
from tests.outbound.timelines import Scripted, answer, on_a_fake_clock

GET = Request(path="/")


@on_a_fake_clock
async def test_the_same_is_asked_once_while_the_answer_is_fresh() -> None:
    client = Scripted([answer()])
    caching = CachingClient(client, seconds=10)
    answers = [await caching.send(GET) for _ in range(3)]
    assert [one.cached for one in answers] == [False, True, True]
    await asyncio.sleep(10)
    assert not (await caching.send(GET)).cached
    assert len(client.sent) == 2
    await caching.aclose()
    assert client.closed


@pytest.mark.parametrize(
    ("control", "seconds"),
    [
        ("max-age=3", 3),
        ("public, max-age=4, x", 4),
        ("max-age=99999", 10),
        ("max-age=0", 0),
        ("no-store", 0),
        ("No-Cache", 0),
        ("x-max-age=3", 10),
    ],
)
@on_a_fake_clock
async def test_the_upstream_may_shorten_how_long_an_answer_is_kept(control: str, seconds: int) -> None:
    client = Scripted([answer(Cache_Control=control)])
    caching = CachingClient(client, seconds=10)
    await caching.send(GET)
    await asyncio.sleep(max(seconds - 0.5, 0.0))
    assert (await caching.send(GET)).cached is (seconds > 0)
    await asyncio.sleep(0.6)
    assert (await caching.send(GET)).cached is False


@pytest.mark.parametrize(
    ("first", "second", "response"),
    [
        pytest.param(GET, GET, answer(Vary="Accept, *"), id="an_answer_for_nobody_else"),
        pytest.param(GET, Request(path="/other"), answer(), id="another_path"),
        pytest.param(GET, Request(path="/", params={"q": "1"}), answer(), id="other_parameters"),
        pytest.param(GET, Request(path="/", headers={"A": "1"}), answer(), id="other_headers"),
        pytest.param(Request(method="POST", path="/"), Request(method="POST", path="/"), answer(), id="a_write"),
        pytest.param(Request(path="/", content=b"x"), Request(path="/", content=b"x"), answer(), id="with_content"),
        pytest.param(GET, GET, answer(404), id="a_failure"),
    ],
)
@on_a_fake_clock
async def test_responses_that_are_not_kept(first: Request, second: Request, response: Response) -> None:
    caching = CachingClient(Scripted([response]))
    await caching.send(first)
    assert not (await caching.send(second)).cached


@on_a_fake_clock
async def test_least_recently_used_response_is_forgotten() -> None:
    caching = CachingClient(Scripted([answer()]), most=2)
    for path in ("/a", "/b", "/a", "/c"):
        await caching.send(Request(path=path))
    assert [(await caching.send(Request(path=path))).cached for path in ("/a", "/c", "/b")] == [True, True, False]
