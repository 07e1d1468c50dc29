"""The compiled wheel: its classes have no interpreted subclasses unless they allow it, and it has no coroutines."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.packaging.compiled import LEFT_OUT, TESTS

HOOKS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
COMPILED = sorted({path for pattern in HOOKS["mypyc"]["include"] for path in ROOT.glob(pattern.removeprefix("/"))})
ALLOWED = "allow_interpreted_subclasses"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def closed_classes(path: Path) -> Iterator[type]:
    """The classes of a compiled module from which only compiled classes may inherit."""
    module = import_module(module_of(path))
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not any(ALLOWED in ast.unparse(mark) for mark in node.decorator_list):
            closed = getattr(module, node.name)
            if not issubclass(closed, tuple | Enum | BaseException):  # which are as in Python
                yield closed


def subclasses(closed: type) -> Iterator[type]:
    for subclass in closed.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_subclasses_of_compiled_classes_are_compiled_or_allowed() -> None:
    for path in (ROOT / "limits_app").glob("[aes]*/**/*.py"):
        if module_of(path).split(".")[1] in {"acquiring", "engine", "services", "stores"}:
            import_module(module_of(path))
    compiled = {module_of(path) for path in COMPILED}
    interpreted = {
        f"{subclass.__module__}.{subclass.__name__} of {closed.__name__}"
        for path in COMPILED
        for closed in closed_classes(path)
        for subclass in subclasses(closed)
        if subclass.__module__.startswith("limits_app.") and subclass.__module__ not in compiled
    }
    assert interpreted == set(), "add the module to the wheel's hook of mypyc, or the decorator to the class"


@pytest.mark.parametrize("name", [*TESTS, *LEFT_OUT])
def test_what_runs_with_the_compiled_wheel_or_is_left_out_exists(name: str) -> None:
    # pytest ignores a name to deselect that does not exist.
    path, *names = name.partition("[")[0].split("::")
    source = ROOT / path
    assert source.exists()
    assert all(f" {function}(" in source.read_text() or f"class {function}" in source.read_text() for function in names)


@pytest.mark.parametrize("path", COMPILED, ids=module_of)
def test_compiled_modules_have_no_coroutines(path: Path) -> None:
    # A compiled one calls `throw` of what it awaits with three arguments, which is deprecated since Python 3.12.
    assert [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.AsyncFunctionDef)] == []
