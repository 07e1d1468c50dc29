"""What the compiler of the wheels needs to know; without it, everything here does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    # The compiler finds this name in the types. It is no dependency: it is never imported.
    from mypy_extensions import mypyc_attr
else:
    C = TypeVar("C", bound=type)

    def mypyc_attr(**_options: bool) -> Callable[[C], C]:
        """Return a decorator that leaves a class as it is; the compiler reads the options."""
        return lambda decorated: decorated
