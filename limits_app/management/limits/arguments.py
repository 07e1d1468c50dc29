"""What stands on the command line, read into values; what cannot be is an error that says why."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware, now

from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidLimit
from limits_app.core.keys import check_entity, check_resource
from limits_app.core.limit_checks import check_key
from limits_app.core.notation import parse_amount, parse_limit, parse_seconds
from limits_app.models.fields import in_site_time

__all__ = [
    "AGES",
    "age",
    "ahead",
    "amounts",
    "entity_name",
    "key",
    "limit",
    "limits_and_effect",
    "moment",
    "past",
    "percent",
    "positive",
    "resource_name",
    "seconds",
    "takes_entity",
    "takes_limits",
    "takes_requested",
    "takes_resource",
]

T = TypeVar("T")

EFFECTS: Final = ("blocked", "unlimited")
AGES: Final = "as a moment (2026-01-31, or 2026-01-31T12:00), or how long ago (36h, 30d)"


def _read(read: Callable[[str], T]) -> Callable[[str], T]:
    """A reader whose InvalidLimit argparse understands."""

    def converted(text: str) -> T:
        try:
            return read(text)
        except InvalidLimit as error:
            raise ArgumentTypeError(str(error)) from error

    return converted


def _checked_key(text: str) -> str:
    check_key(text)
    return text


def _asked(text: str) -> tuple[str, Amount]:
    name, equals, amount = text.partition("=")
    if not equals:
        raise InvalidLimit(f"{text!r} must be a key and an amount, such as tpm=500")
    return _checked_key(name), parse_amount(amount)


def _moment(text: str) -> datetime:
    try:
        found = parse_datetime(text)
    except ValueError as error:
        raise InvalidLimit(f"{text!r} is no moment: {error}") from error
    if found is None:
        raise InvalidLimit(f"{text!r} is no moment: write 2026-01-31, or 2026-01-31T12:00+01:00")
    try:
        aware = make_aware(found) if is_naive(found) else found
        return in_site_time(aware.astimezone(UTC))  # as every database keeps it
    except OverflowError:
        raise InvalidLimit(f"{text!r} is beyond the calendar, which has the years 1 to 9999 in UTC") from None


def _age(text: str) -> datetime:
    if text[:4].isdigit() and "-" in text:
        return _moment(text)
    try:
        return in_site_time(datetime.now(UTC) - timedelta(seconds=parse_seconds(text)))
    except InvalidLimit:
        raise InvalidLimit(f"{text!r} cannot be read {AGES}") from None
    except OverflowError:
        raise InvalidLimit(f"{text!r} is too long ago") from None


def _past(text: str) -> datetime:
    found = _age(text)
    if found > now():
        raise InvalidLimit(f"{text!r} is still to come: say what is past, {AGES}")
    return found


def _ahead(text: str) -> datetime:
    try:
        return in_site_time(datetime.now(UTC) + timedelta(seconds=parse_seconds(text)))
    except OverflowError:
        raise InvalidLimit(f"{text!r} is too long: that is after the year 9999") from None


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise InvalidLimit(f"{text!r} must be a whole number from 1 on")
    return int(text)


def _percent(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 100):
        raise InvalidLimit(f"{text!r} must be 0 to 100 percent")
    return int(text)


resource_name = _read(check_resource)
entity_name = _read(check_entity)
key = _read(_checked_key)
limit = _read(parse_limit)
seconds = _read(parse_seconds)
moment = _read(_moment)
age = _read(_age)
past = _read(_past)
ahead = _read(_ahead)
positive = _read(_positive)
percent = _read(_percent)


def takes_resource(parser: ArgumentParser) -> None:
    """Take a resource, by its place."""
    parser.add_argument("resource", type=resource_name, metavar="RESOURCE", help="such as api or openai/gpt-4")


def takes_entity(parser: ArgumentParser) -> None:
    """Take an entity as an option."""
    parser.add_argument(
        "--entity", type=entity_name, metavar="ENTITY", help="such as user:42; without it, the site itself"
    )


def takes_limits(parser: ArgumentParser) -> None:
    """Take limits, or an effect in their place."""
    parser.add_argument(
        "limits",
        nargs="*",
        metavar="LIMIT",
        help="such as rpm=1000/min, calls=30/10s:gcra, budget=5M/month@Europe/Berlin or connections=10; "
        "or the word blocked or unlimited",
    )


def takes_requested(parser: ArgumentParser) -> None:
    """Take amounts by key."""
    parser.add_argument(
        "requested",
        type=_read(_asked),
        nargs="*",
        default=[],
        metavar="KEY=AMOUNT",
        help="what is requested, such as tpm=500; without it, 1 of every limit, as views take",
    )


def amounts(asked: Sequence[tuple[str, Amount]]) -> dict[str, Amount] | None:
    """What is requested, None where nothing is; InvalidLimit for a key that is there twice."""
    keys = [name for name, _ in asked]
    if twice := sorted({one for one in keys if keys.count(one) > 1}):
        raise InvalidLimit(f"{', '.join(twice)} is there twice: say it once")
    return dict(asked) or None


def limits_and_effect(said: Sequence[str]) -> tuple[list[str], str]:
    """Tell limits, which are read with the policy, from an effect that stands in their place."""
    effects = [one for one in said if one in EFFECTS]
    if len(effects) > 1:
        raise InvalidLimit(f"{' and '.join(effects)} are two effects: choose one")
    return [one for one in said if one not in EFFECTS], effects[0] if effects else "limits"
