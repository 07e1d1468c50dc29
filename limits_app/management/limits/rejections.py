"""`denials` and `why`: rejections and their reasons."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final

from django.utils.timezone import now

from limits_app.management.limits.arguments import AGES, ENTITY, OF_RESOURCE, argument, key, minute, positive
from limits_app.management.limits.output import Output, Table
from limits_app.management.limits.subcommand import note_unused, subcommand
from limits_app.services.limit_words import limit_keys
from limits_app.services.rejections import Rejection, rejections

_MOST: Final = 100
_TIMES: Final = f"a minute of the last 24 hours (10:03), or {AGES}"
_COLUMNS: Final = ("minute", "entity", "name", "resource", "limit", "count", "why", "audit_event")
_VALUES: Final = attrgetter(
    *("count.minute", "count.entity", "name", "count.resource", "count.key", "count.count", "why", "event_number")
)


@subcommand(
    "list rejections with their reasons, the latest first",
    argument("--since", type=minute, metavar="WHEN", help=f"{_TIMES}; the default is 48h"),
    argument("--until", type=minute, metavar="WHEN", help=_TIMES),
    argument("--entity", help="an empty value selects the site itself"),
    OF_RESOURCE,
    argument("--key", type=key, help="only this limit"),
    argument("--request-id", metavar="ID", help="the id of a request, as its rejection showed it"),
    argument("--most", type=positive, default=_MOST, metavar="ROWS", help="only this many rows, the latest"),
    examples=("denials --since 10m", "denials --since yesterday --until today --entity user:42"),
)
def denials(options: Namespace, out: Output) -> None:
    """List rejections."""
    asked = {"entity": options.entity, "key": limit_keys(options.key), "since": options.since, "until": options.until}
    asked["request_id"] = options.request_id
    found: list[Rejection] = []
    while len(found) < options.most:
        step = min(options.most - len(found), _MOST)
        some = rejections(options.resource, **asked, offset=len(found), most=step)
        found += some
        if len(some) < step:
            break
    out.show(_table(found, "No request was rejected in this time."))


@subcommand(
    "say why an entity was rejected, in the last hour or in a minute",
    ENTITY,
    argument("--at", type=minute, metavar="WHEN", help=f"{_TIMES}; the default is the last hour"),
    OF_RESOURCE,
    examples=("why user:7", "why user:7 --at 10:03"),
)
def why(options: Namespace, out: Output) -> None:
    """Say why an entity was rejected."""
    since, until, time = now() - timedelta(hours=1), None, "last hour"
    if options.at is not None:
        since = options.at.replace(second=0, microsecond=0)
        until = since + timedelta(minutes=1)
        time = f"minute {since:%Y-%m-%d %H:%M}"
    found = rejections(options.resource, entity=options.entity, since=since, until=until)
    nothing = f"No request of {options.entity} was rejected in the {time}. `limits denials` lists those of 48 hours."
    out.show(_table(found, nothing), text="\n".join(map(_sentence, found)) if found else None)
    if not found:
        note_unused(options.entity, out)


def _sentence(found: Rejection) -> str:
    number = found.event_number
    source = "" if number is None else f" The policy is that of audit event {number} (limits audit show {number})."
    times = "once" if found.count.count == 1 else f"{found.count.count} times"
    return f"{found.count.minute:%Y-%m-%d %H:%M %Z}, {times}: {found.why}{source}"


def _table(found: Sequence[Rejection], nothing: str) -> Table:
    return Table(_COLUMNS, [*map(_VALUES, found)], nothing)
