"""Rows about starting: how long it takes in a fresh interpreter, and what it brings along."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import Final

from benchmarks.harness import Effort, Figure, Turn, absolute, in_turns
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
_APPS: Final = ("auth", "contenttypes")
_ADMIN_APPS: Final = ("admin", *_APPS, "messages", "sessions", "staticfiles")
_SETUP_PROGRAM: Final = """
import django
from django.conf import settings
from time import perf_counter
database = {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
settings.configure(INSTALLED_APPS={apps}, DATABASES={{"default": database}}, SECRET_KEY="only-for-benchmarks")
started = perf_counter()
django.setup()
print(perf_counter() - started, 0)
"""
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
    return _run(_PROGRAM.format(statement=statement, unwanted=_UNWANTED))


def _run(program: str) -> tuple[float, int]:
    """The numbers that a program prints in a fresh interpreter."""
    # What was compiled is kept, whatever the environment says, as it is where a package is installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    seconds, unwanted = done.stdout.split()
    return float(seconds), int(unwanted)


def _setup(effort: Effort) -> Iterable[Line]:
    for where, names in (("", _APPS), (" and the admin", _ADMIN_APPS)):
        apps = [f"django.contrib.{name}" for name in names]
        programs = {
            "without": _SETUP_PROGRAM.format(apps=apps),
            "with": _SETUP_PROGRAM.format(apps=[*apps, "limits_app"]),
        }
        for program in programs.values():  # the first time, source is compiled
            _run(program)
        measures = {label: partial(_setup_milliseconds, program) for label, program in programs.items()}
        samples = in_turns(measures, effort.sized(max(effort.rounds, 11), 3))
        without = samples.figures("without")
        more = [own - less for own, less in zip(samples.figures("with"), without, strict=True)]
        bar = at_most(90) if names is _APPS else None
        figure = Figure(median(more), more[without.index(min(without))])
        yield Line(f"{OURS}{where}, more than without the app", figure, "ms", bar)
        yield Line(f"  without it{where}", absolute(without), "ms")


def _setup_milliseconds(program: str) -> Turn:
    return Turn(1000 * _run(program)[0])


ROWS: Final = (
    Row("import: time, and what comes along", _import_time),
    Row("setup: django.setup() with the app", _setup),
)
