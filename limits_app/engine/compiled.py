"""Whether the engine runs as compiled code, and what the compiler reads."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar

__all__ = ["COMPILED", "mypyc_attr"]

_ENGINE: Final = find_spec("limits_app.engine.engine")

COMPILED: Final = _ENGINE is not None and not str(_ENGINE.origin).endswith(".py")
"""Whether the engine runs as compiled code, as in the wheels for a platform."""

if TYPE_CHECKING:
    # The compiler finds this name in the types. It is no dependency: it is never imported.
    from mypy_extensions import mypyc_attr
else:
    C = TypeVar("C", bound=type)

    def mypyc_attr(**_options: bool) -> Callable[[C], C]:
        """Return a decorator that leaves a class as it is; the compiler reads the options."""
        return lambda decorated: decorated
