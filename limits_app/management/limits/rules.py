"""`rules`: which rules for URLs charge the requests to a path."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from http import HTTPMethod
from typing import Final

from limits_app.integrations.endpoints import rules_for_path
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand
from limits_app.management.limits.tables import Table

_COLUMNS: Final = ("rule", "resource", "counted_by", "amounts", "exempts_some", "stop")


def _rules(options: Namespace, out: Output) -> ExitCode:
    rules = rules_for_path(options.path, options.method)
    rows = [
        (one.name, one.resource, one.counted_by, dict(one.amounts), bool(one.exemptions), one.stop) for one in rules
    ]
    out.show(Table(_COLUMNS, rows, f"No rule matches {options.method} {options.path}."))
    return ExitCode.OK if rules else ExitCode.NO


def _takes_path(parser: ArgumentParser) -> None:
    parser.add_argument("path", type=_path, metavar="PATH", help="the path of a request, such as /api/orders/")
    parser.add_argument(
        "--method", type=str.upper, choices=[*HTTPMethod.__members__], default="GET", help="the method of the request"
    )


def _path(text: str) -> str:
    if not text.startswith("/") or "?" in text or "#" in text:
        raise ArgumentTypeError(f"{text!r} must be a path such as /api/orders/, without host and query string")
    return text


RULES: Final = Subcommand(
    "show the rules for URLs that charge requests to a path, in their order",
    _rules,
    _takes_path,
    ("rules /api/orders/", "rules /api/orders/ --method POST --format json"),
)
