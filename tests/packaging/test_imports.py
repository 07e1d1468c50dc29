"""Imports within the engine and between it and what is above, with those that only annotations need."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

from tests.docs.pages import ROOT

PURE = ("limits_app.engine", "limits_app.acquiring")


@cache
def graph() -> grimp.ImportGraph:
    """All imports of the package; `make imports` leaves out those under TYPE_CHECKING."""
    return grimp.build_graph("limits_app", exclude_type_checking_imports=False, cache_dir=None)


def modules_of(package: str) -> list[str]:
    return sorted(module for module in graph().modules if module.startswith(f"{package}."))


def test_the_engine_imports_nothing_but_itself() -> None:
    imported = {module: graph().find_modules_directly_imported_by(module) for module in modules_of(PURE[0])}
    above = {
        (module, other)
        for module, others in imported.items()
        for other in others
        if other.startswith("limits_app") and not other.startswith("limits_app.engine")
    }
    assert above == set()


def test_acquiring_imports_nothing_above_it() -> None:
    imported = {other for module in modules_of(PURE[1]) for other in graph().find_modules_directly_imported_by(module)}
    assert {other for other in imported if other.startswith("limits_app") and not other.startswith(PURE)} == set()


@pytest.mark.parametrize("package", PURE)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    modules = set(modules_of(package))
    assert len(modules) > 10
    imports = {module: graph().find_modules_directly_imported_by(module) & modules for module in modules}
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


LOADS_BY_NAME = {
    "__init__.py": "the door of the package loads what is used of it",
    "admin/pages/__init__.py": "each page is loaded when it is opened",
    "alerts/__init__.py": "the door of the package loads what is used of it",
    "testing/__init__.py": "the door of the package loads what is used of it",
    "stores/registry.py": "the registry of stores loads the store of a site",
    "stores/process/files.py": "a system has one of two modules of Python for locks",
    "workers/host.py": "cloudpickle is optional",
    "checks/site.py": "settings of Django name classes",
    "conf/__init__.py": "settings name functions",
    "integrations/identity.py": "settings of Django name classes",
    "integrations/ratelimit.py": "its decorator takes names, as that of django-ratelimit does",
    "models/namespaces.py": "the function of django-tenants is optional",
    "services/doctor/url_rules.py": "settings of Django name classes",
    "services/site_urls.py": "settings of Django name classes",
    "stores/redis/opening.py": "settings of Django name the backend of a cache",
}
"""The modules that load others by their names, and why: import contracts do not see these."""


def test_modules_are_loaded_by_name_only_where_it_is_needed() -> None:
    package = ROOT / "limits_app"
    loading = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if {"import_module", "import_string", "__import__"} & names_in(ast.parse(path.read_text()))
    }
    assert loading == LOADS_BY_NAME.keys()


def names_in(module: ast.Module) -> set[str]:
    """The names that a module reads."""
    return {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
