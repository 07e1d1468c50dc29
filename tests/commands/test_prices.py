"""`limits prices`: lists of prices are previewed, imported as a whole, and exact."""

from __future__ import annotations

import io
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
import time_machine

from limits_app.engine.errors import InvalidLimit
from limits_app.models import AuditEvent, Price
from limits_app.services.price_files import MAX_PRICE_CHARACTERS, ImportOptions, read_prices
from tests.commands.running import run
from tests.replacing import type_in

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 10, 25, tzinfo=UTC)
NEXT = datetime(2026, 3, 1, 11, tzinfo=UTC)


@pytest.fixture(autouse=True)
def time() -> Any:
    with time_machine.travel(NOW, tick=False) as traveller:
        yield traveller


def written(directory: Path, data: object, name: str = "prices.json") -> Path:
    path = directory / name
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def imported(path: Path, *options: str) -> dict[str, Any]:
    """Import a file; returns what that has changed."""
    ran = run(f"prices import {path} --yes --format json {' '.join(options)}")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


def amounts(**filters: Any) -> dict[tuple[str, str], tuple[Decimal, int]]:
    return {(row.resource, row.unit): (row.amount, row.per) for row in Price.objects.filter(**filters)}


def models(number: int, *, seed: int = 7) -> dict[str, Any]:
    """A list of the form that LiteLLM publishes, with some of its oddities."""
    drawn = Random(seed)
    listed: dict[str, Any] = {
        "sample_spec": {
            "input_cost_per_token": 0.0,
            "litellm_provider": "one of",
            "max_tokens": "a text",
            "mode": "one of",
        }
    }
    for n in range(number):
        provider = drawn.choice(["alpha", "beta", "gamma"])
        name = drawn.choice([f"{provider}/model-{n}", f"model-{n}-v1:0", f"model-{n}"])
        listed[name] = {
            "input_cost_per_token": drawn.choice([2.5e-06, 1.5e-07, 0.0, 3, 2.1875e-06]),
            "output_cost_per_token": drawn.choice([1e-05, 6e-07, 0.0, 8.8e-07]),
            "litellm_provider": provider,
            "max_input_tokens": 128000,
            "mode": "chat",
            "supports_vision": True,
            "search_context_cost_per_query": {"search_context_size_low": 0.03},
        }
        if n % 3 == 0:
            listed[name]["cache_read_input_token_cost"] = 1.25e-06
        if n % 50 == 0:
            listed[name]["output_cost_per_token"] = 2.9999900000000002e-06
        if n % 70 == 0:
            listed[name] = {"litellm_provider": provider, "mode": "image_generation", "output_cost_per_image": 0.06}
    return listed


def test_thousand_models_are_previewed_and_imported_exactly(tmp_path: Path) -> None:
    listed = models(1000)
    path = written(tmp_path, listed)
    preview = json.loads(run(f"prices import {path} --dry-run --format json").out)
    assert not Price.objects.exists()
    report = imported(path)
    assert report == preview
    rows = amounts()
    assert report["counts"] == {
        "added": len(rows),
        "changed": 0,
        "unchanged": 0,
        "skipped": report["counts"]["skipped"],
    }
    skipped = {change["source"] for change in report["changes"] if change["change"] == "skipped"}
    for name, model in listed.items():
        prices = {unit: amount for (resource, unit), amount in rows.items() if resource == name}
        costs = {
            "input_tokens": model.get("input_cost_per_token"),
            "output_tokens": model.get("output_cost_per_token"),
            "cached_tokens": model.get("cache_read_input_token_cost"),
        }
        is_imported = name not in skipped and name != "sample_spec"
        expected = {
            unit: Decimal(repr(cost)) for unit, cost in costs.items() if cost or (cost == 0 and not any(costs.values()))
        }
        assert {unit: amount / per for unit, (amount, per) in prices.items()} == (expected if is_imported else {})
    assert {row.valid_from for row in Price.objects.all()} == {NEXT}
    assert AuditEvent.objects.count() == len(rows)
    again = imported(path)
    assert (again["counts"]["added"], again["counts"]["changed"], again["counts"]["unchanged"]) == (0, 0, len(rows))


