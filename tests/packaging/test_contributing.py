"""CONTRIBUTING.md names files and targets that exist, and every algorithm is in all places that it lists."""

from __future__ import annotations

import re

import pytest

from limits_app.core.algorithms import compile_rule
from limits_app.core.limits import RateLimit, RateLimitAlgorithm
from tests.docs.pages import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MADE_BY_COMMANDS = {"build/site", "dist/", "mutants/"}
FILES = {
    name
    for name in re.findall(r"`([\w./-]+(?:/|/\w+|\.\w+))`", CONTRIBUTING)
    if not re.search("NAME|NNNN|^limits_app[.]", name)
}
TARGETS = set(re.findall(r"make ([a-z-]+)[` ]", CONTRIBUTING))


@pytest.mark.parametrize("name", sorted(FILES - MADE_BY_COMMANDS))
def test_a_file_of_the_guide_exists(name: str) -> None:
    assert (ROOT / name).exists() or (ROOT / "limits_app" / name).exists()


def test_a_target_of_the_guide_exists() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"test", "test-all", "check", "release-check"} <= TARGETS <= set(targets)


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_an_algorithm_has_a_rule_a_lua_implementation_a_stored_format_and_a_page(algorithm: RateLimitAlgorithm) -> None:
    rule = compile_rule(RateLimit("x", 10, 60, algorithm), 0)
    name, *_ = rule.lua
    scripts = [file.read_text() for file in (ROOT / "limits_app" / "stores" / "redis").glob("*.lua")]
    assert sum(f"function algorithms.{name}(" in script for script in scripts) == 1
    assert len(rule.lua_format) >= len(rule.start)
    assert f"## {algorithm.label[0].upper()}{algorithm.label[1:]}" in (ROOT / "docs" / "algorithms.md").read_text()
