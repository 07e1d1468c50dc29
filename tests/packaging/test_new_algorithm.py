"""Every algorithm is in all places that need it; CONTRIBUTING.md lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from limits_app.core.algorithms import compile_rule
from limits_app.core.limits import RateLimit, RateLimitAlgorithm
from limits_app.core.record import schema_of
from limits_app.models.limit import ALGORITHMS
from limits_app.stores.redis.records import Codec

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_an_algorithm_has_a_rule_a_lua_implementation_a_stored_format_and_a_label(
    algorithm: RateLimitAlgorithm,
) -> None:
    limit = RateLimit("x", 10, 60, algorithm)
    name, *_ = compile_rule(limit, 0).lua
    scripts = [file.read_text() for file in (ROOT / "limits_app" / "stores" / "redis").glob("*.lua")]
    assert sum(f"algorithms.{name} = " in script for script in scripts) == 1
    assert Codec(schema_of((limit,))).states_format
    label = str(dict(ALGORITHMS)[algorithm])
    assert f"## {label[0].upper()}{label[1:]}" in (ROOT / "docs" / "algorithms.md").read_text()
