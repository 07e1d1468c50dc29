"""Other libraries, each used the way its own documentation does it; one module per library.

`admitted` and `refused` check one limit of one subject. `with_hits` does so while many hits are in the window,
for those who remember hits one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Final, cast

from benchmarks.harness import Contender

__all__ = ["admitted", "between_processes", "refused", "with_hits"]

# By name, so that a peer is imported only by rows that measure it.
_MODULES: Final = ("limits", "throttled_py", "pyrate_limiter", "concurry", "rest_framework", "django_ratelimit")


def admitted() -> list[Contender]:
    """A check that is admitted, with few hits in the window."""
    return _all("admitted")


def refused() -> list[Contender]:
    """A check that is refused."""
    return _all("refused")


def with_hits(count: int) -> list[Contender]:
    """A check that is admitted, with about `count` hits in the window."""
    return _all("with_hits", count)


def between_processes() -> list[Contender]:
    """A check that is admitted, of a limit that other processes could share without a server of its own."""
    return _all("between_processes")


def _all(kind: str, *arguments: int) -> list[Contender]:
    return [contender for name in _MODULES for contender in _of(name, kind, *arguments)]


def _of(name: str, kind: str, *arguments: int) -> Iterator[Contender]:
    make = getattr(import_module(f"benchmarks.peers.{name}"), kind, None)
    if make is not None:
        yield from cast("list[Contender]", make(*arguments))
