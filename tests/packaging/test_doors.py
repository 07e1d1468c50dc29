"""Tests use the doors of the package: how often they do not is counted, and must not grow.

A test that reads an attribute whose name begins with an underscore, or replaces something, fails when the inside of
the package changes although its behaviour does not. Lower a limit when you have come below it.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PRIVATE_LIMIT = 50
"""Uses of private attributes of the package."""
FOREIGN_LIMIT = 8
"""Those of them in tests of other packages: in tests/NAME of what limits_app/NAME does not define."""
PATCH_LIMIT = 57
"""Replaced attributes and items of the package; those of Python, Django and other libraries are not its inside."""
PATCHES = {"patch", "patch.object", "patch.dict", "monkeypatch.setattr", "monkeypatch.setitem", "monkeypatch.delattr"}
LIBRARIES = {"_meta", "_replace", "_state"}
"""Names of Django and Python, which only look private."""
DIRECTORIES = {"celery": "integrations", "commands": "management", "configuration": "models"}
"""Packages of the directories of tests that have another name."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def defined(package: str = "") -> frozenset[str]:
    """The private names that modules, classes and instances of a package have."""
    paths = (ROOT / "limits_app" / package).rglob("*.py")
    return frozenset().union(*map(defined_in, paths)) - LIBRARIES


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The private names that a module defines."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return frozenset(filter(is_private, names))


def used(module: ast.Module) -> list[str]:
    """The private attributes that a module of tests reads of other objects, and the private names that it imports."""
    names: list[str] = []
    for node in ast.walk(module):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                names.append(name)
            case ast.ImportFrom(module=str(module), names=aliases) if module.startswith("limits_app"):
                names += [alias.name for alias in aliases if is_private(alias.name)]
    return names


def patches(module: ast.Module) -> int:
    """How often a module of tests replaces something of the package."""
    origins = dict(imported(module))
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and ast.unparse(node.func) in PATCHES]
    return sum(is_of_package(call.args[0], origins) for call in calls)


def imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module of tests imports, with where they come from."""
    for node in ast.walk(module):
        match node:
            case ast.Import(names=aliases):
                yield from ((alias.asname or alias.name.partition(".")[0], alias.name) for alias in aliases)
            case ast.ImportFrom(module=str(source), names=aliases):
                yield from ((alias.asname or alias.name, source) for alias in aliases)


def is_of_package(target: ast.expr, origins: Mapping[str, str]) -> bool:
    """Whether the target of a patch may be of the package: it is not imported from elsewhere."""
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    match target:
        case ast.Constant(value=str(path)):
            return path.startswith("limits_app")
        case ast.Call(func=ast.Name(id="type"), args=[of]):
            return is_of_package(of, origins)
        case ast.Name(id=name):
            return origins.get(name, "limits_app").partition(".")[0] in {"limits_app", "tests"}
        case _:
            return True


@cache
def modules() -> dict[str, tuple[list[str], int]]:
    """What each module of tests reads of other objects, and how often it replaces something."""
    counts = {}
    for path in (ROOT / "tests").rglob("*.py"):
        module = ast.parse(path.read_text())
        counts[path.relative_to(ROOT).as_posix()] = used(module), patches(module)
    return counts


def test_private_attributes_of_the_package() -> None:
    uses = Counter({name: sum(one in defined() for one in names) for name, (names, _) in modules().items()})
    assert uses.total() <= PRIVATE_LIMIT, uses.most_common(20)


def test_private_attributes_of_packages_that_are_not_under_test() -> None:
    uses: Counter[str] = Counter()
    for name, (names, _) in modules().items():
        directory = name.split("/")[1]
        foreign = defined() - defined(DIRECTORIES.get(directory, directory))
        uses[name] = sum(one in foreign for one in names)
    assert uses.total() <= FOREIGN_LIMIT, uses.most_common(20)


def test_patches() -> None:
    replaced = Counter({name: number for name, (_, number) in modules().items()})
    assert replaced.total() <= PATCH_LIMIT, replaced.most_common(20)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("store._file.open()", ["_file"]),
        ("from limits_app.engine.keys import _limits", ["_limits"]),
        ("self._file = 1", []),
        ("store.__class__", []),
    ],
)
def test_private_names_are_found(source: str, names: list[str]) -> None:
    assert used(ast.parse(source)) == names


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("monkeypatch.setattr(a, 'b', 1)\nwith patch.object(a, 'b'): pass\nsetattr(a, 'b', 1)", 2),
        ("monkeypatch.setattr('limits_app.engine.limits.b', 1)\nmonkeypatch.setattr('getpass.b', 1)", 1),
        ("from limits_app.stores import registry\nmonkeypatch.setitem(registry.b, 'c', 1)", 1),
        ("from tests.opened import store\nmonkeypatch.setattr(store, 'b', 1)", 1),
        ("monkeypatch.setattr(store(), 'b', 1)", 1),
        ("import os\nmonkeypatch.setattr(os, 'b', 1)", 0),
        ("from django.db import connections\nmonkeypatch.setattr(connections['a'].features, 'b', 1)", 0),
    ],
)
def test_patches_are_found(source: str, number: int) -> None:
    assert patches(ast.parse(source)) == number


def test_what_the_package_defines_is_private() -> None:
    assert {"_file", "_connections"} <= defined("stores")
    assert not defined() & {"_meta", "_default_manager", "_exit"}


def test_each_package_has_an_import_contract_of_its_door() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    protected = {
        module.removesuffix(".*")
        for contract in settings["tool"]["importlinter"]["contracts"]
        for module in contract.get("protected_modules", ())
    }
    packages = {f"limits_app.{path.parent.name}" for path in (ROOT / "limits_app").glob("*/__init__.py")}
    # Django writes the migrations.
    assert packages - {"limits_app.migrations"} == protected
