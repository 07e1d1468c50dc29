"""`doctor`: what is wrong with the site's limits, and what to do."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from limits_app.management.limits.arguments import seconds
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand
from limits_app.management.limits.tables import Table, printable
from limits_app.services.doctor import PATIENCE_SECONDS, Finding, Severity, diagnose

__all__ = ["DOCTOR"]

_HEAD: Final = ("severity", "id", "message", "advice")


def _doctor(options: Namespace, out: Output) -> ExitCode:
    found = diagnose(patience_seconds=options.patience)
    table = Table(_HEAD, [tuple(getattr(one, name) for name in _HEAD) for one in found], "All is well.")
    out.show(table, data=[one.as_dict() for one in found], text="\n".join(map(_told, found)) or None)
    out.note(", ".join(_counted(sum(one.severity is severity for one in found), severity) for severity in Severity))
    serious = {Severity.ERROR} if options.fail_on == "error" else {Severity.ERROR, Severity.WARNING}
    return ExitCode.NO if any(one.severity in serious for one in found) else ExitCode.OK


def _counted(number: int, severity: Severity) -> str:
    return f"{number} {severity}" if number == 1 or severity is Severity.INFO else f"{number} {severity}s"


def _told(finding: Finding) -> str:
    return (
        printable(f"{finding.severity.upper()} {finding.id}: {finding.message}") + f"\n    {printable(finding.advice)}"
    )


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on", choices=("error", "warning"), default="error", help="from which severity on to exit with 3"
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=PATIENCE_SECONDS,
        metavar="TIME",
        help="how long a store or the database may take to answer, such as 10s",
    )


DOCTOR: Final = Subcommand(
    "Find out what is wrong with the site's limits, and what to do; changes nothing.",
    _doctor,
    _arguments,
    ("doctor", "doctor --fail-on warning --format json"),
)
