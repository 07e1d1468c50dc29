"""Types of arguments, and the arguments that subcommands have in common."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from django.utils.dateparse import parse_datetime
from django.utils.timezone import localtime, now

from limits_app.engine import Amount, check_entity, check_key, check_resource, parse_amount, parse_limit, parse_seconds
from limits_app.engine.errors import InvalidLimit
from limits_app.management.limits.subcommand import Argument
from limits_app.models.fields import aware, in_site_time
from limits_app.services.amounts import one_client

T = TypeVar("T")

EFFECTS: Final = ("blocked", "unlimited")
AGES: Final = "as a date (2026-01-31), a time (2026-01-31T12:00), an age (36h, 30d), today or yesterday"
_DAYS_AGO: Final = {"today": 0, "yesterday": 1}
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def _reading(read: Callable[[str], T]) -> Callable[[str], T]:
    """Convert InvalidLimit of a parser into an argparse error."""

    def converted(text: str) -> T:
        try:
            return read(text)
        except InvalidLimit as error:
            raise ArgumentTypeError(str(error)) from error

    return converted


resource_name: Final = _reading(check_resource)
entity_name: Final = _reading(check_entity)
limit: Final = _reading(parse_limit)
seconds: Final = _reading(parse_seconds)


@_reading
def client_name(text: str) -> str:
    """The identifier of one client, and not a pattern."""
    return check_entity(one_client(text))


@_reading
def key(text: str) -> str:
    """A key of a limit."""
    check_key(text)
    return text


@_reading
def amount(text: str) -> tuple[str, Amount]:
    """A key and an amount, such as tpm=500."""
    name, equals, number = text.partition("=")
    if not equals:
        raise InvalidLimit(f"{text!r} must be a key and an amount, such as tpm=500")
    return key(name), parse_amount(number)


@_reading
def moment(text: str) -> datetime:
    """A date or a time."""
    try:
        time = parse_datetime(text)
    except ValueError as error:
        raise InvalidLimit(f"{text!r} is not a valid date or time: {error}") from error
    if time is None:
        raise InvalidLimit(
            f"{text!r} is not a valid date or time: use for example 2026-01-31 or 2026-01-31T12:00+01:00"
        )
    try:
        return in_site_time(aware(time).astimezone(UTC))  # as databases store it
    except OverflowError:
        raise InvalidLimit(f"{text!r} is out of range: must be in the years 1 to 9999 in UTC") from None


def moment_or_none(text: str) -> datetime | None:
    """A date or a time, or None for an empty text."""
    return moment(text) if text else None


@_reading
def age(text: str) -> datetime:
    """A date, a time or an age."""
    if text[:4].isdigit() and "-" in text:
        return moment(text)
    if text in _DAYS_AGO:
        midnight = localtime(datetime.now(UTC)).replace(hour=0, minute=0, second=0, microsecond=0)
        return in_site_time(midnight - timedelta(days=_DAYS_AGO[text]))
    try:
        return in_site_time(datetime.now(UTC) - timedelta(seconds=parse_seconds(text)))
    except InvalidLimit:
        raise InvalidLimit(f"{text!r} is not a valid time: give it {AGES}") from None
    except OverflowError:
        raise InvalidLimit(f"{text!r} is out of range: it is before the year 1") from None


@_reading
def minute(text: str) -> datetime:
    """A minute of the last 24 hours, or a time."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return past(text)
    latest = localtime(datetime.now(UTC))
    at = latest.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
    return in_site_time(at if at <= latest else at - timedelta(days=1))


@_reading
def past(text: str) -> datetime:
    """As `age`, but not in the future."""
    moment = age(text)
    if moment > now():
        raise InvalidLimit(f"{text!r} must be in the past: give it {AGES}")
    return moment


@_reading
def ahead(text: str) -> datetime:
    """The time after a duration."""
    try:
        return in_site_time(datetime.now(UTC) + timedelta(seconds=parse_seconds(text)))
    except OverflowError:
        raise InvalidLimit(f"{text!r} is out of range: it ends after the year 9999") from None


@_reading
def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise InvalidLimit(f"{text!r} must be a whole number of at least 1")
    return int(text)


@_reading
def percent(text: str) -> int:
    """A whole number up to 100."""
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 100):
        raise InvalidLimit(f"{text!r} must be 0 to 100 percent")
    return int(text)


def argument(*names: str, **options: Any) -> Argument:
    """An argument with the names and options of `ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(*names, **options)


def one_of(*arguments: Argument, required: bool = False) -> Argument:
    """Options of which only one can be given."""

    def add(parser: ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for add_to in arguments:
            add_to(group)

    return add


RESOURCE: Final = argument("resource", type=resource_name, metavar="RESOURCE", help="such as api or openai/gpt-4")
ENTITY: Final = argument("entity", type=entity_name, metavar="ENTITY", help="such as user:42")
OF_RESOURCE: Final = argument("--resource", type=resource_name, help="only of this resource")
ON: Final = argument("--on", dest="resource", type=resource_name, metavar="RESOURCE", help="only on this resource")
UNTIL: Final = (
    argument("--for", dest="until", type=ahead, metavar="TIME", help="how long, such as 2h or 7d"),
    argument("--until", type=moment, metavar="MOMENT", help="until when, such as 2026-01-31T18:00"),
)
PLAN: Final = argument("--plan", help="the plan of the request, for an entity without one")
WHOM: Final = (
    argument("--entity", type=client_name, help="such as user:42; without it, the site itself"),
    PLAN,
)
PRIORITY: Final = argument("--priority", help="the priority of the request, such as low")
REQUESTED: Final = argument(
    "requested",
    type=amount,
    nargs="*",
    default=[],
    metavar="KEY=AMOUNT",
    help="requested amount, such as tpm=500; the default is 1 of every limit",
)


def amounts(asked: Sequence[tuple[str, Amount]]) -> dict[str, Amount] | None:
    """The requested amounts by key, or None; raises InvalidLimit for a duplicate key."""
    keys = [name for name, _ in asked]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise InvalidLimit(f"duplicate key {', '.join(twice)}: give each key once")
    return dict(asked) or None


def limits_and_effect(words: Sequence[str]) -> tuple[list[str], str]:
    """Split arguments into limits and the effect; without an effect it is "limits"."""
    effects = [word for word in words if word in EFFECTS]
    if len(effects) > 1:
        raise InvalidLimit(f"{' and '.join(effects)} cannot be combined: choose one")
    return [word for word in words if word not in EFFECTS], effects[0] if effects else "limits"
