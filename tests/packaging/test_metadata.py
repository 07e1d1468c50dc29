"""What the package says about itself is true and complete."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from django.template.backends.django import DjangoTemplates

import limits_app
from tests.docs.pages import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ELSEWHERE = {"ray"}
"""Extras that are too large for the environment of the tests, and have pins of their own."""
NAME = re.compile(r"^[A-Za-z0-9_.-]+")


def named(requirement: str) -> str:
    match = NAME.match(requirement)
    assert match is not None, requirement
    return match[0].lower().replace("_", "-")


def pinned() -> set[str]:
    files = (ROOT / "requirements.txt", *ROOT.glob("requirements-*.txt"))
    return {named(line) for file in files for line in file.read_text().splitlines() if "==" in line}


def test_the_version_is_said_twice_and_alike() -> None:
    assert PROJECT["version"] == limits_app.__version__


def test_types_are_shipped() -> None:
    assert (ROOT / "limits_app" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_python_is_declared_from_the_oldest_that_is_required() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    declared = {classifier.rpartition(" ")[2] for classifier in PROJECT["classifiers"] if "Python :: 3." in classifier}
    assert oldest in declared


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_what_is_required_has_a_range_and_a_pin(extra: str) -> None:
    for requirement in EXTRAS.get(extra, PROJECT["dependencies"]):
        assert ">=" in requirement
        assert named(requirement) in pinned()


def test_each_extra_is_told_apart_in_the_pins() -> None:
    told = set(re.findall(r"^# extra: ([a-z-]+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    assert told == set(EXTRAS) - ELSEWHERE


def test_templates_are_found_in_the_package_itself() -> None:
    engine = DjangoTemplates({"NAME": "only apps", "DIRS": [], "APP_DIRS": True, "OPTIONS": {}})
    for name in ("limits_app/429.html", "admin/limits_app/pages/usage.html"):
        origin = engine.get_template(name).origin
        assert Path(origin.name).is_relative_to(ROOT / "limits_app")
