"""Validators of fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import MAXYEAR, MINYEAR, datetime
from http import HTTPMethod
from math import isfinite
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.urls.converters import PathConverter
from django.urls.resolvers import RoutePattern
from django.utils.translation import gettext as _

from limits_app import conf
from limits_app.conf import parsed_network
from limits_app.engine import check_entity, check_key, check_resource, shown, usage_of_units
from limits_app.models.patterns import check_client, check_pattern, check_requester
from limits_app.models.weekly_hours import WeeklyHours, zone_named

_HEADER: Final = re.compile(r"[A-Za-z0-9-]+")
WILDCARD: Final = "*"
"""A segment of a path that matches any one segment; at the end of the path, everything below."""
MAX_DEPTH: Final = 32
"""Maximum nesting depth of JSON."""


def validate_text(value: str) -> None:
    """Reject text that databases cannot store."""
    if "\0" in value:
        raise ValidationError(_("A text cannot contain the character NUL: remove it."))
    if not _is_unicode(value):
        raise ValidationError(_("A text cannot contain half of a surrogate pair: remove it."))


def validate_identifier(value: str) -> None:
    """Reject invalid identifiers of entities."""
    _by_core(check_entity, value)
    validate_text(value)
    check_pattern(value)


def validate_requester(value: str) -> None:
    """Reject invalid identifiers of entities, and those that no request has or matches."""
    validate_identifier(value)
    check_requester(value)


def validate_client(value: str) -> None:
    """Reject invalid identifiers of entities, and patterns."""
    validate_identifier(value)
    check_client(value)


def validate_resource_name(value: str) -> None:
    """Reject invalid names of resources."""
    _by_core(check_resource, value)


def validate_hours(value: str) -> None:
    """Reject invalid weekly hours."""
    _by_core(lambda text: WeeklyHours.parse(text, "UTC"), value)


def validate_zone(value: str) -> None:
    """Reject unknown time zones."""
    _by_core(zone_named, value)


def validate_priority(value: str) -> None:
    """Reject unknown priorities; empty is for none."""
    priorities = conf.get(conf.PRIORITIES)
    if value and value not in priorities:
        raise ValidationError(
            _("LIMITS['PRIORITIES'] has no priority %(name)s: choose one of %(known)s, or leave it empty."),
            params={"name": shown(value), "known": ", ".join(priorities)},
        )


def validate_store(value: str) -> None:
    """Reject unknown stores; empty means the default store."""
    aliases = conf.get(conf.STORES)
    if value and value not in aliases:
        allowed = ", ".join(map(repr, aliases))
        raise ValidationError(
            _("LIMITS['STORES'] has no store %(alias)s: choose one of %(known)s, or leave it empty."),
            params={"alias": shown(value), "known": allowed},
        )


def route_pattern(path: str) -> RoutePattern:
    """Compile a path: exact, with wildcards, or in the syntax of `path()`.

    It is matched against the path of a request without its first slash. Raises ImproperlyConfigured or re.error for a
    path that `validate_path` rejects.
    """
    *before, last = path.removeprefix("/").split("/")
    is_prefix = last == WILDCARD
    segments = [*before, "" if is_prefix else last]
    route = "/".join(f"<wildcard_{n}>" if segment == WILDCARD else segment for n, segment in enumerate(segments))
    return RoutePattern(route, is_endpoint=not is_prefix)


def validate_path(value: str) -> None:
    """Reject invalid paths, and patterns that could be slow to match."""
    validate_text(value)
    if "://" in value or "?" in value or "#" in value:
        raise ValidationError(_("Enter only the path, such as “/api/orders/”, without host and query string."))
    if any(WILDCARD in segment and segment != WILDCARD for segment in value.split("/")):
        raise ValidationError(_("A “*” must be a whole segment, such as in “/api/*” or “/api/*/orders/”."))
    try:
        pattern = route_pattern(value)
        re.compile(pattern.regex)  # the pattern is compiled on first use; this detects duplicate names
    except (ImproperlyConfigured, re.error) as error:
        raise ValidationError(_("This is not a valid route: %(error)s") % {"error": error}) from error
    for warning in pattern.check():
        raise ValidationError(warning.msg)
    crossing = sum(isinstance(converter, PathConverter) for converter in pattern.converters.values())
    if crossing > 1 or any(segment.count("<") > 1 for segment in value.split("/")):
        raise ValidationError(
            _("A route has at most one “<path:…>”, and one parameter between two slashes: use a view name.")
        )


def validate_view_name(value: str) -> None:
    """Reject invalid view names."""
    validate_text(value)
    if any(character.isspace() for character in value):
        raise ValidationError(
            _("A view name must not contain spaces; use the name for reverse(), such as “orders:detail”.")
        )


def validate_methods(value: str) -> None:
    """Reject unknown HTTP methods."""
    for word in value.split(","):
        if word.strip().upper() not in HTTPMethod.__members__:
            raise ValidationError(
                _("%(word)s is not an HTTP method: use %(methods)s, separated by commas, or leave empty for all."),
                params={"word": shown(word.strip()), "methods": ", ".join(HTTPMethod.__members__)},
            )


def validate_header(value: str) -> None:
    """Reject text that cannot be the name of a request header."""
    if not _HEADER.fullmatch(value):
        raise ValidationError(
            _("%(name)s is not the name of a header: use letters, digits and “-”, such as “X-Tenant”."),
            params={"name": shown(value)},
        )


def validate_networks(value: str) -> None:
    """Reject lines that are not an IP address or a network."""
    for line in filter(None, map(str.strip, value.splitlines())):
        try:
            parsed_network(line)
        except ValueError as error:
            raise ValidationError(
                _("%(line)s is not an IP address or network: write one per line, such as “10.0.0.0/8”."),
                params={"line": shown(line)},
            ) from error


def validate_entities(value: str) -> None:
    """Reject lines that are not an identifier of an entity, or a pattern."""
    for line in filter(None, map(str.strip, value.splitlines())):
        validate_requester(line)


def validate_billing_date(value: datetime) -> None:
    """Reject dates of years that not every time zone has."""
    if not MINYEAR < value.year < MAXYEAR:
        raise ValidationError(
            _("The year of a billing date must be from 2 to 9998, not %(year)d.") % {"year": value.year}
        )


def validate_object(value: object) -> None:
    """Reject JSON other than an object."""
    if not isinstance(value, dict):
        raise ValidationError(_('Must be a JSON object, such as {"plan": "pro"}.'))


def validate_amounts(value: object) -> None:
    """Reject everything but a mapping of limit keys to amounts."""
    if not isinstance(value, dict):
        raise ValidationError(_('Must be a JSON object such as {"tpm": 500}, or {} for the default amounts.'))
    for key, amount in value.items():
        _by_core(check_key, key)
        if problem := _problem_of_amount(key, amount):
            raise ValidationError(
                _("The amount of %(key)s %(problem)s, not %(amount)s."),
                params={"key": key, "problem": problem, "amount": shown(amount)},
            )


def nested_too_deeply() -> ValidationError:
    """Return the error of JSON whose nesting is over the limit, or over that of the parser."""
    return ValidationError(_("JSON must not be nested more than %(depth)s levels deep."), params={"depth": MAX_DEPTH})


def validate_json(value: object) -> None:
    """Reject JSON that databases cannot store: NaN, infinity, NUL, surrogates, deep nesting."""
    for depth, item in _walk(value, 1):
        if depth > MAX_DEPTH:
            raise nested_too_deeply()
        match item:
            case str():
                validate_text(item)
            case float() if not isfinite(item):
                raise ValidationError(_("JSON numbers must be finite, not NaN or infinity."))


def _walk(value: object, depth: int) -> Iterator[tuple[int, object]]:
    yield depth, value
    if depth > MAX_DEPTH or not isinstance(value, dict | list):
        return
    for item in [*value, *value.values()] if isinstance(value, dict) else value:
        yield from _walk(item, depth + 1)


def _by_core(check: Callable[[Any], object], value: object) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ValidationError(str(error)) from error


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem_of_amount(key: str, amount: object) -> str | None:
    if isinstance(amount, str):
        return "must be a number"
    try:
        return "must not be negative" if usage_of_units(key, amount) < 0 else None
    except ValueError as error:
        return str(error)


MEMBER_KEY: Final = "member"
"""The key of the member's name in the config of an acquisition."""

