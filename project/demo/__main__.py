"""The command line of the demo: `python -m project.demo`."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Final

from project.demo import DemoFailed
from project.demo.place import ROOT
from project.demo.report import Report
from project.demo.scenario import run, run_changes
from project.demo.serving import serve

PORT: Final = 8000
DATA: Final = ROOT / ".demo"
_INTERRUPTED: Final = 130


def main() -> int:
    """Run the demo, and return the exit code: 0 if all figures are exact."""
    options = _options()
    # A signal to the demo also ends its server, even if a shell started the demo in the background and ignores SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        if options.serve:
            serve(options.port, options.data)
        return _changed(options.changes) if options.changes else _reported(run())
    except DemoFailed as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("The demo was interrupted, and its processes were stopped.", file=sys.stderr)
        return _INTERRUPTED


def _reported(report: Report) -> int:
    print(f"\n{report.text()}\n")
    problems = report.problems()
    for problem in problems:
        print(f"NOT EXACT: {problem}", file=sys.stderr)
    if problems:
        return 1
    print(f"Every figure is exact; it took {report.seconds:.0f} seconds.")
    print(f"To try it yourself: make run, then log in at http://127.0.0.1:{PORT}/admin/ as admin, password admin.")
    return 0


def _changed(number: int) -> int:
    exact = run_changes(number)
    print(f"{exact} of {number} changes applied to the first request after them in every process.")
    return 0 if exact == number else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m project.demo", description="Show limits at work.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--serve", action="store_true", help="serve the site with seeded data until Ctrl-C")
    how.add_argument("--changes", type=_number, default=0, metavar="N", help="change a limit N times, and check each")
    parser.add_argument("--port", type=_port, default=PORT, help="where to serve (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=DATA, help="where the served site keeps its data")
    return parser.parse_args()


def _number(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError("must be from 1 to 10000")
    return number


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return port


if __name__ == "__main__":
    sys.exit(main())
