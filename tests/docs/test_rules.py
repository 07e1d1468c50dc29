"""The page on architecture: its rules name functions and tests that exist, and its layers are those of the contract."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from typing import Final

import pytest

from tests.docs.pages import DOCS, ROOT, rows

RULES: Final = rows(DOCS / "architecture.md", "Where is the rule?")
CODE: Final = re.compile(r"`([^`]+)`")


def test_the_table_has_each_rule_and_each_function_once() -> None:
    assert len(RULES) >= 25
    functions = [name for _, functions, _ in RULES for name in CODE.findall(functions)]
    for column in ([rule for rule, _, _ in RULES], functions):
        assert {value for value in column if column.count(value) > 1} == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_a_rule_is_a_sentence_with_a_function_and_a_test(rule: list[str]) -> None:
    sentence, functions, tests = rule
    assert re.fullmatch(r"[A-Z].*[.]", sentence)
    for name in CODE.findall(functions):
        assert exists(name), f"limits_app has no {name}: name the function that implements the rule now"
    for path in CODE.findall(tests):
        assert (ROOT / path).exists(), f"there is no {path}: name the tests of the rule"
    assert CODE.search(functions)
    assert CODE.search(tests)


def test_the_modules_that_decide_are_written_in_one_way_and_exist() -> None:
    section = (DOCS / "architecture.md").read_text().partition("\n## Modules that decide\n")[2].partition("\n## ")[0]
    answers = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    assert len(answers) >= 100
    for answer in answers:
        assert wrong_names(answer) == [], answer


def wrong_names(answer: str) -> list[str]:
    """The names of a row that are neither a path below limits_app, nor in the file that is named before them."""
    wrong, module = [], ""
    for name in CODE.findall(answer):
        path = ROOT / "limits_app" / name
        if "/" not in name and not name.endswith(".py"):
            exists_in_module = bool(module) and exists(f"{module}.{name}")
            wrong += [] if exists_in_module else [name]
        elif name.endswith("/"):
            wrong += [] if path.is_dir() else [name]
        else:
            module = name.removesuffix(".py").replace("/", ".")
            wrong += [] if path.is_file() else [name]
    return wrong


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("`engine/keys.py`: `scope_of`; `stores/redis/keep.lua` and `engine/algorithms/`", []),
        ("`engine/keys`, `engine/keys/`, `engine/algorithms`", ["engine/keys", "engine/keys/", "engine/algorithms"]),
        ("`scope_of`", ["scope_of"]),
        ("`engine/keys.py`: `no_such`; `engine/record.py`: `scope_of`", ["no_such", "scope_of"]),
    ],
)
def test_a_row_with_another_way_to_write_a_module_is_found(answer: str, wrong: list[str]) -> None:
    assert wrong_names(answer) == wrong


def exists(name: str) -> bool:
    """Whether the package has a file, or a function, class or value in the module that is named before it."""
    if "/" in name:
        return (ROOT / "limits_app" / name).is_file()
    module, *attributes = module_of(name)
    value: object = import_module(module)
    for attribute in attributes:
        value = getattr(value, attribute, None)
    return value is not None and bool(attributes)


def module_of(name: str) -> list[str]:
    """The longest part of a name that is a module, and the rest."""
    parts = ["limits_app", *name.split(".")]
    for count in range(len(parts), 1, -1):
        path = ROOT.joinpath(*parts[:count])
        if path.with_suffix(".py").is_file() or path.is_dir():
            return [".".join(parts[:count]), *parts[count:]]
    return ["limits_app", *parts[1:]]


def test_the_table_of_layers_has_the_packages_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    documented = [sorted(CODE.findall(packages)) for _, packages, _ in rows(DOCS / "architecture.md", "Layers")]
    assert documented == [sorted(layer.split(" | ")) for layer in layers]


@pytest.mark.parametrize(
    "name", ["engine.engine.no_such_function", "no_such.module", "engine.engine", "stores/none.lua"]
)
def test_a_name_that_does_not_exist_is_found(name: str) -> None:
    assert not exists(name)