def test_skipped_prices_have_a_reason(tmp_path: Path) -> None:
    model = {"litellm_provider": "a", "input_cost_per_token": 1e-06}
    data = {
        "a/colon:0": model,
        "1024-x-1024/a": model,
        "a/noise": {**model, "output_cost_per_token": 2.9999900000000002e-06},
        "a/picture": {"litellm_provider": "a", "output_cost_per_image": 0.06},
        "a/text": {**model, "input_cost_per_token": "free"},
        "a/negative": {**model, "input_cost_per_token": -1e-06},
        "a/nothing": None,
        "a/good": model,
    }
    changes = imported(written(tmp_path, data))["changes"]
    reasons = {change["source"]: change["reason"] for change in changes}
    assert reasons.pop("a/good") == ""
    assert "--replace" in reasons["a/colon:0"]
    assert "--replace" in reasons["1024-x-1024/a"]
    assert "more than 9 decimals" in reasons["a/noise"]
    assert "has no price of the units" in reasons["a/picture"]
    assert "must be a number" in reasons["a/text"]
    assert "must be an object" in reasons["a/nothing"]
    assert "--unit output_cost_per_image=KEY" in reasons["output_cost_per_image"]
    assert {*reasons} == {*data, "output_cost_per_image"} - {"a/good"}
    assert {*amounts()} == {("a/good", "input_tokens")}


def test_names_and_units_are_mapped(tmp_path: Path) -> None:
    data = {
        "gpt:0": {"litellm_provider": "openai", "input_cost_per_token": 1e-06, "output_cost_per_image": 0.06},
        "openai/o3": {"litellm_provider": "openai", "input_cost_per_token": 2e-06, "output_cost_per_token": 1e-06},
        "claude": {"litellm_provider": "anthropic", "input_cost_per_token": 3e-06},
        "azure/search": {"litellm_provider": "azure", "input_cost_per_request": 0.005},
    }
    path = written(tmp_path, data)
    options = ("--provider openai", "--provider azure", "--resource 'llm/{provider}/{model}'", "--replace :=-")
    imported(path, *options, "--unit output_cost_per_image=images", "--unit output_cost_per_token=", "--currency eur")
    assert amounts(currency="eur") == {
        ("llm/openai/gpt-0", "input_tokens"): (1, 1_000_000),
        ("llm/openai/gpt-0", "images"): (Decimal("0.06"), 1),
        ("llm/openai/o3", "input_tokens"): (2, 1_000_000),
        ("llm/azure/search", "call_count"): (Decimal("0.005"), 1),
    }


def test_models_of_one_resource_need_one_price(tmp_path: Path) -> None:
    model = {"input_cost_per_token": 1e-06}
    data = {
        "x/m": {**model, "litellm_provider": "x"},
        "y/m": {**model, "litellm_provider": "y"},
        "z/m": {"input_cost_per_token": 2e-06, "litellm_provider": "z"},
    }
    changes = imported(written(tmp_path, data), "--resource '{model}'")["changes"]
    assert Counter(change["change"] for change in changes) == {"added": 1, "skipped": 1}
    assert "as x/m is, at another price" in changes[1]["reason"]


def test_price_that_becomes_zero_is_a_change(tmp_path: Path, time: Any) -> None:
    model = {"litellm_provider": "a", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}
    imported(written(tmp_path, {"a": model, "b": {**model, "output_cost_per_token": 0}}))
    assert {*amounts()} == {("a", "input_tokens"), ("a", "output_tokens"), ("b", "input_tokens")}
    time.shift(timedelta(days=1))
    report = imported(written(tmp_path, {"a": {**model, "output_cost_per_token": 0.0}}))
    [change] = report["changes"]
    assert (change["before"], change["after"]) == (
        "2 USD per 1,000,000 output_tokens",
        "0 USD per 1,000,000 output_tokens",
    )
    assert Price.objects.count() == 4


def test_new_price_is_a_new_row_and_one_of_the_same_hour_is_changed(tmp_path: Path, time: Any) -> None:
    model = {"litellm_provider": "a", "input_cost_per_token": 1e-06}
    imported(written(tmp_path, {"m": model}))
    imported(written(tmp_path, {"m": {**model, "input_cost_per_token": 2e-06}}))
    assert amounts() == {("m", "input_tokens"): (2, 1_000_000)}
    time.shift(timedelta(days=1))
    imported(written(tmp_path, {"m": {**model, "input_cost_per_token": 3e-06}}), "--from 2026-04-01T00:00Z")
    rows = Price.objects.order_by("valid_from").values_list("amount", "valid_from")
    assert [*rows] == [(2, NEXT), (3, datetime(2026, 4, 1, tzinfo=UTC))]


