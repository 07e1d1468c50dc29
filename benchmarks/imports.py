"""Rows about importing: how long it takes in a fresh interpreter, and what it brings along."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from typing import Final

from benchmarks.harness import Effort, Turn, absolute, in_turns
from benchmarks.rows import Line, Row, at_most
from benchmarks.subjects import OURS

__all__ = ["ROWS"]

_CORE: Final = "from limits_app import CallLimit, LimitSet, RateLimit, ResourceLimit"
_STATEMENTS: Final = {
    f"{OURS}, core": _CORE,
    f"{OURS}, a set in memory": f"{_CORE}; LimitSet([CallLimit(1, 1)])",
    "limits": "from limits import strategies, storage",
    "throttled-py": "import throttled",
    "pyrate-limiter": "import pyrate_limiter",
    "Concurry": "import concurry",
}
_UNWANTED: Final = ("celery", "django", "redis")
_PROGRAM: Final = """
import sys
from time import perf_counter
started = perf_counter()
{statement}
print(perf_counter() - started, len(set({unwanted}) & set(sys.modules)))
"""


def _import_time(effort: Effort) -> Iterable[Line]:
    # The first time, source is compiled.
    unwanted = {label: _imported(statement)[1] for label, statement in _STATEMENTS.items()}
    measures = {label: partial(_milliseconds, statement) for label, statement in _STATEMENTS.items()}
    samples = in_turns(measures, effort.sized(max(effort.rounds, 11), 3))
    for label in _STATEMENTS:
        own = label.startswith(OURS)
        bar = at_most(60) if own else None
        yield Line(label if own else f"  {label}", absolute(samples.figures(label), tail=True), "ms", bar)
    for label, count in unwanted.items():
        if label.startswith(OURS):
            yield Line(f"{label}: {', '.join(_UNWANTED)}", absolute([count]), "come along", at_most(0))


def _milliseconds(statement: str) -> Turn:
    return Turn(1000 * _imported(statement)[0])


def _imported(statement: str) -> tuple[float, int]:
    """Seconds in a fresh interpreter, and how many packages came along that should not."""
    program = _PROGRAM.format(statement=statement, unwanted=_UNWANTED)
    # What was compiled is kept, whatever the environment says, as it is where a package is installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    seconds, unwanted = done.stdout.split()
    return float(seconds), int(unwanted)


ROWS: Final = (Row("import: time, and what comes along", _import_time),)
