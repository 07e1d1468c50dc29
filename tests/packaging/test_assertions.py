"""Each test can fail: it asserts something, expects an error, or calls a function of the tests that does."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT

EXPECTING = {"raises", "warns", "fail", "run_state_machine_as_test"}
"""Functions of pytest and hypothesis that fail a test."""


class Function(NamedTuple):
    """A function of the tests: whether it asserts something itself, and the functions that it calls by any name."""

    name: str
    asserts: bool
    calls: frozenset[str]


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def functions_in(module: ast.Module) -> Iterator[Function]:
    """All functions and methods of a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = list(ast.walk(node))
            names = frozenset(called(call) for call in inside if isinstance(call, ast.Call))
            asserts = any(isinstance(statement, ast.Assert | ast.Raise) for statement in inside)
            yield Function(node.name, asserts or bool(names & EXPECTING or [*filter(is_assertion, names)]), names)


def is_assertion(name: str) -> bool:
    return name.lower().startswith("assert") or name in {"django_assert_num_queries", "check_call"}


def silent(functions: Iterable[Function]) -> list[str]:
    """The tests that neither assert something nor call what does."""
    functions = list(functions)
    asserting = {function.name for function in functions if function.asserts and not function.name.startswith("test_")}
    while new := {function.name for function in functions if function.calls & asserting} - asserting:
        asserting |= new
    tests = [function for function in functions if function.name.startswith("test_")]
    return [test.name for test in tests if not test.asserts and test.name not in asserting]


def test_every_test_can_fail() -> None:
    paths = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "limits_app" / "testing").rglob("*.py")]
    functions = [function for path in paths for function in functions_in(ast.parse(path.read_text()))]
    assert len(functions) > 7000
    assert silent(functions) == []


@pytest.mark.parametrize(
    ("body", "is_silent"),
    [
        ("limits.acquire('api')", True),
        ("for limit in limits:\n        use(limit)", True),
        ("assert limits", False),
        ("with pytest.raises(ValueError):\n        use()", False),
        ("with django_assert_num_queries(2):\n        use()", False),
        ("check(limits)", False),
        ("outer(limits)", False),
    ],
)
def test_silent_tests_are_found(body: str, is_silent: bool) -> None:
    helpers = "def check(limits):\n    assert limits\ndef outer(limits):\n    check(limits)\n"
    source = f"{helpers}def test_it():\n    {body}\n"
    assert silent(functions_in(ast.parse(source))) == (["test_it"] if is_silent else [])
