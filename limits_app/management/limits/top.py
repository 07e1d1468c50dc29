"""`top`: the tightest limits, again and again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from threading import TIMEOUT_MAX, Event
from typing import Final, NoReturn

from limits_app import services as limits
from limits_app.core.notation import seconds_text
from limits_app.management.limits.arguments import positive, seconds
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand, fail
from limits_app.management.limits.tables import Table
from limits_app.models import Entity, Policy, Resource
from limits_app.resolver import Pair
from limits_app.services import RowState

__all__ = ["TOP"]

_HEAD: Final = ("resource", "entity", "key", "used", "capacity", "percent", "level")
_LATELY: Final = timedelta(hours=2)


def _top(options: Namespace, out: Output) -> ExitCode:
    if options.once:
        states = limits.overview(_pairs(options.scopes))
        unknown = _unknown(states)
        if states and not any(state.known for state in states):
            fail("The store cannot be asked: what is used is not known.")
        out.show(_table(states, options.lines))
        if unknown:
            out.note(f"A store cannot be asked: what is used is not known of {', '.join(unknown)}.")
        return ExitCode.OK
    if not 0 < options.interval <= TIMEOUT_MAX:
        fail(f"The interval must be more than 0, and at most {seconds_text(TIMEOUT_MAX)}.", ExitCode.USAGE)
    try:
        _refresh(options, out)
    except KeyboardInterrupt:
        return ExitCode.OK


def _refresh(options: Namespace, out: Output) -> NoReturn:
    pause = Event()  # nobody sets it: waiting for it is a sleep that Ctrl-C ends
    with out.screen() as screen:
        while True:
            states = limits.overview(_pairs(options.scopes))
            head = f"{datetime.now(UTC):%H:%M:%S} UTC" + (": a store cannot be asked" if _unknown(states) else "")
            screen.draw(_table(states, options.lines), head)
            pause.wait(options.interval)


def _unknown(states: Iterable[RowState]) -> list[str]:
    """The resources of which it is not known what is used."""
    return sorted({state.resource for state in states if not state.known})


def _table(states: Iterable[RowState], lines: int) -> Table:
    found = [(limit.share, state, limit) for state in states for limit in state.limits]
    found.sort(key=lambda one: -one[0])
    rows = [
        (state.resource, state.entity, limit.key, limit.used, limit.capacity, round(share * 100, 1), limit.level)
        for share, state, limit in found[:lines]
    ]
    return Table(_HEAD, rows, "Nothing is limited.")


def _pairs(most: int) -> list[Pair]:
    """The scopes worth looking at: resources, entities with policies of their own, and those that were busy lately."""
    resources = {resource.name: resource for resource in Resource.objects.all()[:most]}
    pairs: dict[tuple[str, str | None], Pair] = {(name, None): (one, None) for name, one in resources.items()}
    own = Policy.objects.filter(resource__isnull=False, entity__isnull=False).select_related("resource", "entity")
    for policy in own[:most]:
        pairs[str(policy.resource), str(policy.entity)] = policy.resource, policy.entity
    busy = limits.usage(by=("resource", "entity"), period="hour", since=datetime.now(UTC) - _LATELY, most=most)
    names = {use.entity for use in busy if use.entity and use.bucket == "entity"}
    known = {entity.identifier: entity for entity in Entity.objects.filter(identifier__in=names)}
    for use in busy:
        if use.entity in names and use.resource in resources:
            entity = known.get(use.entity) or Entity(identifier=use.entity)  # nobody needs a row
            pairs.setdefault((use.resource, use.entity), (resources[use.resource], entity))
    return list(pairs.values())[:most]


def _takes(parser: ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--interval", type=seconds, default=2, metavar="TIME", help="between two looks (2s)")
    parser.add_argument("--lines", type=positive, default=20, help="how many limits to show (20)")
    parser.add_argument("--scopes", type=positive, default=500, help="how many scopes to look at (500)")


TOP: Final = Subcommand(
    "show the tightest limits now, until Ctrl-C", _top, _takes, ("top", "top --once --lines 5 --format json")
)
