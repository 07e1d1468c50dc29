"""The extras of the package: which modules each of them is for, and which packages it installs."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT

__all__ = ["EXTRAS", "MODULES", "PROJECT", "distributions_of", "imported_by", "installed_with", "modules_of"]

PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]

MODULES: Final = {
    "celery": ["limits_app.integrations.celery", "limits_app.tasks", "limits_app.workers.in_celery"],
    "conformance": ["limits_app.testing.conformance"],
    "drf": ["limits_app.api", "limits_app.integrations.drf"],
    "import-export": ["limits_app.admin.imports_exports"],
    "opentelemetry": ["limits_app.metrics.opentelemetry"],
    "outbound": ["limits_app.outbound"],
    "prometheus": ["limits_app.metrics.prometheus"],
    "redis": ["limits_app.stores.redis"],
    "rich": ["limits_app.management.limits.drawing"],
    "yaml": ["limits_app.services.limits_file"],
}
"""The modules and packages of each extra. Ray is too large for these tests: `make ray` has it."""

OF_OTHERS: Final = {"celery": ["kombu.transport.redis", "kombu.transport.pyamqp"]}
"""Modules of other packages that the documentation of an extra names."""

_TWO_EXTRAS: Final = {"limits_app.outbound.tracing"}
"""Modules that need a second extra, as docs/outbound.md says."""

_FROM_THE_SITE: Final = {"django_redis"}
"""Packages that are imported only where the settings of the site name them."""


def modules_of(extra: str) -> list[str]:
    """Return the names of all modules of an extra, those in its packages included."""
    names = []
    for name in MODULES[extra]:
        path = ROOT.joinpath(*name.split("."))
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        names += [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return [name for name in names if name not in _TWO_EXTRAS] + OF_OTHERS.get(extra, [])


def imported_by(module: str) -> set[str]:
    """Return the names of the third-party packages that the source of a module imports."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, module  # noqa: PT018 - one fact
    names = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - _FROM_THE_SITE - {module.partition(".")[0]}


def distributions_of(package: str) -> set[str]:
    """Return the distributions that have a package; several for a namespace."""
    return {canonicalize_name(name) for name in _distributions().get(package, ())}


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def installed_with(requirements: Iterable[str]) -> set[str]:
    """Return the distributions that are installed with requirements, those that they require included."""
    waiting, seen, found = [Requirement(text) for text in requirements], set(), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        found.add(name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += _required_by(name, extra)
    return found


def _required_by(name: str, extra: str) -> Iterator[Requirement]:
    for text in requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement
