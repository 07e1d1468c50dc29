"""Who is charged how much for a call, as a demand reads it from the arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from limits_app import InvalidLimit, LimitSet, RateLimit
from limits_app.integrations.celery import Demand

JOB = {"tenant": {"id": 7}, "tokens": 30}


def ask(job: Any, tokens: int = 10, *, model: str = "small") -> None:
    """A task."""


def amounts(demand: Demand, *args: Any, **kwargs: Any) -> Any:
    share = demand.of_call(ask, args, kwargs)
    assert callable(share.requested)
    return share.requested(LimitSet([RateLimit("tpm", 100, 60), RateLimit("rpm", 100, 60)]))


@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        pytest.param(None, None, id="the_site_itself"),
        pytest.param("tenant:acme", "tenant:acme", id="as_it_is"),
        pytest.param("model:{model}", "model:small", id="an_argument_also_by_default"),
        pytest.param("tenant:{job.tenant.id}", "tenant:7", id="a_part_of_an_argument"),
        pytest.param("tokens:{tokens:04d}", "tokens:0010", id="with_a_format"),
        pytest.param("model:{model!s:.3}", "model:sma", id="converted"),
        pytest.param("{{{model}}}", "{small}", id="in_braces"),
        pytest.param(lambda job, **_: f"tenant:{job['tenant']['id']}", "tenant:7", id="a_callable"),
        pytest.param(lambda *_, **__: None, None, id="a_callable_that_names_nobody"),
    ],
)
def test_entity_is_read_from_the_arguments(entity: Any, expected: str | None) -> None:
    assert Demand("llm", entity).of_call(ask, (JOB,), {}).entity == expected


def test_parts_of_objects_and_of_messages_have_the_same_names() -> None:
    job = SimpleNamespace(tenant=SimpleNamespace(id=7))
    assert Demand("llm", "tenant:{job.tenant.id}").of_call(ask, (job,), {}).entity == "tenant:7"


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        pytest.param(None, {"tpm": 1, "rpm": 1}, id="one_of_each"),
        pytest.param({"tpm": 5}, {"tpm": 5, "rpm": 1}, id="a_number"),
        pytest.param({"tpm": "tokens"}, {"tpm": 10, "rpm": 1}, id="an_argument"),
        pytest.param({"tpm": "job.tokens"}, {"tpm": 30, "rpm": 1}, id="a_part_of_an_argument"),
        pytest.param({"tpm": lambda job, **_: 2 * job["tokens"]}, {"tpm": 60, "rpm": 1}, id="a_callable"),
        pytest.param(lambda *_, **__: {"tpm": 3, "rpm": 2}, {"tpm": 3, "rpm": 2}, id="a_callable_for_all"),
    ],
)
def test_amounts_are_read_from_the_arguments(requested: Any, expected: dict[str, int]) -> None:
    assert amounts(Demand("llm", requested=requested), JOB) == expected


def test_an_empty_entity_is_not_shared_by_all_tasks() -> None:
    with pytest.raises(InvalidLimit):
        Demand("llm", lambda *_, **__: "").of_call(ask, (JOB,), {})


@pytest.mark.parametrize(
    "spelling", ["tenant:{job.tenant}", "tenant:{job.tenant!s}", "{job.tenant!r}", "{job.tenant:}"]
)
@pytest.mark.parametrize("nobody", [None, ""])
def test_a_part_without_an_entity_is_not_shared_by_all_tasks(spelling: str, nobody: str | None) -> None:
    with pytest.raises(InvalidLimit, match=r"job\.tenant is (None|'')"):
        Demand("llm", spelling).of_call(ask, ({"tenant": nobody},), {})


def test_a_part_with_an_empty_format_has_no_entity() -> None:
    with pytest.raises(InvalidLimit, match="must not be empty"):
        Demand("llm", "model:{model:.0}").of_call(ask, (JOB,), {})


def test_zero_and_no_are_names_like_any_other() -> None:
    assert (
        Demand("llm", "tenant:{job.tenant}:{tokens}").of_call(ask, ({"tenant": False}, 0), {}).entity
        == "tenant:False:0"
    )


@pytest.mark.parametrize("spelling", ["tenant:{who}", "tenant:{}", "tenant:{0}"])
def test_unknown_argument_is_an_error(spelling: str) -> None:
    with pytest.raises(KeyError):
        Demand("llm", spelling).of_call(ask, (JOB,), {})


@pytest.mark.parametrize("bad", [{"resource": "not a name"}, {"resource": "llm", "entity": ""}])
def test_an_invalid_demand_is_rejected_immediately(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidLimit):
        Demand(**bad)
