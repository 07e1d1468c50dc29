"""What a test replaces around the code that it tests: one call of a function, a package, the input, a clock."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limits_app.policies import resolver

__all__ = ["at_next_call", "resolve_at", "temporary_files_in", "type_in", "without_package"]


def at_next_call(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, instead: Callable[..., object]) -> None:
    """Call `instead` once in place of a function, and the function later; it receives that and the arguments."""
    usual: Callable[..., Any] = getattr(owner, name)

    def next_call(*args: Any, **options: Any) -> object:
        monkeypatch.setattr(owner, name, usual)
        return instead(usual, *args, **options)

    monkeypatch.setattr(owner, name, next_call)


def without_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have a package that is not installed."""
    monkeypatch.setitem(sys.modules, name, None)


def type_in(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    """Let commands read another standard input."""
    monkeypatch.setattr(sys, "stdin", stream)


def temporary_files_in(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Have another directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(directory))


def resolve_at(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Let dates and hours of policies go by another clock, in seconds since 1970."""
    monkeypatch.setattr(resolver, "clock", clock)
