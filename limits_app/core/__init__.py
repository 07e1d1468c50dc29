"""The engine: limits, decisions and acquisitions, without Django, I/O or reading a clock."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_ENGINE: Final = find_spec("limits_app.core.engine")

COMPILED: Final = _ENGINE is not None and not str(_ENGINE.origin).endswith(".py")
"""Whether the engine runs as compiled code, as in the wheels for a platform."""
