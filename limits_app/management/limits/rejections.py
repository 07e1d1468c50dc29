"""`denials` and `why`: rejections and their reasons."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from limits_app.management.limits.arguments import AGES, age, entity_name, key, minute, positive, resource_name
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand
from limits_app.management.limits.tables import Table
from limits_app.services.rejections import Rejection, rejections

_MOST: Final = 100
_COLUMNS: Final = ("minute", "entity", "name", "resource", "limit", "count", "why", "audit_event")


def _denials(options: Namespace, out: Output) -> ExitCode:
    asked = {"entity": options.entity, "key": options.key, "since": options.since, "until": options.until}
    asked["request_id"] = options.request_id
    found: list[Rejection] = []
    while len(found) < options.most:
        step = min(options.most - len(found), _MOST)
        some = rejections(options.resource, **asked, offset=len(found), most=step)
        found += some
        if len(some) < step:
            break
    out.show(_table(found, "No request was rejected in this time."))
    return ExitCode.OK


def _why(options: Namespace, out: Output) -> ExitCode:
    since = options.at.replace(second=0, microsecond=0)
    until = since + timedelta(minutes=1)
    found = rejections(options.resource, entity=options.entity, since=since, until=until)
    nothing = f"No request of {options.entity} was rejected in the minute {since:%Y-%m-%d %H:%M}."
    out.show(_table(found, nothing), text="\n".join(map(_sentence, found)) if found else None)
    return ExitCode.OK


def _sentence(found: Rejection) -> str:
    source = "" if found.event_number is None else f" The policy is that of audit event {found.event_number}."
    times = "Once" if found.count.count == 1 else f"{found.count.count} times"
    return f"{times}: {found.why}{source}"


def _table(found: Sequence[Rejection], nothing: str) -> Table:
    rows = [
        (
            one.count.minute,
            one.count.entity,
            one.name,
            one.count.resource,
            one.count.key,
            one.count.count,
            one.why,
            one.event_number,
        )
        for one in found
    ]
    return Table(_COLUMNS, rows, nothing)


def _takes_denials(parser: ArgumentParser) -> None:
    parser.add_argument("--since", type=age, metavar="WHEN", help=f"{AGES}; the default is 48h")
    parser.add_argument("--until", type=age, metavar="WHEN", help=AGES)
    parser.add_argument("--entity", metavar="ENTITY", help="an empty value selects the site itself")
    parser.add_argument("--resource", type=resource_name, metavar="RESOURCE")
    parser.add_argument("--key", type=key, metavar="KEY", help="only this limit")
    parser.add_argument("--request-id", metavar="ID", help="the id of a request, as its rejection showed it")
    parser.add_argument("--most", type=positive, default=_MOST, metavar="ROWS", help="only this many rows, the latest")


def _takes_why(parser: ArgumentParser) -> None:
    parser.add_argument("entity", type=entity_name, metavar="ENTITY", help="such as user:42")
    parser.add_argument(
        "--at", type=minute, required=True, metavar="WHEN", help=f"a minute of the last 24 hours (10:03), or {AGES}"
    )
    parser.add_argument("--resource", type=resource_name, metavar="RESOURCE", help="only this resource")


DENIALS: Final = Subcommand(
    "list rejections with their reasons, the latest first",
    _denials,
    _takes_denials,
    ("denials --since 10m", "denials --since yesterday --until today --entity user:42"),
)
WHY: Final = Subcommand(
    "say why an entity was rejected in a minute", _why, _takes_why, ("why user:7 --at 10:03", "why user:7 --at 5m")
)
