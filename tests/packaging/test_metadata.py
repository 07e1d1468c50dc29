"""What the package says about itself is true and complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.template.backends.django import DjangoTemplates
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement

import limits_app
from hatch_build import description_of, urls_of
from tests.docs.pages import ROOT
from tests.packaging.extras import EXTRAS, MODULES, PROJECT, distributions_of, imported_by, installed_with, modules_of

ELSEWHERE = {"conformance", "ray"}
"""Extras that no site needs all of, or that are too large; `requirements.txt` has no pins of them."""
NAME = re.compile(r"^[A-Za-z0-9_.-]+")


def named(requirement: str) -> str:
    match = NAME.match(requirement)
    assert match is not None, requirement
    return match[0].lower().replace("_", "-")


def pinned() -> set[str]:
    files = (ROOT / "requirements.txt", *ROOT.glob("requirements-*.txt"))
    return {named(line) for file in files for line in file.read_text().splitlines() if "==" in line}


def test_both_versions_are_equal() -> None:
    assert PROJECT["version"] == limits_app.__version__


def test_types_are_shipped() -> None:
    assert (ROOT / "limits_app" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_python_is_declared_from_the_oldest_that_is_required() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    declared = {classifier.rpartition(" ")[2] for classifier in PROJECT["classifiers"] if "Python :: 3." in classifier}
    assert oldest in declared


@pytest.mark.parametrize("extra", ["", *(EXTRAS.keys() - {"all"})])
def test_each_requirement_has_a_range_and_a_pin(extra: str) -> None:
    for requirement in EXTRAS.get(extra, PROJECT["dependencies"]):
        assert ">=" in requirement
        assert named(requirement) in pinned()


def test_each_extra_is_distinguished_in_the_pins() -> None:
    told = set(re.findall(r"^# extra: ([a-z-]+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    assert told == set(EXTRAS) - ELSEWHERE - {"all"}


@pytest.mark.parametrize("extra", MODULES)
def test_extra_installs_the_packages_that_its_modules_import(extra: str) -> None:
    installed = installed_with([*PROJECT["dependencies"], *EXTRAS[extra]])
    missing = {
        f"{module} imports {package}"
        for module in modules_of(extra)
        for package in imported_by(module)
        if not distributions_of(package) & installed
    }
    assert missing == set()


def test_all_installs_every_extra_of_sites_but_the_large_one() -> None:
    (everything,) = [Requirement(text) for text in EXTRAS["all"]]
    assert everything.extras == EXTRAS.keys() - ELSEWHERE - {"all"}
    assert EXTRAS.keys() - {"all", "ray"} == MODULES.keys()


def test_every_extra_is_documented() -> None:
    section = (ROOT / "docs" / "upgrading.md").read_text().partition("## Extras")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == sorted(EXTRAS)


def test_an_upper_bound_has_a_reason() -> None:
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if re.search(r'"[\w\[\]-]+>=[\d.]+,<', line):
            assert "  # " in line


def test_templates_are_found_in_the_package_itself() -> None:
    engine = DjangoTemplates({"NAME": "only apps", "DIRS": [], "APP_DIRS": True, "OPTIONS": {}})
    for name in ("limits_app/429.html", "admin/limits_app/pages/usage.html"):
        origin = engine.get_template(name).origin
        assert Path(origin.name).is_relative_to(ROOT / "limits_app")


README = "[a](docs/a.md#x) ![p](docs/p.png) [w](https://example.org/) [`c`](CONTRIBUTING.md)"


@pytest.mark.parametrize(
    ("url", "description"),
    [
        ("", "a  [w](https://example.org/) `c`"),
        (
            "https://example.com/l",
            "[a](https://example.com/l/blob/main/docs/a.md#x) ![p](https://example.com/l/raw/main/docs/p.png) "
            "[w](https://example.org/) [`c`](https://example.com/l/blob/main/CONTRIBUTING.md)",
        ),
    ],
)
def test_the_description_has_no_relative_links(url: str, description: str) -> None:
    assert description_of(README, url) == description
    links = re.findall(r"\]\(([^)]+)\)", description_of((ROOT / "README.md").read_text(), url))
    assert [link for link in links if not link.startswith("https://")] == []
    assert {name: page.startswith(f"{url}/") or page == url for name, page in urls_of(url).items()} == (
        dict.fromkeys(("Homepage", "Documentation", "Issues", "Changelog"), True) if url else {}
    )


def test_a_wheel_has_the_description(tmp_path: Path) -> None:
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    assert "Rate limiting, quotas and concurrency limits" in metadata.core.readme
    assert "](docs/" not in metadata.core.readme


def build(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a process does that builds a wheel from a folder."""
    hook = f"from hatch_build import CustomBuildHook; CustomBuildHook({str(folder)!r}, {{}}, *[None] * 4)"
    command = [sys.executable, "-c", f"{hook}.initialize('standard', {{}}); {code}"]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        ("pass", False),
        ("raise SystemExit('no compiler')", True),
        ("import os; os.kill(os.getpid(), 15); import time; time.sleep(60)", True),
    ],
)
def test_a_build_leaves_no_compiled_module_in_the_tree(code: str, failed: bool, tmp_path: Path) -> None:
    package = tmp_path / "limits_app" / "stores"
    package.mkdir(parents=True)
    names = ("memory.cpython-311-x86_64-linux-gnu.so", "memory.cp311-win_amd64.pyd", "memory.py")
    for name in names:
        (package / name).touch()
    assert (build(code, tmp_path).returncode != 0) == failed
    assert [path.name for path in package.iterdir()] == ["memory.py"]
