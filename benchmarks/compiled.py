"""Rows of the compiled wheel: what is measured in process, compiled and interpreted, each in a process of its own.

`python -m benchmarks.compiled SECONDS` is such a process: for each line of its input, all of its contenders have a turn
of so many seconds, the reference among them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.harness import Contender, Effort, Samples, Turn, take_turns
from benchmarks.in_process import CALL_AND_PERMIT, CALL_AND_RATE, levels, pool, refused, refused_by_all
from benchmarks.references import REF, ref
from benchmarks.rows import Line, Row, Skipped
from benchmarks.site import ROOT
from benchmarks.subjects import OURS, THREE, calls, one_call, three_limits
from limits_app import LimitSet
from limits_app.engine import COMPILED

__all__ = ["ROWS", "SUBJECTS", "measuring"]

_SOURCES: Final = ("limits_app", "LICENSE", "README.md", "pyproject.toml")
SUBJECTS: Final[Mapping[str, Callable[[], Contender]]] = {
    "one call limit": lambda: one_call(LimitSet([calls()])),
    "three limits, update and release": lambda: three_limits(LimitSet(THREE)),
    "refused": refused,
    "cascade, a call and a rate limit each": lambda: levels(CALL_AND_RATE, ""),
    "cascade, a call limit and a permit each": lambda: levels(CALL_AND_PERMIT, ""),
    "pool of 6, round_robin": lambda: one_call(pool(calls(), "round_robin")),
    "pool of 6, least_loaded": lambda: one_call(pool(calls(), "least_loaded")),
    "pool of 6, refused by all": refused_by_all,
}


def _compiled(effort: Effort) -> Iterable[Line]:
    if effort.quick:
        raise Skipped("a quick look builds no wheel")
    samples = Samples()
    with (
        TemporaryDirectory(prefix="compiled-wheel-") as directory,
        measuring(_unpacked_wheel(Path(directory)), effort, compiled=True) as compiled,
        measuring(ROOT, effort, compiled=False) as interpreted,
    ):
        order = deque([("compiled", compiled), ("interpreted", interpreted)])
        for _ in range(effort.rounds):
            for kind, measure in order:
                for name, seconds in measure().items():
                    samples.turns.setdefault(f"{kind} {name}", []).append(Turn(seconds))
            order.rotate()
    for name in SUBJECTS:
        yield Line(f"{OURS}, {name}", samples.ratio(f"compiled {name}", f"compiled {REF}"), f"x {REF}")
        yield Line("  interpreted", samples.ratio(f"interpreted {name}", f"interpreted {REF}"), f"x {REF}")


def _unpacked_wheel(directory: Path) -> Path:
    """Build the compiled wheel from a copy of the source; gives the folder that has its content."""
    missing = [name for name in ("hatchling", "hatch_mypyc") if find_spec(name) is None]
    if missing:
        raise Skipped(f"no compiled wheel can be built here: not installed: {', '.join(missing)}")
    source, wheels, content = (directory / name for name in ("source", "wheels", "content"))
    source.mkdir()
    for name in _SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)],
        cwd=source,
        env=os.environ | {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Skipped(f"no compiled wheel can be built here: {done.stdout.strip().splitlines()[-1:]}")
    [wheel] = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(content)
    return content


@contextmanager
def measuring(place: Path, effort: Effort, *, compiled: bool) -> Iterator[Callable[[], dict[str, float]]]:
    """A process that imports the package from a folder; gives what has all of its contenders measured once."""
    command = [sys.executable, "-m", "benchmarks.compiled", str(effort.turn_seconds)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=place, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        requests, replies = process.stdin, process.stdout
        assert requests is not None
        assert replies is not None
        assert json.loads(replies.readline()) is compiled, f"the package in {place} is another one"

        def measure() -> dict[str, float]:
            print(file=requests, flush=True)
            measured: dict[str, float] = json.loads(replies.readline())
            return measured

        try:
            yield measure
        finally:
            requests.close()


def main() -> None:
    """Measure whenever a line comes in, and answer with seconds per call by contender."""
    contenders = [ref(), *[replace(make(), name=name) for name, make in SUBJECTS.items()]]
    effort = Effort(rounds=1, turn_seconds=float(sys.argv[1]))
    print(json.dumps(COMPILED), flush=True)
    for _ in sys.stdin:
        samples = take_turns(contenders, effort)
        print(json.dumps({contender.name: samples.figures(contender.name)[0] for contender in contenders}), flush=True)


ROWS: Final = (Row("in process: compiled with mypyc", _compiled),)

if __name__ == "__main__":
    main()
