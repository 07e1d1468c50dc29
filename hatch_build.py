"""What is special about building: the description for package indexes, and that a build leaves nothing in the tree."""

from __future__ import annotations

import atexit
import re
import signal
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    """Makes the README a description for package indexes, and writes the URLs of the project.

    `url` in `[tool.hatch.metadata.hooks.custom]` is the address of the repository.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dynamic fields."""
        url = str(self.config["url"]).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description_of(text, url)}
        metadata["urls"] = urls_of(url)


def description_of(readme: str, url: str) -> str:
    """Return a README whose links and images are absolute; without an address they are their text, and nothing."""
    if not url:
        without_images = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)", "", readme)
        return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", without_images)
    images = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{url}/raw/main/", readme)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{url}/blob/main/", images)


def urls_of(url: str) -> dict[str, str]:
    """Return the URLs of the project; none without an address."""
    pages = {"Documentation": "/blob/main/docs/index.md", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    return {name: url + page for name, page in {"Homepage": "", **pages}.items()} if url else {}


class CustomBuildHook(BuildHookInterface[Any]):
    """Removes compiled extensions when the building process ends, also after an error: Python would import them.

    mypyc puts them next to the modules that it compiles.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - as hatchling calls it
        """Begin a build, without what one that was killed has left."""
        package = Path(self.root) / "limits_app"
        remove_extensions(package)
        atexit.register(remove_extensions, package)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends as usual


def remove_extensions(package: Path) -> None:
    """Remove the extensions in a package."""
    for pattern in ("*.so", "*.pyd"):
        for path in package.rglob(pattern):
            path.unlink()
