"""Imports within the engine and between it and what is above, with those that only annotations need."""

from __future__ import annotations

from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

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
