"""What building a wheel leaves in the tree: nothing. mypyc puts extensions next to the modules that it compiles."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """Removes compiled extensions when the building process ends, also after an error: Python would import them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - as hatchling calls it
        """Begin a build."""
        atexit.register(remove_extensions, Path(self.root) / "limits_app")


def remove_extensions(package: Path) -> None:
    """Remove the extensions in a package."""
    for pattern in ("*.so", "*.pyd"):
        for path in package.rglob(pattern):
            path.unlink()