def test_list_is_imported_again_as_it_was_written(tmp_path: Path, time: Any) -> None:
    run("prices set 'a/*' input_tokens=0.15 images=2 --per 1k --yes")
    run("prices set pool call_count=0.01 --per 1 --member eu-1 --currency eur --yes")
    time.shift(timedelta(days=1))
    run("prices set 'a/*' images=3 --per 1k --from 2026-05-01T00:00Z")
    for form in ("csv", "json"):
        text = run(f"prices list --format {form}").out
        before = [*Price.objects.order_by("pk").values()]
        report = imported(written(tmp_path, text, f"list.{form}"))
        assert report["counts"] == {"added": 0, "changed": 0, "unchanged": 4, "skipped": 0}
        assert [*Price.objects.order_by("pk").values()] == before
    text = run("prices list --format csv").out
    Price.objects.all()._raw_delete("default")
    imported(written(tmp_path, text))
    again = run("prices list --format json").out
    assert [row["amount"] for row in json.loads(again)] == ["2", "3", "0.15", "0.01"]


def test_errors_in_a_price_list_are_reported(tmp_path: Path) -> None:
    text = (
        "resource,unit,amount,currency,per\na,t,0.15,usd,1000\na,u,x,usd,\na b,t,1,usd,\na,t2,1,gbp,1\na,t3,1,usd,7\n"
    )
    changes = imported(written(tmp_path, text, "prices.csv"))["changes"]
    assert [change["change"] for change in changes] == ["added", *["skipped"] * 4]
    assert [change["source"] for change in changes[1:]] == ["price 3", "price 4", "price 5", "price 6"]
    assert "Write a number" in changes[1]["reason"]
    listed = imported(written(tmp_path, {"prices": [None, {"resource": []}, "x"]}))["changes"]
    assert [change["change"] for change in listed] == ["skipped"] * 3


@pytest.mark.parametrize(
    "text",
    ["", "name,price\na,1\n", "{", "[1,", "{}", '{"a": 1}', "x", '{"a": ' * 100_000, "resource\n", "\x00"],
)
def test_file_of_another_kind_is_an_error(tmp_path: Path, text: str) -> None:
    ran = run(f"prices import {written(tmp_path, text)} --yes")
    assert ran.code == 2, ran
    assert "the file must be CSV" in ran.err


def test_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert run(f"prices import {tmp_path}/none.json").code == 1
    (tmp_path / "latin.csv").write_bytes(b"\xff\xfe")
    assert run(f"prices import {tmp_path}/latin.csv").code == 2
    with pytest.raises(InvalidLimit, match="split it"):
        read_prices("[" + " " * MAX_PRICE_CHARACTERS, ImportOptions())


def test_list_is_read_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, io.StringIO('[{"resource": "a", "unit": "t", "amount": 1, "currency": "usd"}]'))
    assert run("prices import - --yes").code == 0
    assert amounts() == {("a", "t"): (1, 1_000_000)}


def test_several_prices_are_confirmed(tmp_path: Path) -> None:
    path = written(tmp_path, models(3))
    ran = run(f"prices import {path}")
    assert ran.code == 2
    assert "pass --yes" in ran.err
    assert not Price.objects.exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prices set a t=x", "Write a number"),
        ("prices set a t", "“=” between"),
        ("prices set a t=1 --per 7", "one of 1, 1k, 1M"),
        ("prices set a t=1 --from 2026-01-01", "a time in the past"),
        ("prices set a t=1 --from 2026-04-01T00:30Z", "a full hour"),
        ("prices set a usd=1", "is a currency"),
        ("prices set a t=1 --currency gbp", "choose one of usd, eur"),
        ("prices set 'a*' t=1", "A pattern needs one of"),
    ],
)
def test_wrong_price_is_an_error(line: str, message: str) -> None:
    ran = run(line)
    assert ran.code == 2
    assert message in ran.err
    assert not Price.objects.exists()


def test_permits_have_no_price(tmp_path: Path) -> None:
    run("system set slots=5 --yes")
    ran = run("prices set a slots=1")
    assert (ran.code, "is the key of a concurrency limit" in ran.err) == (2, True)
    listed = [{"resource": "a", "unit": unit, "amount": 1, "currency": "usd"} for unit in ("slots", "t")]
    assert imported(written(tmp_path, listed))["counts"] == {"added": 1, "changed": 0, "unchanged": 0, "skipped": 1}
    assert {*amounts()} == {("a", "t")}


def test_list_shows_current_prices_and_the_history(time: Any) -> None:
    assert "There are no prices" in run("prices list").err
    run("prices set m t=1")
    time.shift(timedelta(days=1))
    run("prices set m t=2")
    time.shift(timedelta(days=1))
    run("prices set m t=3 --from 2026-05-01T00:00Z")
    states = [(row["amount"], row["state"]) for row in json.loads(run("prices list --format json").out)]
    assert states == [("2", "current"), ("3", "future")]
    history = json.loads(run("prices list --resource m --unit t --history --format json").out)
    assert [row["state"] for row in history] == ["past", "current", "future"]
    assert "2 USD per 1,000,000 t" in run("prices list").out