_KINDS: Final = ("env", "setting")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET: Final = re.compile(
    r"((passwor[dt]|secret|token|cookie|connection_string)s?|passwd|(^|_)pass|passphrase|pwd|bearer|credentials?|auth|"
    r"authorization|dsn|(api|access|private|secret|signing|auth)keys?|_keys?)$"
)
_PASSWORD_IN_URL: Final = re.compile(r"://[^/?#\s]*:[^/?#\s]+@")


def is_secret_reference(value: Mapping[str, object]) -> bool:
    """Whether an object in a config is a reference to a secret."""
    return len(value) == 1 and next(iter(value)) in _KINDS


def validate_config(config: object) -> None:
    """Reject secrets in plain text, invalid references, and the reserved key “member”."""
    if not isinstance(config, Mapping):
        return  # reported by another validator
    if MEMBER_KEY in config:
        raise ValidationError(_("The key “member” is reserved for the name of the member: choose another key."))
    for key, value in _config_values(config):
        if isinstance(value, Mapping) and is_secret_reference(value):
            [name] = value.values()
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValidationError(
                    _('“%(key)s” is not a valid reference: use {"env": "NAME"} or {"setting": "NAME"}.'),
                    params={"key": key},
                )
        elif isinstance(value, str) and (
            _SECRET.search(key.lower().replace("-", "_")) or _PASSWORD_IN_URL.search(value)
        ):
            raise ValidationError(
                _("Do not store secrets: refer to the environment variable or setting of “%(key)s” with %(how)s."),
                params={"key": key, "how": '{"env": "NAME"}'},
            )


def _config_values(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """All values in a config with their keys."""
    if isinstance(value, list):
        for item in value:
            yield key, item
            yield from _config_values(item, key)
    elif isinstance(value, Mapping) and not (key and is_secret_reference(value)):
        for name, item in value.items():
            yield name, item
            yield from _config_values(item, name)
