"""The package is plain code: it generates no source, and leaves the internals of other libraries alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PACKAGE = ROOT / "limits_app"
FILES = sorted(PACKAGE.rglob("*.py"))

BANNED = {
    "a call of exec or eval": r"\b(exec|eval)\(",
    "an import of ast": r"^\s*(import ast\b|from ast import)",
    "linecache": r"\blinecache\b",
    "sys._getframe": r"\b_getframe\b",
    "the function of a lazy object": r"\b_setupfunc\b",
    "the store of headers": r"\bheaders\._store\b",
    "object.__init__ as a value": r"\bobject\.__init__(?!\()",
    "partial(tuple.__new__)": r"\bpartial\(tuple\.__new__",
    "a proxy": r"^    def __getattr__\(self",
    "a comment that counts calls": r"#.*\b(call more|calls more|call costs|calls cost)\b|\"\"\".*\bcalls? more\b",
}
"""Found nowhere."""


def found(pattern: str) -> dict[str, list[int]]:
    """The lines on which a pattern is found, by file."""
    places: dict[str, list[int]] = {}
    for path in FILES:
        lines = path.read_text().splitlines()
        numbers = [number for number, line in enumerate(lines, 1) if re.search(pattern, line)]
        if numbers:
            places[path.relative_to(PACKAGE).as_posix()] = numbers
    return places


@pytest.mark.parametrize("pattern", BANNED.values(), ids=BANNED)
def test_the_package_has_none(pattern: str) -> None:
    assert found(pattern) == {}


DECIDES = (
    *("integrations/**/*.py", "outbound/**/*.py", "stores/**/*.py", "usage/**/*.py", "workers/**/*.py"),
    *(
        f"services/{name}.py"
        for name in (
            *("acquire", "adjust", "amounts", "explain", "explain_pool", "explain_text", "idempotency", "notify"),
            *("pools", "request", "several", "shadow", "status", "unavailable"),
        )
    ),
)
"""What decides about requests, or explains a decision."""
ROWS = {"CandidateLimit", "Limit", "Policy", "PoolMember"}


def test_only_policies_reads_rows_of_policies_to_decide() -> None:
    files = [path for pattern in DECIDES for path in PACKAGE.glob(pattern)]
    assert len(files) > 100
    reading = {path.name: rows for path in files if (rows := models_in(path.read_text()) & ROWS)}
    assert reading == {}


@pytest.mark.parametrize("line", ["from limits_app.models import Entity, Policy", "rows = models.Policy.objects.all()"])
def test_reading_rows_of_policies_is_found(line: str) -> None:
    assert models_in(line) & ROWS == {"Policy"}


def models_in(source: str) -> set[str]:
    """The names that a module imports from the models, or takes from a module of models."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("limits_app.models"):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "models":
            names.add(node.attr)
    return names


def test_no_method_of_an_instance_or_class_is_replaced() -> None:
    """Special methods belong to the body of a class."""
    replaced = [place for path in FILES for place in assigned_special_methods(path)]
    assert replaced == []


def assigned_special_methods(path: Path) -> Iterator[str]:
    """Assignments such as `thing.__call__ = function`, and `__init__ = object.__init__` in a class."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            if name in {"__call__", "__init__", "__new__", "__enter__", "__exit__", "__getattribute__"}:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("    exec(source, names)", "a call of exec or eval"),
        ("value = eval(text)", "a call of exec or eval"),
        ("import ast", "an import of ast"),
        ("    from ast import parse", "an import of ast"),
        ("linecache.checkcache()", "linecache"),
        ("frame = sys._getframe(1)", "sys._getframe"),
        ('setup = vars(user)["_setupfunc"]', "the function of a lazy object"),
        ("response.headers._store[name] = value", "the store of headers"),
        ("__init__ = object.__init__", "object.__init__ as a value"),
        ("make = partial(tuple.__new__, Share)", "partial(tuple.__new__)"),
        ("    def __getattr__(self, name: str) -> object:", "a proxy"),
        ("value = get(key)  # a call costs", "a comment that counts calls"),
    ],
)
def test_patterns_find_their_examples(line: str, name: str) -> None:
    assert re.search(BANNED[name], line)


@pytest.mark.parametrize("line", ["executor.submit(work)", "evaluate(rule)", "object.__init__(self)"])
def test_the_patterns_leave_ordinary_code_alone(line: str) -> None:
    assert not any(re.search(pattern, line) for pattern in BANNED.values())
