"""What a test has happen in place of the next call of a function; later calls are as usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["at_next_call"]


def at_next_call(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, instead: Callable[..., object]) -> None:
    """Call `instead` once in place of a function; it receives the function and its arguments."""
    usual: Callable[..., Any] = getattr(owner, name)

    def next_call(*args: Any, **options: Any) -> object:
        monkeypatch.setattr(owner, name, usual)
        return instead(usual, *args, **options)

    monkeypatch.setattr(owner, name, next_call)
